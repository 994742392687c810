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
    WORDS,
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
from phaze.papers.phaze.readings import in_words, reading_figures, reading_scores, readings
from phaze.papers.publications import PublishedWorkload
from phaze.report.anatomy import layer_counts, limits_of, point_of, shares_of_limits, with_estimates
from phaze.report.document import Block, Heading, Items
from phaze.report.inputs import Inputs, Only, Slicing
from phaze.report.winners import PER_MODEL, row_of
from phaze.report.words import LIMITS, compute, percent, widths
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
    ours, printed = chip_of(cluster, row), compute(as_row(chip))
    if compute(ours) == printed and ours["glb_bytes"] == chip.glb_mib * MIB:
        yield WORDS.sentences["same-accelerator"]
        return
    same, every = same_as(cluster.architectures, chip), cluster.placements
    mine = (every["model"] == row["model"]) & every["architecture"].isin(same["architecture"])
    placed = every[mine & (every["planner"] == "phaze") & (every["status"] == "placed")]
    if same.empty:
        why = WORDS.sentences["no-accelerator"]
    elif placed.empty:
        why = _excluded(beside, str(same["architecture"].iloc[0]), row)
    else:
        best = in_order(with_areas(cluster, placed)).iloc[0]
        limits = limits_of(beside.inputs, best), limits_of(beside.inputs, row)
        why = _takes("slower", best["time_per_batch_s"], row, "bound", limits)
    yield WORDS.sentence("accelerator", cores=printed, buffer=chip.glb_mib, why=why)


def _takes(name: str, time_s: float, ours: pd.Series, bound: str, limits: tuple[pd.Series, pd.Series]) -> str:
    """Time on another accelerator compared with ours, and the limits of both where they are known."""
    known = not any(one.empty for one in limits)
    there, here = map(_shares, limits)
    binds = WORDS.sentence(bound if known else f"un{bound}", there=there, here=here)
    slower = _slower(time_s / ours["time_per_batch_s"] - 1)
    return WORDS.sentence(name, time_s=time_s, slower=slower, binds=binds)


def _excluded(beside: Beside, architecture: str, ours: pd.Series) -> str:
    """Reason that an architecture was not placed, as the rest of a sentence."""
    if beside.inputs.study.screen.strategy == "hysteresis":
        return WORDS.sentences["not-visited"]
    bound = least_bound(beside.inputs, str(ours["model"]), architecture)
    if bound is None:
        return WORDS.sentences["left-out"]
    exact = math.isclose(bound["lower_s"], bound["feasible_s"], rel_tol=1e-9)
    limits = limits_on_all_cores(beside.inputs, bound), limits_on_all_cores(beside.inputs, ours)
    return _takes("slower" if exact else "at-least", bound["lower_s"], ours, "excluded", limits)


def _slower(excess: float) -> str:
    if abs(excess) < 5e-4:
        return "as long as"
    return f"{percent(abs(excess))} {'longer' if excess > 0 else 'less'} than"


def _shares(limits: pd.Series) -> str:
    largest = limits[limits >= 0.05].sort_values(ascending=False)
    return ", ".join(f"{LIMITS[str(name)]} binds {percent(share, 0)}" for name, share in largest.items())


def _about_placement(beside: Beside, theirs: PublishedWorkload, row: pd.Series) -> Iterator[str]:
    plan, ours = theirs.placement, widths(row)
    if plan is None:
        return
    if plan.widths == ours:
        yield WORDS.sentences["same-placement"]
        return
    weights = (
        _weight_bytes(beside, str(row["model"]), replace(layout_of(row), tp=plan.tensor)) / plan.pipeline
    )
    if weights:
        bandwidth = beside.inputs.cluster.scenario.network_bandwidth_bytes_per_s
        sent = Flat(bandwidth, BOTH_DIRECTIONS).charged_bytes("all_reduce", weights, plan.data)
        about: dict[str, object] = {
            "about": "" if plan.pipeline == 1 else "about ",
            "printed": plan.widths,
            "data": plan.data,
        }
        about |= {"weights": weights, "sync_s": sent / bandwidth, "bandwidth": bandwidth, "ours": ours}
        parts = {part: _part(beside, row, part) for part in ("sync", "fill")}
        yield WORDS.sentence("placement", **about, **parts, time_s=row["time_per_batch_s"])
        yield from _about_synchronisation(beside, str(row["model"]), sent)


def _about_synchronisation(beside: Beside, model: str, sent_bytes: float) -> Iterator[str]:
    """Yield a sentence if the printed utilisation needs a faster network for synchronisation alone."""
    row = row_of(beside.results, model, beside.common)
    implied = implied_s(beside, row, "common", beside.mfu(model, "common")) if row is not None else None
    bandwidth = beside.inputs.cluster.scenario.network_bandwidth_bytes_per_s
    if implied is not None and sent_bytes / implied > bandwidth:
        needs = sent_bytes / implied
        yield WORDS.sentence("synchronisation", implied_s=implied, needs=needs, bandwidth=bandwidth)


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
        theirs, row = beside.mfu(model, kind), row_of(beside.results, model, design)
        if theirs is not None and row is not None:
            limits = limits_of(beside.inputs, row)
            binds = f"; {_shares(limits)} of the time in operators" if len(limits) else ""
            about = {"theirs": theirs, "binds": binds, "widths": widths(row)}
            parts = {part: _part(beside, row, part) for part in ("fill", "sync")}
            yield WORDS.sentence("utilisation", **{**row, **about, **parts, "design": design})


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
