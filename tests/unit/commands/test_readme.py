"""Tasks from the README and the site alone: their commands run, and print what the pages show."""

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests.workflow.folders import forking_program

ROOT = Path(__file__).parents[3]


def _script() -> ModuleType:
    """Load the script that fills and checks the examples."""
    loader = SourceFileLoader("examples", str(ROOT / ".ci" / "examples"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


EXAMPLES = _script()
REASON = re.compile(r"^( *)<!-- not run: \S[^\n]{10,}-->\n\1```console$", re.MULTILINE)
"""Block that is not run, under the reason."""
PAGES = [str(page.relative_to(ROOT)) for page in EXAMPLES.pages() if EXAMPLES.examples(page)]


def test_the_readme_is_short_and_has_three_tasks() -> None:
    tasks = EXAMPLES.examples(ROOT / "README.md")
    assert len(tasks) == 3
    assert (ROOT / "README.md").read_text().count("\n") <= 120
    for commands, shown in tasks:
        assert shown
        assert len(re.findall(r"^phaze ", commands, re.MULTILINE)) <= 3


def test_every_block_of_commands_is_found() -> None:
    for page in EXAMPLES.pages():
        assert page.read_text().count("```sh\n") == len(EXAMPLES.examples(page))


def test_every_command_is_run_or_the_page_says_why_not() -> None:
    """Blocks of other names would be neither."""
    fences, pages = set(), list(EXAMPLES.pages())
    assert {"config/commands.md", "config/reference/partitions.md", "config/how-to/deadline.md"} <= {*PAGES}
    for page in pages:
        text = page.read_text()
        fences |= {*re.findall(r"^ *```(\w+)$", text, re.MULTILINE)}
        assert len(re.findall(REASON, text)) == len(re.findall(r"^ *```console$", text, re.MULTILINE)), page
    assert fences <= {"sh", "console", "yaml", "json", "python"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the README in processes of their own, as of a user; others in forks, which start at once."""
    if page != "README.md":
        monkeypatch.setattr(EXAMPLES, "PROGRAMS", forking_program(tmp_path))
    assert list(EXAMPLES.differences(ROOT / page, write=False)) == []


@pytest.mark.parametrize(
    ("shown", "output", "anew"),
    [
        ("OUTPUT\n", "a\nb\n", "a\nb\n"),
        ("time 1.5 s\n…\n", "time 2.25 s\nmore\n", "time 2.25 s\n…\n"),
        ("…\nthe last 5 words…\n", "begin\nthe last 7 words are here\n", "…\nthe last 7 words…\n"),
        ("begin 1\nold words\n…\n", "begin 2\n123456\nmore\n", "begin 2\n123456\n…\n"),
        ("…\nfrom 1\nto 2\n…\n", "zzz\nfrom 3\nvia 4\nto 5\nqqq\n", "…\nfrom 3\nvia 4\nto 5\n…\n"),
    ],
)
def test_figures_are_shown_anew_where_lines_were(shown: str, output: str, anew: str) -> None:
    """Cut lines stay cut; a longer part is shown whole."""
    assert EXAMPLES.shown_anew(shown, output) == anew
    assert EXAMPLES.is_shown(anew, output)


def test_a_line_without_a_counterpart_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no line of the output is like: bubble"):
        EXAMPLES.shown_anew("bubble\n", "123\n")
