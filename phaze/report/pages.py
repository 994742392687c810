"""Shared parts of the pages that compare the cases of a study with publications."""

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
"""Rows of a wide table: the text cells on the left, then the other cells by key."""


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
    """Page of a study's cases, with its checks.

    `checks` has the name of their table, the checklist, and the subject of the checks as text. `answer`
    builds the first screen from table checks. `sections` precede the section of the checks; `last` follow it.
    """
    name, checklist, of = checks
    found = run_checks(checklist, subject)
    shown = (*sections, checks_section(found, name, f"What must hold of any {of}"), *last)
    return page_of(page, subtitle, answer(found), shown, {**tables, name: (Checks, found)})


def missing(
    sentences: Iterable[str], about: str = "What is printed and has nothing here to stand beside."
) -> Iterator[Section]:
    """Section on values that cannot be compared, and why; none without sentences."""
    if found := tuple(sentences):
        yield Section("missing", "Missing", about, (Items(found),))


def notes(*sentences: str) -> Section:
    """Section on how the numbers are computed."""
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
    """Displayed table with text columns on the left, then one column per key; missing cells are dashes."""
    cells = tuple((*map(str, said), *(found.get(key, "–") for key in columns)) for said, found in rows)
    return Sheet(caption, (*words, *columns.values()), cells, len(words), source=source, folded=folded)
