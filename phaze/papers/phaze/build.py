"""Section of the Phaze paper: accelerators, claims, readings, and differences, all computed from tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from phaze.base.units import MIB
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.layout import Layout, layouts_of
from phaze.papers.page import Paper, paper_of
from phaze.papers.phaze.beside import (
    Beside,
    accelerators_sheet,
    as_row,
    claims_of,
    implied_s,
    same_as,
    sizes_sheet,
    utilisation_chart,
    utilisation_sheet,
    walk_sheets,
)
from phaze.papers.phaze.published import PublishedWorkload
from phaze.papers.phaze.readings import in_words, reading_figures, reading_scores, readings
from phaze.report.anatomy import layer_counts, limits_of, point_of, shares_of_limits, with_estimates
from phaze.report.document import Block, Heading, Items
from phaze.report.inputs import Inputs, Only, Slicing
from phaze.report.winners import PER_MODEL, row_of
from phaze.report.words import LIMITS, compute, percent, samples, seconds, size, storing, widths
from phaze.search.winners import chip_of, in_order, with_areas
from phaze.tables import Layers, Operators, ReadingFigures, ReadingScores, Screens
from phaze.tables.columns import layout_of


def differences(beside: Beside) -> Iterator[Block]:
    """Yield the reasons for differences from the publication, by workload."""
    for model, theirs, _ in beside.workloads:
        if found := reasons(beside, model):
            yield Heading(f"Why {model} differs ({theirs.label} in the paper)")
            yield Items(found)


def reasons(beside: Beside, model: str) -> tuple[str, ...]:
    """Sentences on the differences of a workload; empty without a result or printed figures."""
    row = row_of(beside.results, model, PER_MODEL)
    theirs = beside.published.workloads.get(model)
    if row is None or theirs is None:
        return ()
    return (
        *_about_accelerator(beside, theirs, row),
        *_about_placement(beside, theirs, row),
        *_about_utilisation(beside, model),
    )


def _about_accelerator(beside: Beside, theirs: PublishedWorkload, row: pd.Series) -> Iterator[str]:
    chip = theirs.architecture
    if chip is None:
        return
    cluster = beside.inputs.cluster
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
        yield name + _excluded(beside, str(same["architecture"].iloc[0]), row)
    else:
        best = in_order(with_areas(cluster, placed)).iloc[0]
        slower = best["time_per_batch_s"] / row["time_per_batch_s"] - 1
        takes = f"{name} takes {seconds(best['time_per_batch_s'])} here, {_slower(slower)} ours"
        there, here = limits_of(beside.inputs, best), limits_of(beside.inputs, row)
        binds = f": there {_shares(there)}, on ours {_shares(here)} of the time in operators"
        yield f"{takes}{'' if there.empty or here.empty else binds}."


def _excluded(beside: Beside, architecture: str, ours: pd.Series) -> str:
    """Reason that an architecture was not placed, as the rest of a sentence."""
    if beside.inputs.study.screen.strategy == "hysteresis":
        return " was not visited before the walk down the areas ended."
    bound = least_bound(beside.inputs, str(ours["model"]), architecture)
    if bound is None:
        return " was left out by the screen."
    slower = bound["lower_s"] / ours["time_per_batch_s"] - 1
    exact = math.isclose(bound["lower_s"], bound["feasible_s"], rel_tol=1e-9)
    takes = f" takes {'' if exact else 'at least '}{seconds(bound['lower_s'])} here, {_slower(slower)} ours"
    there, here = limits_on_all_cores(beside.inputs, bound), limits_on_all_cores(beside.inputs, ours)
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


def _about_placement(beside: Beside, theirs: PublishedWorkload, row: pd.Series) -> Iterator[str]:
    plan = theirs.placement
    if plan is None:
        return
    printed_widths = f"{{{plan.pipeline}, {plan.data}, {plan.tensor}}}"
    if printed_widths == widths(row):
        yield "The placement is the paper's."
        return
    layout = replace(layout_of(row), tp=plan.tensor)
    weights = _weight_bytes(beside, str(row["model"]), layout) / plan.pipeline
    if weights:
        bandwidth = beside.inputs.cluster.scenario.network_bandwidth_bytes_per_s
        sent = Flat(bandwidth, BOTH_DIRECTIONS).charged_bytes("all_reduce", weights, plan.data)
        about = "" if plan.pipeline == 1 else "about "
        yield (
            f"The paper places it as {printed_widths}. Synchronising the gradients of that first stage "
            f"({about}{size(weights)}) over {plan.data} pipelines takes "
            f"{about}{seconds(sent / bandwidth)} a batch at {size(bandwidth)}/s; our {widths(row)} "
            f"takes {seconds(row['time_per_batch_s'])} in all, {percent(_part(beside, row, 'sync'))} "
            f"of it synchronisation and {percent(_part(beside, row, 'fill'))} filling the pipeline."
        )
        yield from _about_synchronisation(beside, str(row["model"]), sent)


def _about_synchronisation(beside: Beside, model: str, sent_bytes: float) -> Iterator[str]:
    """Yield a sentence if the printed utilisation needs a faster network for synchronisation alone."""
    row = row_of(beside.results, model, beside.common)
    implied = implied_s(beside, row, "common", beside.mfu(model, "common")) if row is not None else None
    bandwidth = beside.inputs.cluster.scenario.network_bandwidth_bytes_per_s
    if implied is not None and sent_bytes / implied > bandwidth:
        yield (
            "The utilisation that the paper prints for its common accelerator implies "
            f"{seconds(implied)} for a whole batch; the synchronisation of that placement alone would "
            f"need {size(sent_bytes / implied)}/s. So the printed figures leave it out, overlap it, count "
            f"FLOPs otherwise, or assume a faster network than {size(bandwidth)}/s."
        )


def _weight_bytes(beside: Beside, model: str, layout: Layout) -> float:
    """Weight bytes of one tensor-parallel rank; 0 if the model was not extracted for that TMP width."""
    if layout.tp not in beside.inputs.study.workloads[model].tensor:
        return 0.0
    layers = beside.inputs.details.rows(Layers, Slicing(model, layout.key), "")
    weights = layers.set_index("layer")["parameter_bytes"]
    graph = beside.inputs.graphs[beside.inputs.graphs["model"] == model]
    return float((graph["layer"].map(weights) * graph["count"]).sum())


def _part(beside: Beside, row: pd.Series, part: str) -> float:
    table = beside.breakdowns
    mine = table[(table["model"] == row["model"]) & (table["design"] == row["design"])]
    return float(mine[f"{part}_s"].iloc[0] / row["time_per_batch_s"]) if len(mine) else float("nan")


def _about_utilisation(beside: Beside, model: str) -> Iterator[str]:
    """Yield a sentence on the time breakdown of each design with a printed utilisation."""
    for kind, design in beside.designs.items():
        theirs = beside.mfu(model, kind)
        row = row_of(beside.results, model, design)
        if theirs is None or row is None:
            continue
        limits = limits_of(beside.inputs, row)
        binds = f"; {_shares(limits)} of the time in operators" if len(limits) else ""
        yield (
            f"{design}: utilisation {percent(row['mfu_paper'])} (paper {percent(theirs)}); of the time per "
            f"batch {percent(_part(beside, row, 'fill'))} fills the pipeline, "
            f"{percent(_part(beside, row, 'sync'))} synchronises gradients{binds}. It runs as "
            f"{widths(row)}, microbatch {samples(row['layout'])}, {storing(row['recompute'])}."
        )


def least_bound(inputs: Inputs, model: str, architecture: str) -> pd.Series | None:
    """Row of table `screens` with the architecture's smallest lower bound; None if nothing fits."""
    chips = inputs.cluster.architectures
    shard = chips.loc[chips["architecture"] == architecture, "shard"].iloc[0]
    only = Only("architecture", (architecture,))
    layouts = layouts_of(inputs.study.workloads[model].tensor, inputs.study.training.microbatches)
    rows = [inputs.details.rows(Screens, Slicing(model, one.key), shard, only) for one in layouts]
    found = pd.concat(rows, ignore_index=True)
    fitting = found[np.isfinite(found["lower_s"])]
    return None if fitting.empty else fitting.loc[fitting["lower_s"].idxmin()]


def limits_on_all_cores(inputs: Inputs, row: pd.Series) -> pd.Series:
    """Share of all layers' busy time bound by each limit, with every operator on all cores."""
    point = point_of(row)
    operators = inputs.details.rows(Operators, point, "").assign(core_index=-1, start_s=0.0, end_s=0.0)
    found = with_estimates(operators, inputs.details, point, chip_of(inputs.cluster, row))
    counts = layer_counts(inputs, point.model)
    return shares_of_limits(found["limit"], found["latency_all_s"], found["layer"], counts)


def phaze_paper(beside: Beside) -> Paper:
    """Phaze's section, comparing the paper with a study; speed-ups and utilisations only for its baseline."""
    figures, claims = reading_figures(beside), claims_of(beside)
    scores = reading_scores(beside, figures)
    blocks: list[Block] = list(sizes_sheet(beside))
    if beside.shares_baseline and beside.workloads:
        blocks = [
            accelerators_sheet(beside),
            *utilisation_chart(beside),
            utilisation_sheet(beside),
            *readings(beside, figures, scores),
            *walk_sheets(beside),
            *blocks,
        ]
        blocks += differences(beside)
    held = f"{int(claims['holds'].sum())} of {len(claims)} claims hold; a speed-up agrees within 10 %."
    return paper_of(
        "phaze",
        beside.published,
        " ".join(filter(None, (held, in_words(scores)))),
        blocks,
        {"reading_figures": (ReadingFigures, figures), "reading_scores": (ReadingScores, scores)},
        claims=("claims", claims),
        beside={name: getattr(beside, name) for name in ("results", "complexities", "walks")},
    )
