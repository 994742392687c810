"""The report stage: from the tables of a study to result tables, Markdown and a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pandas as pd

from phaze.report import inside, overview, record, strategies
from phaze.report.answer import answer
from phaze.report.assumptions import assumptions
from phaze.report.beside import ask_for_differences, differences
from phaze.report.certificate import certificate
from phaze.report.document import Document, Section
from phaze.report.drawing import Drawn, Kept, ask_for_figure
from phaze.report.findings import RESULT_TABLES, Findings, Part, find
from phaze.report.front import front
from phaze.report.inputs import Inputs
from phaze.report.mapped import on_networks
from phaze.report.planners import compared
from phaze.report.read import readings
from phaze.report.recommended import recommended
from phaze.report.report import Report
from phaze.report.simulated import replayed
from phaze.report.workers import ALONE, Workers
from phaze.tables import TABLES


def build_report(inputs: Inputs, workers: Workers = ALONE, kept: Kept | None = None) -> Report:
    """Return the report of a study, which workers check and draw the figures of that are not kept."""
    workers.share(inputs)
    findings, checks = find(inputs, workers)
    return compose(inputs, findings, checks, workers, kept)


def compose(
    inputs: Inputs,
    findings: Findings,
    checks: Callable[[], pd.DataFrame],
    workers: Workers = ALONE,
    kept: Kept | None = None,
) -> Report:
    """Return the report of what is found in a study, with checks that may have to be waited for.

    Workers draw the figures of a part while the next is composed; parts that others make come last.
    """
    shown = findings.in_order(inputs.study.models)
    workers.share(shown)
    parts = (
        readings, recommended, assumptions, *overview.PARTS, certificate, front, *inside.PARTS, compared,
        replayed, on_networks, *strategies.PARTS, *record.PARTS,
    )  # fmt: skip
    waiting: dict[Part, Callable[[], tuple[Section, ...]]] = {
        differences: ask_for_differences(inputs, shown, workers),
        record.checks: lambda: tuple(record.checks(inputs, replace(shown, checks=checks()))),
    }
    sections, asked = dict[Part, tuple[Section, ...]](), dict[str, Callable[[], Drawn]]()
    for part in sorted(parts, key=waiting.__contains__):
        sections[part] = waiting[part]() if part in waiting else tuple(part(inputs, shown))
        charts = chain.from_iterable(section.charts for section in sections[part])
        asked |= {chart.name: ask_for_figure(chart, workers, kept) for chart in charts}
    name = next(iter(inputs.clusters))
    document = Document(
        title="phaze",
        subtitle=f"{_count(len(inputs.study.models), 'workload')}, scenario {name}",
        answer=answer(inputs, replace(shown, checks=checks())),
        sections=tuple(chain.from_iterable(sections[part] for part in parts)),
        tables=replace(findings, checks=checks()).tables(),
    )
    return Report(document, {name: TABLES[name] for name in RESULT_TABLES}, asked)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
