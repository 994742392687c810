"""The report stage: from the tables of a study to result tables, Markdown and a page."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from phaze.report import inside, overview, record, strategies
from phaze.report.answer import answer
from phaze.report.certificate import certificate
from phaze.report.document import Document
from phaze.report.findings import RESULT_TABLES, Findings, summarise
from phaze.report.front import front
from phaze.report.inputs import Inputs
from phaze.report.mapped import on_networks
from phaze.report.planners import compared
from phaze.report.report import Report
from phaze.report.simulated import replayed
from phaze.tables import TABLES


def build_report(inputs: Inputs, processes: int = 1) -> Report:
    """Return the report of a study, whose figures so many processes draw."""
    return replace(compose(inputs, summarise(inputs)), processes=processes)


def compose(inputs: Inputs, findings: Findings) -> Report:
    """Return the report of what is found in a study."""
    shown = findings.in_order(inputs.study.models)
    parts = (
        *overview.PARTS, certificate, front, *inside.PARTS, compared, replayed, on_networks,
        *strategies.PARTS, *record.PARTS,
    )  # fmt: skip
    name = next(iter(inputs.clusters))
    document = Document(
        title="phaze",
        subtitle=f"{_count(len(inputs.study.models), 'workload')}, scenario {name}",
        answer=answer(inputs, shown),
        sections=tuple(chain.from_iterable(part(inputs, shown) for part in parts)),
        tables=findings.tables(),
    )
    return Report(document, {name: TABLES[name] for name in RESULT_TABLES})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
