"""Reference pages of the configuration: in step with the nouns, with sentences, links and examples."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from phaze.spec.config import main
from phaze.spec.files import FOLDER
from phaze.spec.reference import generated_files
from phaze.spec.reference_pages import PAGES, Entry
from phaze.spec.study import Study

PAGE_FILES = sorted((FOLDER / "reference").glob("*.md"))
ENTRIES = [entry for page in PAGES.values() for entry in page.entries]


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    names = [
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    ]
    seen: Counter[str] = Counter()
    found = set()
    for name in names:
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def test_the_generated_pages_are_in_step_with_the_code() -> None:
    assert main(["--check"]) == 0
    assert {*PAGE_FILES} <= {*generated_files(FOLDER)}, "a page of a noun that is gone"


@pytest.mark.parametrize("page", PAGE_FILES, ids=lambda page: page.stem)
def test_a_page_is_made_of_whole_sentences(page: Path) -> None:
    _, *sections = re.split(r"\n##+ ", page.read_text())
    for section in sections:
        title, about, *_ = [line for line in section.splitlines() if line]
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        cells = [row.removesuffix(" |").rpartition(" | ")[2] for row in rows]
        assert not [text for text in (about, *cells) if not re.search(r"[.)]$", text)], title


@pytest.mark.parametrize("page", [FOLDER / "README.md", *PAGE_FILES], ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_every_noun_within_a_page_has_its_section() -> None:
    """A default `see below` is described: the cell next to it links to a section or a page."""
    for page in PAGE_FILES:
        rows = [line for line in page.read_text().splitlines() if "`see below`" in line]
        assert all("](" in row for row in rows), page


def read(entry: Entry) -> dict[str, object]:
    """Example of an entry, with what is added on reading: a file's name, and the workloads of a study."""
    if " " in entry.example:
        return dict(yaml.safe_load(entry.example))
    data = yaml.safe_load((FOLDER / entry.example).read_text())
    found = {"name": "example", **(data[entry.key] if entry.key else data)}
    if entry.noun is Study:
        found |= {"workloads": yaml.safe_load((FOLDER / "config.yaml").read_text())["workloads"]}
    extra = {key for key in found if key not in entry.noun.model_fields and key == "name"}
    return {key: value for key, value in found.items() if key not in extra}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.title)
def test_an_example_is_of_the_kind_or_a_command(entry: Entry) -> None:
    if not entry.example.startswith("phaze "):
        assert entry.noun.parse(read(entry), "example")
