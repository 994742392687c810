"""What the readings of a study give, side by side, and which printed figures each of them explains.

Every figure of a reading is of the same choice of HBM: the best over the sizes of the study, on whatever
accelerator. The baseline's experts cut the layers evenly where that fits, else in the way that suits best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from phaze.report.inputs import Inputs
from phaze.report.winners import choose, common_name, is_beside
from phaze.report.words import percent, storing, times, widths
from phaze.spec.published import Published, PublishedWorkload
from phaze.tables import ReadingFigures, ReadingScores

NEAR_MEAN, NEAR_MFU = 1.1, 1.25
"""A mean agrees with a printed one within this factor, a utilisation within that."""
DECIDES = 3.0
"""Where a reading changes a speed-up by more than this factor, one assumption decides it."""
MEANS = {
    "per_model": ("per-model", "expert"),
    "common": ("common", "expert"),
    "common_over_baseline": ("common", "baseline"),
    "common_over_family": ("common", "family"),
}
"""The printed geometric means: throughput of the first over that of the second."""
MFUS = {"baseline_expert": "expert", "baseline": "baseline", "common": "common"}
"""The printed utilisations, by what they are of."""


@dataclass(frozen=True)
class Readings:
    """The readings of a study beside its publication."""

    inputs: Inputs
    published: Published
    family: str
    """The family of the publication's own accelerators."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the readings in their order, the study's own first."""
        return tuple(self.inputs.study.shown_readings)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the workloads that the publication is about."""
        return tuple(m for m in self.inputs.study.models if m in self.published.workloads)

    @cached_property
    def _rows(self) -> Mapping[tuple[str, str, str, str], pd.DataFrame]:
        keys = ["reading", "model", "architecture", "planner"]
        placed = self.inputs.readings[self.inputs.readings["status"] == "placed"]
        return dict(iter(placed.groupby(keys)))  # type: ignore[arg-type]

    def best(self, reading: str, model: str, role: str, value: str = "samples_per_s") -> float:
        """Return the best throughput, or utilisation, of what a role stands for; 0 if nothing is placed."""
        found = [self._best(reading, model, *chosen, value) for chosen in self._chosen(model, role)]
        return next(filter(None, found), 0.0)

    def _best(self, reading: str, model: str, chip: str, planner: str, value: str) -> float:
        rows = self._rows.get((reading, model, chip, planner))
        return 0.0 if rows is None else float(rows[value].max())

    def _chosen(self, model: str, role: str) -> tuple[tuple[str, str], ...]:
        """Return the accelerators with the planner of a role, the first that is placed counts."""
        baseline = str(self.inputs.study.architectures.baseline)
        headline = self.published.headline
        family = "" if headline is None else headline.compared_family
        return {
            "expert": ((baseline, "expert-even"), (baseline, "expert")),
            "baseline": ((baseline, "phaze"),),
            "common": ((self.common, "phaze"),),
            "per-model": ((self.published.families[self.family].get(model, ""), "phaze"),),
            "family": ((self.published.families.get(family, {}).get(model, ""), "phaze"),),
        }[role]

    @cached_property
    def common(self) -> str:
        """Return the named architecture that is the printed common one; empty if none is."""
        return common_name(self.inputs, self.published)

    def plan(self, reading: str, model: str) -> pd.Series | None:
        """Return the plan on the accelerator that is printed for a workload, with the HBM that suffices."""
        chip = self.published.families[self.family].get(model, "")
        rows = self._rows.get((reading, model, chip, "phaze"))
        return None if rows is None else choose(rows.assign(area_um2=0.0), self.inputs.study.screen.tolerance)

    def ratio(self, reading: str, model: str, mean: str) -> float:
        """Return what a printed mean is a mean of; 0 if one of the two is not placed."""
        above, below = (self.best(reading, model, role) for role in MEANS[mean])
        return above / below if below else 0.0

    @cached_property
    def undecided(self) -> tuple[str, ...]:
        """Return the workloads of which no reading changes the common accelerator's speed-up very much."""
        return tuple(model for model in self.models if not self._is_decided(model))

    def _is_decided(self, model: str) -> bool:
        found = [self.ratio(reading, model, "common") for reading in self.names]
        changes = [ratio / found[0] for ratio in found if ratio and found[0]]
        return any(change > DECIDES or change < 1 / DECIDES for change in changes)


def readings_of(inputs: Inputs) -> Readings | None:
    """Return the readings of a study that shows a publication with accelerators of its own, else None."""
    published = inputs.published
    if inputs.readings.empty or published is None or not is_beside(inputs.study, published):
        return None
    if inputs.study.architectures.baseline is None:
        return None
    named = set(inputs.study.architectures.named)
    own = next((f for f, chips in published.families.items() if set(chips.values()) & named), None)
    return Readings(inputs, published, own) if own else None


def reading_figures(inputs: Inputs) -> pd.DataFrame:
    """Return table reading_figures; empty for a study that is not beside a publication."""
    found = readings_of(inputs)
    if found is None:
        return ReadingFigures.empty()
    rows = [row for reading in found.names for row in _figures(found, reading)]
    return ReadingFigures.check(pd.DataFrame(rows)) if rows else ReadingFigures.empty()


def _figures(found: Readings, reading: str) -> Iterator[dict[str, object]]:
    """Yield the printed figures beside those of a reading."""
    for model in found.models:
        printed = found.published.workloads[model]
        for row in (*_placement(found, reading, model, printed), *_mfus(found, reading, model, printed)):
            yield {"reading": reading, "model": model, **row}
    headline = found.published.headline
    for models, of in (("all", found.models), ("undecided", found.undecided)):
        for mean in MEANS if headline and of else ():
            ratios = [found.ratio(reading, model, mean) for model in of]
            ours = geometric_mean([ratio for ratio in ratios if ratio])
            row = _beside(float(getattr(headline, mean)), ours, NEAR_MEAN, times)
            yield {"reading": reading, "model": models, "kind": "mean", "of": mean, **row}


def _placement(
    found: Readings, reading: str, model: str, printed: PublishedWorkload
) -> Iterator[dict[str, object]]:
    plan, chip = printed.placement, printed.architecture
    if plan is None or chip is None:
        return
    theirs = (plan.pipeline, plan.data, plan.tensor)
    rest = (plan.microbatch, plan.recompute, chip.hbm_gib)
    row = found.plan(reading, model)
    ours = () if row is None else (row["stages"], row["data"], row["tensor"])
    whole = () if row is None else (row["microbatch"], row["recompute"], row["hbm_gib"])
    yield {
        "kind": "placement",
        "of": found.family,
        "printed": _in_words("{" + ", ".join(map(str, theirs)) + "}", *rest),
        "ours": "" if row is None else _in_words(widths(row), *whole),
        "ratio": 0.0,
        "agrees": ours == theirs,
        "in_full": ours == theirs and whole == rest,
    }


def _in_words(placement: str, microbatch: int, recompute: bool, hbm_gib: float) -> str:
    """Return a placement as one cell of a table."""
    return f"{placement}, {microbatch}, {storing(recompute)}, {hbm_gib:g} GiB"


def _mfus(
    found: Readings, reading: str, model: str, printed: PublishedWorkload
) -> Iterator[dict[str, object]]:
    for kind, role in MFUS.items() if printed.mfu else ():
        theirs, ours = float(getattr(printed.mfu, kind)), found.best(reading, model, role, "mfu")
        yield {"kind": "mfu", "of": role, **_beside(theirs, ours, NEAR_MFU, percent)}


def _beside(theirs: float, ours: float, near: float, words: Callable[[float], str]) -> dict[str, object]:
    """Return a printed figure beside ours."""
    ratio = ours / theirs
    return {
        "printed": words(theirs),
        "ours": words(ours) if ours else "",
        "ratio": ratio,
        "agrees": 1 / near <= ratio <= near,
        "in_full": False,
    }


def reading_scores(inputs: Inputs, figures: pd.DataFrame) -> pd.DataFrame:
    """Return table reading_scores from the figures; empty where there are none."""
    notes = {name: reading.note for name, reading in inputs.study.shown_readings.items()}
    headline = inputs.published.headline if inputs.published else None
    rows = []
    for reading, mine in figures.groupby("reading", sort=False):
        placed, mfus = (mine[mine["kind"] == kind] for kind in ("placement", "mfu"))
        means = mine[(mine["kind"] == "mean") & (mine["model"] == "all")].set_index("of")["ratio"]
        logs = np.log(mfus["ratio"][mfus["ratio"] > 0])
        rows.append(
            {
                "reading": reading,
                "note": notes[str(reading)],
                "placements": int(placed["agrees"].sum()),
                "in_full": int(placed["in_full"].sum()),
                "printed_placements": len(placed),
                "mfu_factor": float(np.exp(np.sqrt((logs**2).mean()))) if len(logs) else 0.0,
                "printed_mfus": len(logs),
                **{mean: float(means.get(mean, 0.0)) * getattr(headline, mean, 0.0) for mean in MEANS},
            }
        )
    return ReadingScores.check(pd.DataFrame(rows)) if rows else ReadingScores.empty()


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values, 0 for none."""
    return float(np.exp(np.mean(np.log(values)))) if values else 0.0
