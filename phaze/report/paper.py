"""The part of the report that stands beside a publication: accelerators, utilisation, claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pandas as pd

from phaze.report import charts
from phaze.report.document import Block, Chart, Section, Sheet
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.verdicts import claims_sheet
from phaze.report.winners import (
    COMMON,
    PER_MODEL,
    baseline_design,
    chip_of,
    common_name,
    is_beside,
    row_of,
)
from phaze.report.words import compute, percent, seconds, short, storing, times, widths
from phaze.spec.published import Published, PublishedArchitecture, PublishedWorkload


@dataclass(frozen=True)
class Printed:
    """A publication with the study that it is shown beside."""

    inputs: Inputs
    findings: Findings
    published: Published

    def workloads(self) -> Iterator[tuple[str, PublishedWorkload, pd.Series]]:
        """Yield name, printed figures and our best row of every workload that has both."""
        for model in self.inputs.study.models:
            row = row_of(self.findings.results, model, PER_MODEL)
            if model in self.published.workloads and row is not None:
                yield model, self.published.workloads[model], row

    def designs(self) -> dict[str, str]:
        """Return our design for every kind of utilisation that is printed."""
        baseline = self.inputs.study.architectures.baseline
        expert = baseline_design(self.inputs.study)
        names = {"baseline_expert": expert, "baseline": baseline, "common": self.common}
        return {kind: name for kind, name in names.items() if name is not None}

    @property
    def common(self) -> str:
        """Return the design that is the printed common accelerator; ours where none of that is named."""
        return common_name(self.inputs, self.published) or COMMON

    def mfu(self, model: str, kind: str) -> float | None:
        """Return the printed utilisation, or None."""
        mfu = self.published.workloads[model].mfu if model in self.published.workloads else None
        return None if mfu is None else float(getattr(mfu, kind))

    def source(self, kind: str) -> str:
        """Return where a kind of figure is printed."""
        return self.published.sources.get(kind, "the publication")


def printed_of(inputs: Inputs, findings: Findings) -> Printed | None:
    """Return the study's publication, if it shows one of its own baseline."""
    published = inputs.published
    return Printed(inputs, findings, published) if published and is_beside(inputs.study, published) else None


def printed_compute(chip: PublishedArchitecture) -> str:
    """Return {num_tc, num_vc, pe_x, pe_y, pe_vc} as printed."""
    return "{" + ", ".join(str(n) for n in (chip.num_tc, chip.num_vc, chip.pe_x, chip.pe_y, chip.pe_vc)) + "}"


def accelerators_sheet(printed: Printed) -> Sheet:
    """Return our best accelerators and placements, each above the printed one."""
    rows: list[tuple[str, ...]] = []
    marked = set()
    for model, theirs, row in printed.workloads():
        chip = chip_of(printed.inputs.cluster, row)
        marked.add(len(rows))
        rows.append(
            (
                model, "ours", compute(chip), short(chip["glb_bytes"]), f"{row['hbm_gib']:g} GiB",
                widths(row),
                str(row["microbatch"]), storing(row["recompute"]),
            )
        )  # fmt: skip
        if theirs.architecture and theirs.placement:
            a, p = theirs.architecture, theirs.placement
            rows.append(
                (
                    "", "paper", printed_compute(a), f"{a.glb_mib:g} MiB", f"{a.hbm_gib:g} GiB",
                    f"{{{p.pipeline}, {p.data}, {p.tensor}}}", str(p.microbatch), storing(p.recompute),
                )
            )  # fmt: skip
    header = ("workload", "whose", "cores", "buffer", "HBM", "{p, d, t}", "microbatch", "activations")
    caption = f"Best accelerator and placement of every workload beside {printed.source('architecture')}"
    return Sheet(caption, header, tuple(rows), 8, frozenset(marked), "results")


def utilisation_sheet(printed: Printed) -> Sheet:
    """Return MFU and time per batch beside the printed MFU and the time that it implies."""
    rows = []
    for model in printed.inputs.study.models:
        for kind, design in printed.designs().items():
            row = row_of(printed.findings.results, model, design)
            if row is None:
                continue
            theirs = printed.mfu(model, kind)
            implied = implied_s(printed, row, kind, theirs)
            rows.append(
                (
                    model, design, percent(row["mfu"]), percent(theirs) if theirs else "–",
                    seconds(row["time_per_batch_s"]), seconds(implied) if implied else "–",
                    times(row["speedup"]), _printed_speedup(printed, model, kind),
                )
            )  # fmt: skip
    header = (
        "workload",
        "design",
        "MFU",
        "paper",
        "time per batch",
        "paper, implied",
        "speed-up",
        "paper, implied",
    )
    caption = f"Utilisation, time per batch and speed-up beside {printed.source('mfu')}"
    return Sheet(caption, header, tuple(rows), 2, source="results")


def peak_flops(inputs: Inputs, chip: pd.Series | PublishedArchitecture) -> float:
    """Return matrix multiplication FLOP/s of a chip, 2 per multiply-accumulate unit and cycle."""
    if isinstance(chip, PublishedArchitecture):
        units = chip.num_tc * chip.pe_x * chip.pe_y
    else:
        units = int(chip["num_tc"] * chip["pe_x"] * chip["pe_y"])
    return 2.0 * units * inputs.cluster.scenario.clock_hz


def implied_s(printed: Printed, row: pd.Series, kind: str, mfu: float | None) -> float | None:
    """Return the time per batch that a printed MFU implies, with our FLOPs per batch and that chip's peak."""
    if mfu is None or (kind == "common" and printed.published.common is None):
        return None
    ours = peak_flops(printed.inputs, chip_of(printed.inputs.cluster, row))
    theirs = (
        ours if printed.published.common is None else peak_flops(printed.inputs, printed.published.common)
    )
    peak = theirs if kind == "common" else ours
    return float(row["time_per_batch_s"] * row["mfu"] * ours / (mfu * peak))


def _printed_speedup(printed: Printed, model: str, kind: str) -> str:
    ratio = printed_speedups(printed).get((model, printed.designs()[kind]))
    return times(ratio) if ratio else "–"


def printed_speedups(printed: Printed) -> dict[tuple[str, str], float]:
    """Return the speed-ups that the printed utilisations imply where chips have the same peak."""
    found: dict[tuple[str, str], float] = {}
    for model, workload in printed.published.workloads.items():
        if workload.mfu:
            for kind, design in printed.designs().items():
                if kind == "baseline_expert":
                    continue
                found[model, design] = getattr(workload.mfu, kind) / workload.mfu.baseline_expert
    return found


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


_CLAIMS = (
    "Whether each claim about the best accelerators holds for ours; a speed-up agrees if it is within 10 %."
)


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
