"""The report stage: from the tables of a study to result tables, Markdown and a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain

from phaze.report import inside, overview, record, strategies
from phaze.report.answer import answer
from phaze.report.beside import beside_paper
from phaze.report.certificate import certificate
from phaze.report.document import Document, Section
from phaze.report.drawing import Drawn, draw
from phaze.report.findings import RESULT_TABLES, Findings, Part, summarise
from phaze.report.front import front
from phaze.report.inputs import Inputs
from phaze.report.mapped import on_networks
from phaze.report.planners import compared
from phaze.report.report import Report
from phaze.report.simulated import replayed
from phaze.report.workers import ALONE, Workers
from phaze.tables import TABLES

LONG: tuple[Part, ...] = (beside_paper,)
"""Parts that look into many large tables: a worker composes them beside the others."""


def build_report(inputs: Inputs, workers: Workers = ALONE) -> Report:
    """Return the report of a study, which workers check and draw the figures of."""
    return compose(inputs, summarise(inputs, workers), workers)


def compose(inputs: Inputs, findings: Findings, workers: Workers = ALONE) -> Report:
    """Return the report of what is found in a study; workers draw a part while the next is composed."""
    shown = findings.in_order(inputs.study.models)
    parts = (
        *overview.PARTS, certificate, front, *inside.PARTS, compared, replayed, on_networks,
        *strategies.PARTS, *record.PARTS,
    )  # fmt: skip
    waiting = {part: workers.ask(partial(_sections, part, inputs, shown)) for part in LONG}
    sections, asked = dict[Part, tuple[Section, ...]](), dict[str, Callable[[], Drawn]]()
    for part in sorted(parts, key=waiting.__contains__):
        sections[part] = waiting[part]() if part in waiting else _sections(part, inputs, shown)
        charts = chain.from_iterable(section.charts for section in sections[part])
        asked |= {chart.name: workers.ask(partial(draw, chart)) for chart in charts}
    name = next(iter(inputs.clusters))
    document = Document(
        title="phaze",
        subtitle=f"{_count(len(inputs.study.models), 'workload')}, scenario {name}",
        answer=answer(inputs, shown),
        sections=tuple(chain.from_iterable(sections[part] for part in parts)),
        tables=findings.tables(),
    )
    return Report(document, {name: TABLES[name] for name in RESULT_TABLES}, asked)


def _sections(part: Part, inputs: Inputs, findings: Findings) -> tuple[Section, ...]:
    return tuple(part(inputs, findings))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
