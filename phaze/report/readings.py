"""What the readings of a study give, side by side, and which printed figures each of them explains.

Every figure of a reading is of the same choice of HBM: the best over the sizes of the study, on whatever
accelerator. The baseline's experts cut the layers evenly where that fits, else in the way that suits best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from phaze.report.document import Block, Cell, Heading, Items, Section, Sheet, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.winners import choose, common_name, is_beside
from phaze.report.words import join, percent, storing, times, widths
from phaze.spec.published import Published, PublishedWorkload
from phaze.spec.study import OWN_READING
from phaze.tables import ReadingFigures, ReadingScores
from phaze.tables.columns import layout_of

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
    for model in found.models:
        printed = found.published.workloads[model]
        for row in _placement(found, reading, model, printed):
            yield {"reading": reading, "model": model, "kind": "placement", **row}
        for kind, role in MFUS.items() if printed.mfu else ():
            theirs, ours = float(getattr(printed.mfu, kind)), found.best(reading, model, role, "mfu")
            row = _figure(theirs, ours, NEAR_MFU, percent)
            yield {"reading": reading, "model": model, "kind": "mfu", "of": role, **row}
    headline = found.published.headline
    for models, of in (("all", found.models), ("undecided", found.undecided)):
        for mean in MEANS if headline and of else ():
            ratios = [found.ratio(reading, model, mean) for model in of]
            ours = geometric_mean([ratio for ratio in ratios if ratio])
            row = _figure(float(getattr(headline, mean)), ours, NEAR_MEAN, times)
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
    ours = () if row is None else (row["stages"], row["data"], layout_of(row).tp)
    whole = () if row is None else (layout_of(row).microbatch, row["recompute"], row["hbm_gib"])
    yield {
        "of": found.family,
        "printed": _in_words("{" + ", ".join(map(str, theirs)) + "}", *rest),
        "ours": "" if row is None else _in_words(widths(row), *whole),
        "ratio": 0.0,
        "agrees": ours == theirs,
        "in_full": ours == theirs and whole == rest,
    }


def _in_words(placement: str, microbatch: int, recompute: bool, hbm_gib: float) -> str:
    return f"{placement}, {microbatch}, {storing(recompute)}, {hbm_gib:g} GiB"


def _figure(theirs: float, ours: float, near: float, words: Callable[[float], str]) -> dict[str, object]:
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


_ABOUT = (
    "The same accelerators and workloads under other settings, each evaluated as the study is. A figure is "
    "of the best of all HBM sizes of the study on any accelerator; the experts' placement cuts layers evenly."
)
_ROLES = {"expert": "baseline, experts", "baseline": "baseline", "common": "common"}
_MEANS = {
    "per_model": "per-model over baseline with experts",
    "common": "common over baseline with experts",
    "common_over_baseline": "common over baseline",
    "common_over_family": "common over the other family",
}


def readings(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the readings, for a study that has some."""
    if not findings.reading_scores.empty:
        figures = _in_order(inputs, findings.reading_figures)
        blocks = (_scores_sheet(inputs, findings), *_explained(figures), *_beside(figures), *_missing(inputs))
        yield Section("readings", "Readings of the paper's setting", _ABOUT, blocks)


def _in_order(inputs: Inputs, figures: pd.DataFrame) -> pd.DataFrame:
    """Return figures by kind, workload and accelerator in the order of page and study, then by reading."""
    orders = {
        "kind": list(_KINDS),
        "model": list(inputs.study.models),
        "of": [*_ROLES, *_MEANS],
        "reading": list(inputs.study.shown_readings),
    }
    places = {key: figures[key].map({name: i for i, name in enumerate(o)}) for key, o in orders.items()}
    return figures.loc[pd.DataFrame(places).fillna(-1).sort_values(list(places), kind="stable").index]


def in_words(findings: Findings) -> str:
    """Return how near the best reading comes to the publication in a sentence; empty without readings."""
    scores = findings.reading_scores
    if len(scores) < 2:
        return ""
    own = scores[scores["reading"] == OWN_READING].iloc[0]
    best = scores.sort_values("mfu_factor").iloc[0]
    return (
        f"As printed, {own['placements']} of {own['printed_placements']} placements of the paper come out, "
        f"and its utilisations are off by a factor of {own['mfu_factor']:.2f}; read as “{best['reading']}”, "
        f"{best['placements']} placements, {best['in_full']} of them in full, and {best['mfu_factor']:.2f}."
    )


def _scores_sheet(inputs: Inputs, findings: Findings) -> Sheet:
    """Return how near every reading comes, with the printed figures as the first row."""
    headline, figures = inputs.published.headline if inputs.published else None, findings.reading_figures
    scores = findings.reading_scores.set_index("reading").loc[list(inputs.study.shown_readings)].reset_index()
    means = figures[(figures["kind"] == "mean") & (figures["model"] == "undecided")]
    wide = means.pivot(index="reading", columns="of", values="ours").reindex(columns=list(MEANS))
    scores = scores.join(wide.add_prefix("undecided_"), on="reading").fillna("–")
    columns: dict[str, Cell] = {
        "reading": "{reading}", "what it assumes": "{note}", "placements": "{placements}",
        "in full": "{in_full}", "MFU off by": "{mfu_factor:.2f}",
        **{_MEANS[mean]: f"{{{mean}:times}}" for mean in MEANS},
        **{f"{_MEANS[mean]}, undecided": f"{{undecided_{mean}}}" for mean in MEANS},
    }  # fmt: skip
    caption = (
        f"Placements with the printed {{p, d, t}}, and in full with microbatch, recomputation and HBM; by "
        f"what factor the {scores['printed_mfus'].iloc[0]} utilisations are off (root mean square); "
        "geometric means over all workloads, and over those whose speed-up no reading changes more than "
        f"{DECIDES:g} times"
    )
    sheet = sheet_of(caption, scores, columns, 2, source="reading_scores")
    count = str(scores["printed_placements"].iloc[0])
    printed = tuple(times(float(getattr(headline, mean))) if headline else "–" for mean in MEANS)
    theirs = ("", "as the paper prints them", count, count, "1.00", *printed, *("–" for _ in MEANS))
    return replace(sheet, rows=(theirs, *sheet.rows), marked=frozenset({0}))


def _explained(every: pd.DataFrame) -> Iterator[Block]:
    """Yield for every printed figure which readings give it, or that none does."""
    figures = every[every["model"] != "undecided"]
    rows: list[tuple[str, ...]] = []
    counts: dict[str, int] = {}
    missing: dict[str, list[str]] = {}
    for (kind, model, of), mine in figures.groupby(["kind", "model", "of"], sort=False):
        agree, called = mine[mine["agrees"]], _called(str(kind), str(of))
        counts[str(kind)] = counts.get(str(kind), 0) + 1
        if agree.empty:
            missing.setdefault(str(kind), []).append(called + ("" if kind == "mean" else f" of {model}"))
        near = mine if kind == "placement" else mine.loc[_distance(mine).sort_values().index]
        shown = agree if len(agree) else near
        rows.append(
            (
                called, str(model), str(mine["printed"].iloc[0]), str(mine["ours"].iloc[0]),
                str(shown["ours"].iloc[0]), join(agree["reading"]) if len(agree) else _NONE,
            )
        )  # fmt: skip
    header = ("figure", "workload", "printed", "the study", "nearest", "readings that give it")
    caption = (
        "What explains each printed figure: the readings with the same {p, d, t}, a utilisation within a "
        f"factor of {NEAR_MFU:g}, a mean within {NEAR_MEAN:g}; those that stand out no reading gives"
    )
    yield Heading("What explains each figure")
    yield Items(tuple(_counted(kind, number, missing.get(kind, [])) for kind, number in counts.items()))
    marked = frozenset(i for i, row in enumerate(rows) if row[-1] == _NONE)
    yield Sheet(caption, header, tuple(rows), 6, marked, "reading_figures")


_NONE = "none: unexplained"
_KINDS = {"placement": "placements", "mfu": "utilisations", "mean": "means"}


def _counted(kind: str, number: int, missing: list[str]) -> str:
    """Return how many figures of a kind some reading gives, and which none does."""
    without = f"; unexplained: {join(missing)}" if missing else ""
    return f"Of {number} printed {_KINDS[kind]} some reading gives {number - len(missing)}{without}."


def _called(kind: str, of: str) -> str:
    return {"placement": {of: "placement"}, "mfu": _ROLES, "mean": _MEANS}[kind][of]


def _distance(figures: pd.DataFrame) -> pd.Series:
    """Return how far ours are from the printed, as a factor of at least 1; infinite where nothing fits."""
    ratio = figures["ratio"].where(figures["ratio"] > 0)
    return pd.concat([ratio, 1 / ratio], axis=1).max(axis=1).fillna(float("inf"))


def _beside(figures: pd.DataFrame) -> Iterator[Block]:
    """Yield utilisations and placements with a column for every reading."""
    for kind, caption in (
        ("mfu", "Utilisation under every reading"),
        ("placement", "Placement on the accelerator that is printed for each workload, under every reading"),
    ):
        mine = figures[figures["kind"] == kind]
        names = list(dict.fromkeys(mine["reading"]))
        wide = mine.pivot(index=["model", "of"], columns="reading", values="ours").replace("", "fits nowhere")
        rows = mine.drop_duplicates(["model", "of"])[["kind", "model", "of", "printed"]]
        columns: dict[str, Cell] = {
            "workload": "{model}", "accelerator": lambda row: _called(row["kind"], row["of"]),
            "printed": "{printed}", **{name: partial(_under, name) for name in names},
        }  # fmt: skip
        words = 2 if kind == "mfu" else len(columns)
        yield sheet_of(caption, rows.join(wide, on=["model", "of"]), columns, words, source="reading_figures")


def _under(reading: str, row: pd.Series) -> str:
    return str(row[reading])


def _missing(inputs: Inputs) -> Iterator[Block]:
    if inputs.published and inputs.published.missing:
        yield Heading("What is missing")
        yield Items(inputs.published.missing)
