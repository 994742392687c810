"""Our results beside a publication's, and why they differ: every reason is computed from the tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from phaze.base.units import MIB
from phaze.report.anatomy import limits_of
from phaze.report.document import Sheet
from phaze.report.excluded import least_bound, limits_on_all_cores
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs, Point
from phaze.report.winners import (
    COMMON,
    PER_MODEL,
    baseline_design,
    chip_of,
    common_name,
    in_order,
    is_beside,
    row_of,
    same_as,
    with_areas,
)
from phaze.report.words import LIMITS, compute, percent, seconds, short, size, storing, times, widths
from phaze.spec.published import Published, PublishedArchitecture, PublishedWorkload
from phaze.tables import Layers


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
            implied = _implied_s(printed, row, kind, theirs)
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


def _implied_s(printed: Printed, row: pd.Series, kind: str, mfu: float | None) -> float | None:
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


def reasons(printed: Printed, model: str) -> tuple[str, ...]:
    """Return why our result for a workload differs from the printed one, as far as the tables tell."""
    row = row_of(printed.findings.results, model, PER_MODEL)
    theirs = printed.published.workloads.get(model)
    if row is None or theirs is None:
        return ()
    return (
        *_about_accelerator(printed, theirs, row),
        *_about_placement(printed, theirs, row),
        *_about_utilisation(printed, model),
    )


def _about_accelerator(printed: Printed, theirs: PublishedWorkload, row: pd.Series) -> Iterator[str]:
    chip = theirs.architecture
    if chip is None:
        return
    cluster = printed.inputs.cluster
    ours = chip_of(cluster, row)
    if compute(ours) == printed_compute(chip) and ours["glb_bytes"] == chip.glb_mib * MIB:
        yield "The accelerator is the paper's."
        return
    name = f"The paper's accelerator {printed_compute(chip)} with {chip.glb_mib:g} MiB"
    same = same_as(cluster.architectures, chip)
    placed = with_areas(
        cluster,
        cluster.placements[cluster.placements["architecture"].isin(same["architecture"])],
    )
    placed = placed[
        (placed["model"] == row["model"]) & (placed["planner"] == "phaze") & (placed["status"] == "placed")
    ]
    if same.empty:
        yield f"{name} is not among the architectures of this study."
    elif placed.empty:
        yield name + _excluded(printed, str(same["architecture"].iloc[0]), row)
    else:
        best = in_order(placed).iloc[0]
        slower = best["time_per_batch_s"] / row["time_per_batch_s"] - 1
        takes = f"{name} takes {seconds(best['time_per_batch_s'])} here, {_slower(slower)} ours"
        yield takes + _limits(printed, best, row)


def _excluded(printed: Printed, architecture: str, ours: pd.Series) -> str:
    """Return why an architecture was not placed, as the rest of a sentence."""
    if printed.inputs.study.screen.strategy == "hysteresis":
        return " was not visited before the walk down the areas ended."
    bound = least_bound(printed.inputs, str(ours["model"]), architecture)
    if bound is None:
        return " was left out by the screen."
    slower = bound["lower_s"] / ours["time_per_batch_s"] - 1
    exact = math.isclose(bound["lower_s"], bound["feasible_s"], rel_tol=1e-9)
    takes = f" takes {'' if exact else 'at least '}{seconds(bound['lower_s'])} here, {_slower(slower)} ours"
    there, here = limits_on_all_cores(printed.inputs, bound), limits_on_all_cores(printed.inputs, ours)
    if there.empty or here.empty:
        return f"{takes}: the screen excluded it."
    binds = f"with every operator on all cores there {_shares(there)}, on ours {_shares(here)} of their time"
    return f"{takes}, which excluded it: {binds}."


def _slower(excess: float) -> str:
    if abs(excess) < 5e-4:
        return "as long as"
    return f"{percent(abs(excess))} {'longer' if excess > 0 else 'less'} than"


def _limits(printed: Printed, theirs: pd.Series, ours: pd.Series) -> str:
    """Return what binds the operators on two accelerators, as the rest of a sentence."""
    cluster, inputs = printed.inputs.cluster, printed.inputs
    there, here = limits_of(cluster, inputs, theirs), limits_of(cluster, inputs, ours)
    if there.empty or here.empty:
        return "."
    return f": there {_shares(there)}, on ours {_shares(here)} of the time in operators."


def _shares(limits: pd.Series) -> str:
    """Return the largest limits in words."""
    largest = limits[limits >= 0.05].sort_values(ascending=False)
    return ", ".join(f"{LIMITS[str(name)]} binds {percent(share, 0)}" for name, share in largest.items())


def _about_placement(printed: Printed, theirs: PublishedWorkload, row: pd.Series) -> Iterator[str]:
    plan = theirs.placement
    if plan is None:
        return
    printed_widths = f"{{{plan.pipeline}, {plan.data}, {plan.tensor}}}"
    if printed_widths == widths(row):
        yield "The placement is the paper's."
        return
    weights = _weight_bytes(printed, Point(row["model"], plan.tensor, int(row["microbatch"]))) / plan.pipeline
    if weights:
        bandwidth = printed.inputs.cluster.scenario.network_bandwidth_bytes_per_s
        sent = 4 * (plan.data - 1) / plan.data * weights
        about = "" if plan.pipeline == 1 else "about "
        yield (
            f"The paper places it as {printed_widths}. Synchronising the gradients of that first stage "
            f"({about}{size(weights)}) over {plan.data} pipelines takes "
            f"{about}{seconds(sent / bandwidth)} a batch at {size(bandwidth)}/s; our {widths(row)} "
            f"takes {seconds(row['time_per_batch_s'])} in all, {percent(_part(printed, row, 'sync'))} "
            f"of it synchronisation and {percent(_part(printed, row, 'fill'))} filling the pipeline."
        )
        yield from _about_synchronisation(printed, str(row["model"]), sent)


def _about_synchronisation(printed: Printed, model: str, sent_bytes: float) -> Iterator[str]:
    """Yield what network the printed utilisation needs for the synchronisation alone, if a faster one."""
    row = row_of(printed.findings.results, model, printed.common)
    implied = _implied_s(printed, row, "common", printed.mfu(model, "common")) if row is not None else None
    bandwidth = printed.inputs.cluster.scenario.network_bandwidth_bytes_per_s
    if implied is not None and sent_bytes / implied > bandwidth:
        yield (
            "The utilisation that the paper prints for its common accelerator implies "
            f"{seconds(implied)} for a whole batch; the synchronisation of that placement alone would "
            f"need {size(sent_bytes / implied)}/s. So the printed figures leave it out, overlap it, count "
            f"FLOPs otherwise, or assume a faster network than {size(bandwidth)}/s."
        )


def _weight_bytes(printed: Printed, point: Point) -> float:
    """Return the weights of one slice of a model, 0 if it was not extracted for that TMP width."""
    if point.tensor not in printed.inputs.study.workloads[point.model].tensor:
        return 0.0
    layers = printed.inputs.details.rows(Layers, point, "").set_index("layer")["parameter_bytes"]
    graph = printed.inputs.graphs[printed.inputs.graphs["model"] == point.model]
    return float((graph["layer"].map(layers) * graph["count"]).sum())


def _part(printed: Printed, row: pd.Series, part: str) -> float:
    table = printed.findings.breakdowns
    mine = table[(table["model"] == row["model"]) & (table["design"] == row["design"])]
    return float(mine[f"{part}_s"].iloc[0] / row["time_per_batch_s"]) if len(mine) else float("nan")


def _about_utilisation(printed: Printed, model: str) -> Iterator[str]:
    """Yield where the time goes on the designs whose utilisation is printed."""
    for kind, design in printed.designs().items():
        theirs = printed.mfu(model, kind)
        row = row_of(printed.findings.results, model, design)
        if theirs is None or row is None:
            continue
        limits = limits_of(printed.inputs.cluster, printed.inputs, row)
        binds = f"; {_shares(limits)} of the time in operators" if len(limits) else ""
        yield (
            f"{design}: utilisation {percent(row['mfu'])} (paper {percent(theirs)}); of the time per "
            f"batch {percent(_part(printed, row, 'fill'))} fills the pipeline, "
            f"{percent(_part(printed, row, 'sync'))} synchronises gradients{binds}. It runs as "
            f"{widths(row)}, microbatch {row['microbatch']}, {storing(row['recompute'])}."
        )
