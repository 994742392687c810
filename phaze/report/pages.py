"""Pages of a study's cases beside a publication: what those of plans, mappings and tiles have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import pandas as pd

from phaze.report.document import FirstScreen, Items, Section, Sheet
from phaze.report.report import Report, Written, page_of
from phaze.report.verdicts import Checklist, checks_section, run_checks
from phaze.tables import Checks

Subject = TypeVar("Subject")
Key = TypeVar("Key")
Rows = Iterable[tuple[tuple[object, ...], Mapping[Key, str]]]
"""Words at the left of each row, then cells by key."""


def case_page(
    page: str,
    subtitle: str,
    subject: Subject,
    checks: tuple[str, Checklist[Subject], str],
    tables: Written,
    answer: Callable[[pd.DataFrame], FirstScreen],
    sections: Iterable[Section],
    last: Iterable[Section] = (),
) -> Report:
    """The page of a study's cases, with its checks: name of their table, what must hold, and of what.

    The answer is made from table checks; sections stand before that of the checks, the last ones behind it.
    """
    name, checklist, of = checks
    found = run_checks(checklist, subject)
    shown = (*sections, checks_section(found, name, f"What must hold of any {of}"), *last)
    return page_of(page, subtitle, answer(found), shown, {**tables, name: (Checks, found)})


def missing(
    sentences: Iterable[str], about: str = "What is printed and has nothing here to stand beside."
) -> Iterator[Section]:
    """What cannot be compared, and why, if there is something."""
    if found := tuple(sentences):
        yield Section("missing", "Missing", about, (Items(found),))


def notes(*sentences: str) -> Section:
    """How numbers are made, in sentences."""
    about = "What to know when reading them."
    return Section("method", "How these numbers are made", about, (Items(sentences),))


def wide(
    caption: str,
    words: tuple[str, ...],
    columns: Mapping[Key, str],
    rows: Rows[Key],
    source: str = "",
    *,
    folded: bool = False,
) -> Sheet:
    """A table as shown with words at the left, then a column for every key; a dash where a row has none."""
    cells = tuple((*map(str, said), *(found.get(key, "–") for key in columns)) for said, found in rows)
    return Sheet(caption, (*words, *columns.values()), cells, len(words), source=source, folded=folded)
