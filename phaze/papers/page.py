"""Page of all papers: for each, published results, our results, and the reasons for differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd

from phaze.papers.claims import claims_sheet
from phaze.papers.publications import Publication
from phaze.report import page_words
from phaze.report.document import Block, Chart, FirstScreen, Heading, Items, Prose, Section, Sheet
from phaze.report.report import NamedTables, Report, page_of
from phaze.report.verdicts import checks_section
from phaze.tables import Checks, Claims

words_of = partial(page_words.words_of, folder=Path(__file__).parent / "texts")
"""Texts of a paper's section, by the paper's name."""
CHECKED = "What must hold of any results of this kind."


@dataclass(frozen=True)
class Paper:
    """Section of a paper on the page, with its tables."""

    name: str
    """Anchor of the section, and prefix of its figure names."""
    title: str
    answer: str
    """Summary of the comparison, in sentences."""
    blocks: tuple[Block, ...]
    claims: pd.DataFrame
    """Table `claims`; empty if no claim of the paper is checked."""
    tables: NamedTables
    shown: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """Tables of other pages that this section also shows."""


def paper_of(
    name: str,
    published: Publication | None,
    answer: str,
    blocks: Iterable[Block | Section],
    tables: NamedTables,
    *,
    missing: Iterable[str] = (),
    notes: Iterable[str] = (),
    beside: Mapping[str, pd.DataFrame] | None = None,
) -> Paper:
    """Section of a paper on the page: its claims, then blocks and subsections, then its checks.

    Claims and checks are found among the tables, by their contract. Names of figures are prefixed by the
    paper's name so that they are unique on the page.
    """
    claims = {key: frame for key, (contract, frame) in tables.items() if contract is Claims}
    checks = {key: frame for key, (contract, frame) in tables.items() if contract is Checks}
    source, found = next(iter(claims.items()), ("", Claims.empty()))
    printed = published or Publication(title=name, citation="nothing is published beside these results")
    shown: list[Block] = [claims_sheet(found, source)] if len(found) else []
    for one in (*blocks, *(checks_section(table, key, CHECKED) for key, table in checks.items())):
        shown += (Heading(one.title), Prose(one.about), *one.blocks) if isinstance(one, Section) else (one,)
    absent, told = (*missing, *printed.missing), (*notes, *printed.notes)
    for heading, sentences in (("What is missing", absent), ("How these numbers are made", told)):
        shown += [Heading(heading), Items(sentences)] if sentences else []
    own = (replace(one, name=f"{name}-{one.name}") if isinstance(one, Chart) else one for one in shown)
    title = f"{printed.title}. {printed.citation}."
    return Paper(name, title, answer, tuple(own), found, tables, beside or {})


def build_page(papers: Iterable[Paper]) -> Report:
    """Build the page of the given papers, with all of their tables."""
    shown = tuple(papers)
    rows = tuple((one.title, f"{one.claims['holds'].sum()} of {len(one.claims)}") for one in shown)
    held, count = (sum(int(of(one.claims["holds"])) for one in shown) for of in (pd.Series.sum, len))
    sheet = Sheet("Claims that hold here", ("paper", "claims"), rows)
    sentence = (
        f"Of {count} claims of the papers {count - held} do not hold here and {held} do. The reasons, as far "
        "as they are known, stand with each paper."
    )
    more = " ".join(f"{one.name.capitalize()}: {one.answer}" for one in shown)
    facts = ((f"{held} of {count}", "claims of the papers that hold here"),)
    answer = FirstScreen(
        "What of the papers comes out here, and what does not?", sentence, facts, sheet, more
    )
    sections = (Section(one.name, one.name.capitalize(), one.title, one.blocks) for one in shown)
    tables = {name: table for one in shown for name, table in one.tables.items()}
    beside = {name: frame for one in shown for name, frame in one.shown.items()}
    return page_of("papers.html", ", ".join(one.name for one in shown), answer, sections, tables, beside)
