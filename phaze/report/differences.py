"""Why our results differ from a publication's: every reason is computed from the tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from phaze.base.units import MIB
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.layout import Layout, layouts_of
from phaze.report.anatomy import layer_counts, limits_of, point_of, shares_of_limits, with_estimates
from phaze.report.document import Block, Heading, Items, Section
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs, Only, Slicing
from phaze.report.paper import Printed, as_row, implied_s, printed_of
from phaze.report.winners import PER_MODEL, chip_of, in_order, row_of, same_as, with_areas
from phaze.report.words import LIMITS, compute, percent, samples, seconds, size, storing, widths
from phaze.spec.published import PublishedWorkload
from phaze.tables import Layers, Operators, Screens
from phaze.tables.columns import layout_of


def differences(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """The section on why results differ from the publication's."""
    printed = printed_of(inputs, findings)
    workloads = [] if printed is None else list(printed.workloads())
    if printed is None or not workloads:
        return
    blocks: list[Block] = [Items(printed.published.notes)]
    for model, theirs, _ in workloads:
        if found := reasons(printed, model):
            blocks += [Heading(f"{model} ({theirs.label} in the paper)"), Items(found)]
    about = "Computed from the tables of this study; nothing is tuned to the printed numbers."
    yield Section("differences", "Where we differ, and why", about, tuple(blocks))


def reasons(printed: Printed, model: str) -> tuple[str, ...]:
    """Why our result for a workload differs from the printed one, as far as the tables tell."""
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
    if compute(ours) == compute(as_row(chip)) and ours["glb_bytes"] == chip.glb_mib * MIB:
        yield "The accelerator is the paper's."
        return
    name = f"The paper's accelerator {compute(as_row(chip))} with {chip.glb_mib:g} MiB"
    same, every = same_as(cluster.architectures, chip), cluster.placements
    mine = (every["model"] == row["model"]) & every["architecture"].isin(same["architecture"])
    placed = every[mine & (every["planner"] == "phaze") & (every["status"] == "placed")]
    if same.empty:
        yield f"{name} is not among the architectures of this study."
    elif placed.empty:
        yield name + _excluded(printed, str(same["architecture"].iloc[0]), row)
    else:
        best = in_order(with_areas(cluster, placed)).iloc[0]
        slower = best["time_per_batch_s"] / row["time_per_batch_s"] - 1
        takes = f"{name} takes {seconds(best['time_per_batch_s'])} here, {_slower(slower)} ours"
        there, here = limits_of(printed.inputs, best), limits_of(printed.inputs, row)
        binds = f": there {_shares(there)}, on ours {_shares(here)} of the time in operators"
        yield f"{takes}{'' if there.empty or here.empty else binds}."


def _excluded(printed: Printed, architecture: str, ours: pd.Series) -> str:
    """Why an architecture was not placed, as the rest of a sentence."""
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


def _shares(limits: pd.Series) -> str:
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
    layout = replace(layout_of(row), tp=plan.tensor)
    weights = _weight_bytes(printed, str(row["model"]), layout) / plan.pipeline
    if weights:
        bandwidth = printed.inputs.cluster.scenario.network_bandwidth_bytes_per_s
        sent = Flat(bandwidth, BOTH_DIRECTIONS).charged_bytes("all_reduce", weights, plan.data)
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
    """Network that the printed utilisation needs for the synchronisation alone, if a faster one."""
    row = row_of(printed.findings.results, model, printed.common)
    implied = implied_s(printed, row, "common", printed.mfu(model, "common")) if row is not None else None
    bandwidth = printed.inputs.cluster.scenario.network_bandwidth_bytes_per_s
    if implied is not None and sent_bytes / implied > bandwidth:
        yield (
            "The utilisation that the paper prints for its common accelerator implies "
            f"{seconds(implied)} for a whole batch; the synchronisation of that placement alone would "
            f"need {size(sent_bytes / implied)}/s. So the printed figures leave it out, overlap it, count "
            f"FLOPs otherwise, or assume a faster network than {size(bandwidth)}/s."
        )


def _weight_bytes(printed: Printed, model: str, layout: Layout) -> float:
    """The weights of one slice of a model, 0 if it was not extracted for that TMP width."""
    if layout.tp not in printed.inputs.study.workloads[model].tensor:
        return 0.0
    layers = printed.inputs.details.rows(Layers, Slicing(model, layout.key), "")
    weights = layers.set_index("layer")["parameter_bytes"]
    graph = printed.inputs.graphs[printed.inputs.graphs["model"] == model]
    return float((graph["layer"].map(weights) * graph["count"]).sum())


def _part(printed: Printed, row: pd.Series, part: str) -> float:
    table = printed.findings.breakdowns
    mine = table[(table["model"] == row["model"]) & (table["design"] == row["design"])]
    return float(mine[f"{part}_s"].iloc[0] / row["time_per_batch_s"]) if len(mine) else float("nan")


def _about_utilisation(printed: Printed, model: str) -> Iterator[str]:
    """Where the time goes on the designs whose utilisation is printed."""
    for kind, design in printed.designs().items():
        theirs = printed.mfu(model, kind)
        row = row_of(printed.findings.results, model, design)
        if theirs is None or row is None:
            continue
        limits = limits_of(printed.inputs, row)
        binds = f"; {_shares(limits)} of the time in operators" if len(limits) else ""
        yield (
            f"{design}: utilisation {percent(row['mfu_paper'])} (paper {percent(theirs)}); of the time per "
            f"batch {percent(_part(printed, row, 'fill'))} fills the pipeline, "
            f"{percent(_part(printed, row, 'sync'))} synchronises gradients{binds}. It runs as "
            f"{widths(row)}, microbatch {samples(row['layout'])}, {storing(row['recompute'])}."
        )


def least_bound(inputs: Inputs, model: str, architecture: str) -> pd.Series | None:
    """The row of table screens with the architecture's least lower bound, None if nothing fits it."""
    chips = inputs.cluster.architectures
    shard = chips.loc[chips["architecture"] == architecture, "shard"].iloc[0]
    only = Only("architecture", (architecture,))
    layouts = layouts_of(inputs.study.workloads[model].tensor, inputs.study.training.microbatches)
    rows = [inputs.details.rows(Screens, Slicing(model, one.key), shard, only) for one in layouts]
    found = pd.concat(rows, ignore_index=True)
    fitting = found[np.isfinite(found["lower_s"])]
    return None if fitting.empty else fitting.loc[fitting["lower_s"].idxmin()]


def limits_on_all_cores(inputs: Inputs, row: pd.Series) -> pd.Series:
    """The part of all layers' busy time that each limit binds, with every operator on all cores."""
    point = point_of(row)
    operators = inputs.details.rows(Operators, point, "").assign(core_index=-1, start_s=0.0, end_s=0.0)
    found = with_estimates(operators, inputs.details, point, chip_of(inputs.cluster, row))
    counts = layer_counts(inputs, point.model)
    return shares_of_limits(found["limit"], found["latency_all_s"], found["layer"], counts)
