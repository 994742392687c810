"""Shared parts of a study's case pages: the page with its checks, and the notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pandas as pd

from phaze.report.document import FirstScreen, Items, Section
from phaze.report.report import Report, Written, page_of
from phaze.report.verdicts import Checklist, checks_section, run_checks
from phaze.tables import Checks

Subject = TypeVar("Subject")


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
    """Build the page of a study's cases, with its checks.

    `checks` has the name of their table, the checklist, and the subject of the checks as text. `answer`
    builds the first screen from table checks. `sections` precede the section of the checks; `last` follow it.
    """
    name, checklist, of = checks
    found = run_checks(checklist, subject)
    shown = (*sections, checks_section(found, name, f"What must hold of any {of}"), *last)
    return page_of(page, subtitle, answer(found), shown, {**tables, name: (Checks, found)})


def notes(*sentences: str) -> Section:
    """Build the section on how the numbers are computed."""
    about = "What to know when reading them."
    return Section("method", "How these numbers are made", about, (Items(sentences),))
