"""Links of the site: what lies outside the documents, or is no page, is linked in the repository."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(#[^)\s]*)?(?=\))")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Markdown of a page, whose links to other files of the checkout lead to the repository."""
    folder = posixpath.dirname(f"{Path(config.docs_dir).name}/{page.file.src_uri}")

    def in_repository(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        inside = posixpath.relpath(path, Path(config.docs_dir).name)
        if (target := files.get_file_from_path(inside)) and target.inclusion.is_included():
            return link[0]
        root = Path(config.docs_dir).parent
        if not (root / path).exists():
            return link[0]  # a broken link, which the build reports
        kind = "tree" if (root / path).is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{path}{link[2] or ''}"

    return LINK.sub(in_repository, markdown)
