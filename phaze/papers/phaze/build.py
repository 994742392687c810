"""Section of the Phaze paper: accelerators, claims, interpretations, and differences, from tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from phaze.base.units import MIB, percent
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.layout import Layout, layouts_of
from phaze.pages.document import Block, Heading, Items, Prose
from phaze.pages.words import compute, join, storing, times, widths
from phaze.papers.page import Paper, paper_of
from phaze.papers.phaze.beside import (
    WORDS,
    Beside,
    accelerators_sheet,
    as_row,
    claims_of,
    implied_gains,
    implied_s,
    same_as,
    shares,
    sizes_sheet,
    utilisation_blocks,
    walk_sheets,
)
from phaze.papers.publications import Design, Mean, PublishedWorkload
from phaze.papers.scores import geometric_mean, rms_factor
from phaze.report.anatomy import limits_of
from phaze.report.findings import row_of
from phaze.report.inputs import Inputs, Only, Slicing
from phaze.search.winners import chip_of, choose, in_order, with_areas
from phaze.spec.study import OWN_READING
from phaze.tables import Claims, Layers, ReadingFigures, ReadingScores, Screens
from phaze.tables.columns import layout_of

NEAR_MEAN, NEAR_MFU = 1.1, 1.25
"""Factors within which a mean, and a utilisation, count as agreeing with the published one."""
DECIDES = 3.0
"""Factor above which a change by an interpretation means that a speed-up depends on one assumption."""
MEANS: dict[Mean, tuple[str, str, str]] = {
    "per_model": ("per-model", "expert", "per-model over baseline with experts"),
    "common": ("common", "expert", "common over baseline with experts"),
    "common_over_baseline": ("common", "baseline", "common over baseline"),
    "common_over_family": ("common", "family", "common over the other family"),
}
"""Published geometric means: the two roles whose throughputs are divided, and a label."""
MFUS: dict[str, tuple[Design, str]] = {
    "expert": ("baseline_expert", "baseline, experts"),
    "baseline": ("baseline", "baseline"),
    "common": ("common", "common"),
}
"""Published utilisations by role: key in the publication, and label."""
CALLED = {("mfu", role): label for role, (_, label) in MFUS.items()} | {
    ("mean", str(mean)): label for mean, (*_, label) in MEANS.items()
}
"""Display label of a figure, by kind and role or mean."""
Row = dict[str, object]
KEY = ["kind", "model", "of"]
"""Key columns of a published figure in table `reading_figures`."""
NONE = "none: unexplained"
_KINDS = {"placement": "placements", "mfu": "utilisations", "mean": "means"}


def differences(beside: Beside) -> Iterator[Block]:
    """Yield the reasons for differences from the publication, workload by workload."""
    for model, theirs, row in beside.workloads:
        if sentences := reasons(beside, theirs, row):
            yield Heading(f"Why {model} differs ({theirs.label} in the paper)")
            yield Items(sentences)


def reasons(beside: Beside, theirs: PublishedWorkload, row: pd.Series) -> tuple[str, ...]:
    """Sentences on how a workload's best accelerator and placement differ from the published ones."""
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
    of_model = (every["model"] == row["model"]) & every["architecture"].isin(same["architecture"])
    placed = every[of_model & (every["planner"] == "phaze") & (every["status"] == "placed")]
    if same.empty:
        why = WORDS.sentences["no-accelerator"]
    elif placed.empty:
        why = _excluded(beside, str(same["architecture"].iloc[0]), row)
    else:
        best = in_order(with_areas(cluster, placed)).iloc[0]
        best_limits, our_limits = (shares(limits_of(beside.inputs, placed_row)) for placed_row in (best, row))
        limits = {"there": best_limits, "here": our_limits}
        binds = WORDS.sentence("bound", **limits) if all(limits.values()) else "."
        over = best["time_per_batch_s"] / row["time_per_batch_s"]
        why = WORDS.sentence("slower", time_s=best["time_per_batch_s"], over=over, binds=binds)
    yield WORDS.sentence("accelerator", cores=printed, buffer=chip.glb_mib, why=why)


def _excluded(beside: Beside, architecture: str, ours: pd.Series) -> str:
    """Reason why an architecture was not placed, as the end of a sentence."""
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
    # Weights of a stage, if all p stages have an equal part.
    weights = (
        _weight_bytes(beside, str(row["model"]), replace(layout_of(row), tp=plan.tensor)) / plan.pipeline
    )
    if weights:
        bandwidth = beside.inputs.cluster.scenario.network_bandwidth_bytes_per_s
        sent = Flat(bandwidth, BOTH_DIRECTIONS).charged_bytes("all_reduce", weights, plan.data)
        about = "" if plan.pipeline == 1 else "about "
        sync = {"weights": weights, "sync_s": sent / bandwidth, "bandwidth": bandwidth}
        parts = {part: beside.part(row, part) for part in ("sync", "fill")}
        details = {"about": about, "data": plan.data, "printed": plan.widths, "ours": ours}
        yield WORDS.sentence("placement", **details, **sync, **parts, time_s=row["time_per_batch_s"])
        yield from _about_synchronisation(beside, str(row["model"]), sent)


def _about_synchronisation(beside: Beside, model: str, sent_bytes: float) -> Iterator[str]:
    """Yield a sentence if synchronisation alone rules out the published utilisation on this network."""
    row = row_of(beside.results, model, beside.common)
    # At the published utilisation a batch would take this long; the gradients alone may take longer.
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
    """Smallest lower bound on an architecture's batch time in table `screens`; inf or NaN if nothing fits."""
    chips = inputs.cluster.architectures
    shard = chips.loc[chips["architecture"] == architecture, "shard"].iloc[0]
    only = Only("architecture", (architecture,))
    layouts = layouts_of(inputs.study.workloads[model].tensor, inputs.study.training.microbatches)
    rows = [inputs.details.rows(Screens, Slicing(model, layout.key), shard, only) for layout in layouts]
    return float(pd.concat(rows)["lower_s"].min())


def phaze_paper(beside: Beside) -> Paper:
    """Build Phaze's section; speed-ups and utilisations are compared only if the baseline is the paper's."""
    figures, claims = reading_figures(beside), claims_of(beside)
    scores = reading_scores(beside, figures)
    blocks: list[Block] = [*sizes_sheet(beside)]
    if beside.shares_baseline and beside.workloads:
        printed = accelerators_sheet(beside), *utilisation_blocks(beside)
        compared = *readings(beside, figures, scores), *walk_sheets(beside)
        blocks = [*printed, *compared, *blocks, *differences(beside)]
    summary = f"{int(claims['holds'].sum())} of {len(claims)} claims hold; a speed-up agrees within 10 %."
    return paper_of(
        "phaze",
        beside.published,
        " ".join(filter(None, (summary, in_words(scores)))),
        blocks,
        {
            "reading_figures": (ReadingFigures, figures),
            "reading_scores": (ReadingScores, scores),
            "claims": (Claims, claims),
        },
        beside={name: getattr(beside, name) for name in ("results", "complexities", "walks")},
    )


def best(beside: Beside, reading: str, model: str, role: str, value: str = "samples_per_s") -> float:
    """Best throughput (or `value`) with the accelerator and planner of a role; 0 without a placement."""
    published = beside.published
    baseline = str(beside.inputs.study.architectures.baseline)
    other = published.families.get(published.compared_family, {})
    # The expert's stages are equal; where those do not fit, the best split of the same widths counts.
    for chip, planner in {
        "expert": [(baseline, "expert-even"), (baseline, "expert")],
        "baseline": [(baseline, "phaze")],
        "common": [(beside.common_name, "phaze")],
        "per-model": [(_own_chip(beside, model), "phaze")],
        "family": [(other.get(model, ""), "phaze")],
    }[role]:
        if (reading, model, chip, planner) in beside.placed:
            return float(beside.placed[reading, model, chip, planner][value].max())
    return 0.0


def _own_chip(beside: Beside, model: str) -> str:
    """Name of a workload's published accelerator; empty if there is none."""
    return beside.published.families.get(beside.family or "", {}).get(model, "")


def ratio(beside: Beside, reading: str, model: str, mean: Mean) -> float:
    """Throughput ratio of a workload between the two roles of a published mean; 0 if either is not placed."""
    above, below = (best(beside, reading, model, role) for role in MEANS[mean][:2])
    return above / below if below else 0.0


def is_decided(beside: Beside, model: str) -> bool:
    """True if an interpretation changes the common accelerator's speed-up by more than `DECIDES`."""
    # The study's own settings are the first reading.
    ratios = [ratio(beside, reading, model, "common") for reading in beside.inputs.study.shown_readings]
    changes = [ratio / ratios[0] for ratio in ratios if ratio and ratios[0]]
    return any(change > DECIDES or change < 1 / DECIDES for change in changes)


def figures_of(beside: Beside, reading: str) -> Iterator[Row]:
    """Yield the rows of table `reading_figures` for an interpretation."""
    printed = beside.published
    models = tuple(m for m in beside.inputs.study.models if m in printed.workloads)
    for model in models:
        yield from _placement(beside, reading, model)
        for role, (key, _) in MFUS.items():
            if (theirs := beside.mfu(model, key)) is not None:
                ours = best(beside, reading, model, role, "mfu_paper")
                row = _figure(theirs, ours, NEAR_MFU, percent)
                yield {"reading": reading, "model": model, "kind": "mfu", "of": role, **row}
    undecided = tuple(model for model in models if not is_decided(beside, model))
    for label, members in (("all", models), ("undecided", undecided)):
        for mean, theirs in printed.headline.items() if members else ():
            # Ratio 0 marks a workload that one of the two designs cannot train.
            ratios = [speed_up for model in members if (speed_up := ratio(beside, reading, model, mean))]
            row = _figure(theirs, geometric_mean(ratios) if ratios else 0.0, NEAR_MEAN, times)
            yield {"reading": reading, "model": label, "kind": "mean", "of": mean, **row}


def _placement(beside: Beside, reading: str, model: str) -> Iterator[Row]:
    """Yield a row that compares our placement on the published accelerator with the published placement."""
    printed = beside.published.workloads[model]
    plan, chip = printed.placement, printed.architecture
    if plan is None or chip is None:
        return
    rows = beside.placed.get((reading, model, _own_chip(beside, model), "phaze"))
    # All rows are of one chip, so area cannot break ties.
    row = None if rows is None else choose(rows.assign(area_um2=0.0), beside.inputs.study.screen.tolerance)
    printed_options = (plan.microbatch, plan.recompute, chip.hbm_gib)
    ours, our_options = "", printed_options
    if row is not None:
        ours, our_options = widths(row), (layout_of(row).microbatch, row["recompute"], row["hbm_gib"])
    yield {
        "reading": reading,
        "model": model,
        "kind": "placement",
        "of": beside.family,
        "printed": _in_words(plan.widths, *printed_options),
        "ours": ours and _in_words(ours, *our_options),
        "ratio": 0.0,
        "agrees": ours == plan.widths,
        "in_full": ours == plan.widths and our_options == printed_options,
    }


def _in_words(placement: str, microbatch: int, recompute: bool, hbm_gib: float) -> str:
    return f"{placement}, {microbatch}, {storing(recompute)}, {hbm_gib:g} GiB"


def _figure(theirs: float, ours: float, near: float, words: Callable[[float], str]) -> Row:
    return {
        "printed": words(theirs),
        "ours": words(ours) if ours else "",
        "ratio": ours / theirs,
        "agrees": 1 / near <= ours / theirs <= near,
        "in_full": False,
    }


def reading_figures(beside: Beside) -> pd.DataFrame:
    """Table `reading_figures`; empty for a study not comparable with the publication's accelerators."""
    study = beside.inputs.study
    if beside.inputs.readings.empty or not beside.shares_baseline or None in (
        study.architectures.baseline, beside.family
    ):  # fmt: skip
        return ReadingFigures.empty()
    rows = [row for reading in study.shown_readings for row in figures_of(beside, reading)]
    return ReadingFigures.check(pd.DataFrame(rows)) if rows else ReadingFigures.empty()


def reading_scores(beside: Beside, figures: pd.DataFrame) -> pd.DataFrame:
    """Build table `reading_scores` from the figures; empty without figures."""
    notes = {name: reading.note for name, reading in beside.inputs.study.shown_readings.items()}
    headline = beside.published.headline
    rows = []
    for reading, group in figures.groupby("reading", sort=False):
        placed, mfus, means = (group[group["kind"] == kind] for kind in ("placement", "mfu", "mean"))
        ratios = means[means["model"] == "all"].set_index("of")["ratio"]
        counts = {"placements": int(placed["agrees"].sum()), "in_full": int(placed["in_full"].sum())}
        counts |= {"printed_placements": len(placed), "printed_mfus": int((mfus["ratio"] > 0).sum())}
        # `ratio` is ours over the published mean.
        ours = {str(mean): float(ratios.get(mean, 0.0)) * headline.get(mean, 0.0) for mean in MEANS}
        about = {"reading": reading, "note": notes[str(reading)], "mfu_factor": rms_factor(mfus["ratio"])}
        rows.append({**about, **counts, **ours})
    return ReadingScores.check(pd.DataFrame(rows)) if rows else ReadingScores.empty()


def readings(beside: Beside, figures: pd.DataFrame, scores: pd.DataFrame) -> Iterator[Block]:
    """Yield the scores of interpretations, and each published figure next to ours; nothing without scores."""
    if scores.empty:
        return
    study = beside.inputs.study
    names: list[str] = [*_KINDS, *study.models, *MFUS, *MEANS, *study.shown_readings]
    order = {name: place for place, name in enumerate(names)}
    # Values without a place, such as the accelerator family of a placement, come first.
    rows = figures.sort_values(
        [*KEY, "reading"], key=lambda column: column.map(order).fillna(-1), kind="stable"
    )
    keys = zip(rows["kind"], rows["of"], strict=True)
    rows = rows.assign(called=[CALLED.get(key, "placement") for key in keys])
    agreeing = rows[rows["agrees"]].groupby(KEY)["reading"].agg(join).rename("given")
    rows = rows.join(agreeing, on=KEY).fillna({"given": NONE}).replace({"ours": {"": "fits nowhere"}})
    first = rows.drop_duplicates(KEY)
    yield from (Heading("Readings of the paper's setting"), Prose(WORDS.sentences["readings"]))
    yield WORDS.sheet("scores", scores.sort_values("reading", key=lambda column: column.map(order)))
    yield Items((*_explained(first[first["model"] != "undecided"]), *_implied(beside)))
    heads = {name: name for name in ("printed", *study.shown_readings)}
    shown = pd.concat([first.assign(reading="printed", ours=first["printed"]), rows])
    yield WORDS.sheet("figures", shown, heads=heads, mfu=NEAR_MFU, mean=NEAR_MEAN, decides=DECIDES)


def _implied(beside: Beside) -> Iterator[str]:
    """Yield a sentence per speed-up that follows from the published means, with the readings that give it."""
    study = beside.inputs.study
    for gain in implied_gains(beside.published):
        if gain.model in study.models:
            ratios = {name: ratio(beside, name, gain.model, gain.mean) for name in study.shown_readings}
            within = [name for name, speed_up in ratios.items() if gain.least <= speed_up <= gain.most]
            ours = ratios[OWN_READING]
            yield WORDS.sentence(
                "implied",
                **gain._asdict(),
                label=beside.published.workloads[gain.model].label,
                of=MEANS[gain.mean][2],
                ours=times(ours) if ours else "no placement",
                within=join(within) or "none",
            )


def in_words(scores: pd.DataFrame) -> str:
    """Sentence on how well the best of several interpretations agrees with the publication; else empty."""
    if len(scores) < 2:
        return ""
    study_row = scores[scores["reading"] == OWN_READING].iloc[0]
    best = scores.sort_values("mfu_factor").iloc[0]
    return WORDS.sentence("answer", **{**study_row, **best.add_prefix("best_")})


def _explained(figures: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per kind of figure on how many are reproduced, with the unexplained ones."""
    for kind, kind_rows in figures.groupby("kind", sort=False):
        none = kind_rows[kind_rows["given"] == NONE]
        of = "" if kind == "mean" else " of " + none["model"]
        gives = (
            f"Of {len(kind_rows)} printed {_KINDS[str(kind)]} some reading gives {len(kind_rows) - len(none)}"
        )
        yield gives + (f"; unexplained: {join(none['called'] + of)}." if len(none) else ".")
