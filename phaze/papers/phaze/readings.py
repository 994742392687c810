"""Comparison of a study's readings, and the printed figures that each of them explains.

Every figure uses the best HBM size of the study, on any accelerator. The experts' placement on the baseline
splits the layers evenly if that fits, and otherwise uses the best split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from phaze.papers.page import words_of
from phaze.papers.phaze.beside import Beside
from phaze.papers.publications import Design, Mean
from phaze.papers.scores import geometric_mean, rms_factor
from phaze.report.document import Block, Heading, Items, Prose
from phaze.report.words import join, percent, storing, times, widths
from phaze.search.winners import choose
from phaze.spec.study import OWN_READING
from phaze.tables import ReadingFigures, ReadingScores
from phaze.tables.columns import layout_of

NEAR_MEAN, NEAR_MFU = 1.1, 1.25
"""Factors within which a mean, and a utilisation, agree with the printed one."""
DECIDES = 3.0
"""Change of a speed-up by a reading above which it depends on one assumption; a factor."""
MEANS: dict[Mean, tuple[str, str, str]] = {
    "per_model": ("per-model", "expert", "per-model over baseline with experts"),
    "common": ("common", "expert", "common over baseline with experts"),
    "common_over_baseline": ("common", "baseline", "common over baseline"),
    "common_over_family": ("common", "family", "common over the other family"),
}
"""Printed geometric means: the two roles whose throughputs are divided, and a label."""
MFUS: dict[str, tuple[Design, str]] = {
    "expert": ("baseline_expert", "baseline, experts"),
    "baseline": ("baseline", "baseline"),
    "common": ("common", "common"),
}
"""Printed utilisations by role: key in the publication, and label."""
CALLED = {("mfu", role): label for role, (_, label) in MFUS.items()} | {
    ("mean", str(mean)): label for mean, (*_, label) in MEANS.items()
}
"""Label of a figure by kind and role or mean."""
Row = dict[str, object]
WORDS = words_of("phaze")


def best(beside: Beside, reading: str, model: str, role: str, value: str = "samples_per_s") -> float:
    """Best throughput, or other `value`, of a role's accelerator and planner; 0 without a placement."""
    published = beside.published
    baseline = str(beside.inputs.study.architectures.baseline)
    other = published.families.get(published.compared_family, {})
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
    """Printed accelerator of a workload; empty if there is none."""
    return beside.published.families.get(beside.family or "", {}).get(model, "")


def ratio(beside: Beside, reading: str, model: str, mean: Mean) -> float:
    """Throughput ratio of one workload that enters a printed mean; 0 if either role is not placed."""
    above, below = (best(beside, reading, model, role) for role in MEANS[mean][:2])
    return above / below if below else 0.0


def is_decided(beside: Beside, model: str) -> bool:
    """True if a reading changes the common accelerator's speed-up by more than `DECIDES`."""
    found = [ratio(beside, reading, model, "common") for reading in beside.inputs.study.shown_readings]
    changes = [ratio / found[0] for ratio in found if ratio and found[0]]
    return any(change > DECIDES or change < 1 / DECIDES for change in changes)


def figures_of(beside: Beside, reading: str) -> Iterator[Row]:
    """Yield the rows of table `reading_figures` for a reading."""
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
    for label, some in (("all", models), ("undecided", undecided)):
        for mean, theirs in printed.headline.items() if some else ():
            ratios = [one for model in some if (one := ratio(beside, reading, model, mean))]
            row = _figure(theirs, geometric_mean(ratios) if ratios else 0.0, NEAR_MEAN, times)
            yield {"reading": reading, "model": label, "kind": "mean", "of": mean, **row}


def _placement(beside: Beside, reading: str, model: str) -> Iterator[Row]:
    """Yield the row on the placement on a workload's printed accelerator, at the chosen HBM size."""
    printed = beside.published.workloads[model]
    plan, chip = printed.placement, printed.architecture
    if plan is None or chip is None:
        return
    rows = beside.placed.get((reading, model, _own_chip(beside, model), "phaze"))
    row = None if rows is None else choose(rows.assign(area_um2=0.0), beside.inputs.study.screen.tolerance)
    rest = (plan.microbatch, plan.recompute, chip.hbm_gib)
    ours, whole = "", rest
    if row is not None:
        ours, whole = widths(row), (layout_of(row).microbatch, row["recompute"], row["hbm_gib"])
    yield {
        "reading": reading,
        "model": model,
        "kind": "placement",
        "of": beside.family,
        "printed": _in_words(plan.widths, *rest),
        "ours": ours and _in_words(ours, *whole),
        "ratio": 0.0,
        "agrees": ours == plan.widths,
        "in_full": ours == plan.widths and whole == rest,
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
    for reading, mine in figures.groupby("reading", sort=False):
        placed, mfus = (mine[mine["kind"] == kind] for kind in ("placement", "mfu"))
        means = mine[(mine["kind"] == "mean") & (mine["model"] == "all")].set_index("of")["ratio"]
        counts = {"placements": int(placed["agrees"].sum()), "in_full": int(placed["in_full"].sum())}
        counts |= {"printed_placements": len(placed), "printed_mfus": int((mfus["ratio"] > 0).sum())}
        ours = {str(mean): float(means.get(mean, 0.0)) * headline.get(mean, 0.0) for mean in MEANS}
        about = {"reading": reading, "note": notes[str(reading)], "mfu_factor": rms_factor(mfus["ratio"])}
        rows.append({**about, **counts, **ours})
    return ReadingScores.check(pd.DataFrame(rows)) if rows else ReadingScores.empty()


def readings(beside: Beside, figures: pd.DataFrame, scores: pd.DataFrame) -> Iterator[Block]:
    """Yield the blocks that compare readings, from both tables of readings; nothing without readings.

    These are the scores of the readings, and each printed figure beside ours under every reading.
    """
    if scores.empty:
        return
    study = beside.inputs.study
    names: list[str] = [*_KINDS, *study.models, *MFUS, *MEANS, *study.shown_readings]
    order = {name: place for place, name in enumerate(names)}
    rows = figures.sort_values(
        [*KEY, "reading"], key=lambda column: column.map(order).fillna(-1), kind="stable"
    )
    called = [CALLED.get(of, "placement") for of in zip(rows["kind"], rows["of"], strict=True)]
    rows = rows.assign(called=called)
    given = rows[rows["agrees"]].groupby(KEY)["reading"].agg(join).rename("given")
    rows = rows.join(given, on=KEY).fillna({"given": NONE}).replace({"ours": {"": "fits nowhere"}})
    first = rows.drop_duplicates(KEY)
    yield from (Heading("Readings of the paper's setting"), Prose(WORDS.sentences["readings"]))
    yield WORDS.sheet("scores", scores.sort_values("reading", key=lambda column: column.map(order)))
    yield Items(tuple(_explained(first[first["model"] != "undecided"])))
    heads = {name: name for name in ("printed", *study.shown_readings)}
    shown = pd.concat([first.assign(reading="printed", ours=first["printed"]), rows])
    yield WORDS.sheet("figures", shown, heads=heads, mfu=NEAR_MFU, mean=NEAR_MEAN, decides=DECIDES)


def in_words(scores: pd.DataFrame) -> str:
    """Sentence on the agreement of the best reading with the publication; empty without readings."""
    if len(scores) < 2:
        return ""
    own, best = scores[scores["reading"] == OWN_READING].iloc[0], scores.sort_values("mfu_factor").iloc[0]
    return WORDS.sentence("answer", **{**own, **best.add_prefix("best_")})


KEY = ["kind", "model", "of"]
"""Key columns of a printed figure in table `reading_figures`."""
NONE = "none: unexplained"
_KINDS = {"placement": "placements", "mfu": "utilisations", "mean": "means"}


def _explained(figures: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per kind: how many figures a reading reproduces, and the others."""
    for kind, mine in figures.groupby("kind", sort=False):
        none = mine[mine["given"] == NONE]
        of = "" if kind == "mean" else " of " + none["model"]
        gives = f"Of {len(mine)} printed {_KINDS[str(kind)]} some reading gives {len(mine) - len(none)}"
        yield gives + (f"; unexplained: {join(none['called'] + of)}." if len(none) else ".")
