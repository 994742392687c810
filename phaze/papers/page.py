"""Page of all papers: for each, published results, our results, and the reasons for differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd

from phaze.pages import page_words
from phaze.pages.document import Block, Chart, FirstScreen, Heading, Items, Prose, Section, Sheet
from phaze.pages.page import NamedTables, Report, page_of
from phaze.pages.verdicts import checks_section
from phaze.papers.claims import claims_sheet
from phaze.papers.publications import Publication
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
    claim_tables = {key: frame for key, (contract, frame) in tables.items() if contract is Claims}
    check_tables = {key: frame for key, (contract, frame) in tables.items() if contract is Checks}
    source, claims = next(iter(claim_tables.items()), ("", Claims.empty()))
    printed = published or Publication(title=name, citation="nothing is published beside these results")
    shown: list[Block] = [claims_sheet(claims, source)] if len(claims) else []
    for block in (*blocks, *(checks_section(table, key, CHECKED) for key, table in check_tables.items())):
        if isinstance(block, Section):
            shown += (Heading(block.title), Prose(block.about), *block.blocks)
        else:
            shown.append(block)
    remarks = {
        "What is missing": (*missing, *printed.missing),
        "How these numbers are made": (*notes, *printed.notes),
    }
    for heading, sentences in remarks.items():
        shown += [Heading(heading), Items(sentences)] if sentences else []
    prefixed = (
        replace(block, name=f"{name}-{block.name}") if isinstance(block, Chart) else block for block in shown
    )
    title = f"{printed.title}. {printed.citation}."
    return Paper(name, title, answer, tuple(prefixed), claims, tables, beside or {})


def build_page(papers: Iterable[Paper]) -> Report:
    """Build the page of the given papers, with all of their tables."""
    shown = tuple(papers)
    rows = tuple((paper.title, f"{paper.claims['holds'].sum()} of {len(paper.claims)}") for paper in shown)
    holding = sum(int(paper.claims["holds"].sum()) for paper in shown)
    count = sum(len(paper.claims) for paper in shown)
    sheet = Sheet("Reproduced claims", ("paper", "claims"), rows)
    sentence = (
        f"{holding} of {count} claims. Each paper's part says why the others differ, as far as the reasons "
        "are known."
    )
    answers = " ".join(f"{paper.name.capitalize()}: {paper.answer}" for paper in shown)
    facts = ((f"{holding} of {count}", "claims of the papers reproduced"),)
    answer = FirstScreen("Which results of the papers do we reproduce?", sentence, facts, sheet, answers)
    sections = (Section(paper.name, paper.name.capitalize(), paper.title, paper.blocks) for paper in shown)
    tables = {name: table for paper in shown for name, table in paper.tables.items()}
    beside = {name: frame for paper in shown for name, frame in paper.shown.items()}
    return page_of("papers.html", ", ".join(paper.name for paper in shown), answer, sections, tables, beside)
