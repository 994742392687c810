"""The part of the report that stands beside a publication: accelerators, utilisation, claims, differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pandas as pd

from phaze.report import charts
from phaze.report.claims import claims_sheet
from phaze.report.compare import Printed, accelerators_sheet, printed_of, reasons, utilisation_sheet
from phaze.report.document import Block, Chart, Heading, Items, Section
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.winners import row_of
from phaze.report.workers import ALONE, Workers


def beside_paper(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the sections on the publication: accelerators, utilisation, claims."""
    printed = printed_of(inputs, findings)
    if printed is None or not any(True for _ in printed.workloads()):
        return
    blocks: list[Block] = [accelerators_sheet(printed), utilisation_sheet(printed)]
    ours, theirs = _utilisation_tables(printed)
    if len(theirs):
        blocks.insert(
            1,
            Chart(
                "utilisation",
                "Model FLOPs utilisation, ours beside the paper's",
                "Filled: ours. Hollow: printed. The line between them is the difference.",
                partial(charts.utilisations, ours, theirs),
            ),
        )
    about = f"{printed.published.title}. {printed.published.citation}."
    yield Section("paper", "Beside the paper", about, tuple(blocks))
    if len(findings.claims):
        sheet = claims_sheet(findings.claims, "claims")
        yield Section("claims", "The paper's claims as checks", _CLAIMS, (sheet,))


def differences(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on why we differ from the publication."""
    yield from ask_for_differences(inputs, findings, ALONE)()


def ask_for_differences(
    inputs: Inputs, findings: Findings, workers: Workers
) -> Callable[[], tuple[Section, ...]]:
    """Return what waits for the same section: workers look for the reasons in many large tables."""
    printed = printed_of(inputs, findings)
    if printed is None:
        return tuple
    asked = {model: workers.ask(partial(reasons, printed, model)) for model, _, _ in printed.workloads()}
    return partial(_differences, printed, asked) if asked else tuple


_CLAIMS = (
    "Whether each claim about the best accelerators holds for ours; a speed-up agrees if it is within 10 %."
)
_DIFFERENCES = "Computed from the tables of this study; nothing is tuned to the printed numbers."


def _utilisation_tables(printed: Printed) -> tuple[pd.DataFrame, pd.DataFrame]:
    ours, theirs = {}, {}
    for model in printed.inputs.study.models:
        rows = {kind: row_of(printed.findings.results, model, d) for kind, d in printed.designs().items()}
        if all(row is not None for row in rows.values()):
            ours[model] = {
                printed.designs()[kind]: row["mfu"] for kind, row in rows.items() if row is not None
            }
            found = {printed.designs()[kind]: printed.mfu(model, kind) for kind in rows}
            theirs[model] = {design: value for design, value in found.items() if value is not None}
    return pd.DataFrame.from_dict(ours, orient="index"), pd.DataFrame.from_dict(theirs, orient="index")


def _differences(printed: Printed, asked: Mapping[str, Callable[[], tuple[str, ...]]]) -> tuple[Section, ...]:
    blocks: list[Block] = [Items(printed.published.notes)]
    for model, wait in asked.items():
        found = wait()
        if found:
            label = printed.published.workloads[model].label
            blocks += [Heading(f"{model} ({label} in the paper)"), Items(found)]
    return (Section("differences", "Where we differ, and why", _DIFFERENCES, tuple(blocks)),)
