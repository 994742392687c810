"""Parts of a paper's page, for tests."""

from phaze.pages.document import Block, Heading
from phaze.papers.page import Paper


def parts(paper: Paper) -> dict[str, list[Block]]:
    """Return the blocks under every heading, those before the first under an empty one."""
    found: dict[str, list[Block]] = {"": []}
    for block in paper.blocks:
        if isinstance(block, Heading):
            found[block.text] = []
        else:
            found[list(found)[-1]].append(block)
    return found


def part(paper: Paper, words: str) -> list[Block]:
    """Return the blocks under the one heading with some words."""
    (found,) = (blocks for title, blocks in parts(paper).items() if words in title)
    return found
