"""Section of the Phaze paper: accelerators, claims, readings, and differences, all computed from tables."""

from __future__ import annotations

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
    shares,
    sizes_sheet,
    utilisation_blocks,
    walk_sheets,
)
from phaze.papers.phaze.readings import in_words, reading_figures, reading_scores, readings
from phaze.papers.publications import PublishedWorkload
from phaze.report.anatomy import limits_of
from phaze.report.document import Block, Heading, Items
from phaze.report.inputs import Inputs, Only, Slicing
from phaze.report.winners import row_of
from phaze.report.words import compute, widths
from phaze.search.winners import chip_of, in_order, with_areas
from phaze.tables import Layers, ReadingFigures, ReadingScores, Screens
from phaze.tables.columns import layout_of


def differences(beside: Beside) -> Iterator[Block]:
    """Yield the reasons for differences from the publication, by workload."""
    for model, theirs, row in beside.workloads:
        if found := reasons(beside, theirs, row):
            yield Heading(f"Why {model} differs ({theirs.label} in the paper)")
            yield Items(found)


def reasons(beside: Beside, theirs: PublishedWorkload, row: pd.Series) -> tuple[str, ...]:
    """Sentences on the differences of a workload's best accelerator and placement from the printed ones."""
    return (*_about_accelerator(beside, theirs, row), *_about_placement(beside, theirs, row))


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
        there, here = (shares(limits_of(beside.inputs, one)) for one in (best, row))
        binds = WORDS.sentence("bound", there=there, here=here) if there and here else "."
        over = best["time_per_batch_s"] / row["time_per_batch_s"]
        why = WORDS.sentence("slower", time_s=best["time_per_batch_s"], over=over, binds=binds)
    yield WORDS.sentence("accelerator", cores=printed, buffer=chip.glb_mib, why=why)


def _excluded(beside: Beside, architecture: str, ours: pd.Series) -> str:
    """Reason that an architecture was not placed, as the rest of a sentence."""
    if beside.inputs.study.screen.strategy == "hysteresis":
        return WORDS.sentences["not-visited"]
    bound_s = least_bound_s(beside.inputs, str(ours["model"]), architecture)
    if not np.isfinite(bound_s):
        return WORDS.sentences["left-out"]
    return WORDS.sentence("at-least", time_s=bound_s, over=bound_s / ours["time_per_batch_s"])


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
        about = "" if plan.pipeline == 1 else "about "
        sync = {"weights": weights, "sync_s": sent / bandwidth, "bandwidth": bandwidth}
        parts = {part: beside.part(row, part) for part in ("sync", "fill")}
        told = {"about": about, "data": plan.data, "printed": plan.widths, "ours": ours}
        yield WORDS.sentence("placement", **told, **sync, **parts, time_s=row["time_per_batch_s"])
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


def least_bound_s(inputs: Inputs, model: str, architecture: str) -> float:
    """Smallest lower bound of an architecture in table `screens`; infinity or NaN if nothing fits."""
    chips = inputs.cluster.architectures
    shard = chips.loc[chips["architecture"] == architecture, "shard"].iloc[0]
    only = Only("architecture", (architecture,))
    layouts = layouts_of(inputs.study.workloads[model].tensor, inputs.study.training.microbatches)
    rows = [inputs.details.rows(Screens, Slicing(model, one.key), shard, only) for one in layouts]
    return float(pd.concat(rows)["lower_s"].min())


def phaze_paper(beside: Beside) -> Paper:
    """Phaze's section, comparing the paper with a study; speed-ups and utilisations only for its baseline."""
    figures, claims = reading_figures(beside), claims_of(beside)
    scores = reading_scores(beside, figures)
    blocks: list[Block] = [*sizes_sheet(beside)]
    if beside.shares_baseline and beside.workloads:
        printed = accelerators_sheet(beside), *utilisation_blocks(beside)
        compared = *readings(beside, figures, scores), *walk_sheets(beside)
        blocks = [*printed, *compared, *blocks, *differences(beside)]
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
