"""Comparison of a study's readings, and the printed figures that each of them explains.

Every figure uses the best HBM size of the study, on any accelerator. The experts' placement on the baseline
splits the layers evenly if that fits, and otherwise uses the best split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from phaze.papers.page import words_of
from phaze.papers.phaze.beside import Beside
from phaze.papers.publications import Published
from phaze.papers.scores import geometric_mean, rms_factor
from phaze.report.document import Block, Heading, Items, Prose, Sheet
from phaze.report.inputs import Inputs
from phaze.report.words import fill, join, percent, storing, times, widths
from phaze.search.winners import choose
from phaze.spec.study import OWN_READING
from phaze.tables import ReadingFigures, ReadingScores
from phaze.tables.columns import layout_of

NEAR_MEAN, NEAR_MFU = 1.1, 1.25
"""Factors within which a mean, and a utilisation, agree with the printed one."""
DECIDES = 3.0
"""Change of a speed-up by a reading above which it depends on one assumption; a factor."""
MEANS = {
    "per_model": ("per-model", "expert", "per-model over baseline with experts"),
    "common": ("common", "expert", "common over baseline with experts"),
    "common_over_baseline": ("common", "baseline", "common over baseline"),
    "common_over_family": ("common", "family", "common over the other family"),
}
"""Printed geometric means: the two roles whose throughputs are divided, and a label."""
MFUS = {
    "expert": ("baseline_expert", "baseline, experts"),
    "baseline": ("baseline", "baseline"),
    "common": ("common", "common"),
}
"""Printed utilisations by role: key in the publication, and label."""
Row = dict[str, object]
WORDS = words_of("phaze")


@dataclass(frozen=True)
class ReadingsBeside:
    """Readings of a study, compared with its publication."""

    beside: Beside
    family: str
    """Family of the publication's own accelerators."""

    @property
    def inputs(self) -> Inputs:
        """Tables of the study."""
        return self.beside.inputs

    @property
    def published(self) -> Published:
        """Publication that the study is compared with."""
        return self.beside.published

    @property
    def models(self) -> tuple[str, ...]:
        """Workloads of the study that the publication has."""
        return tuple(m for m in self.inputs.study.models if m in self.published.workloads)

    @cached_property
    def _rows(self) -> Mapping[tuple[str, str, str, str], pd.DataFrame]:
        keys = ["reading", "model", "architecture", "planner"]
        placed = self.inputs.readings[self.inputs.readings["status"] == "placed"]
        return dict(iter(placed.groupby(keys)))  # type: ignore[arg-type]

    def best(self, reading: str, model: str, role: str, value: str = "samples_per_s") -> float:
        """Best throughput, or other `value`, of a role's accelerator and planner; 0 without a placement."""
        families, headline = self.published.families, self.published.headline
        baseline = str(self.inputs.study.architectures.baseline)
        other = families.get(headline.compared_family, {}) if headline else {}
        for chip, planner in {
            "expert": [(baseline, "expert-even"), (baseline, "expert")],
            "baseline": [(baseline, "phaze")],
            "common": [(self.beside.common_name, "phaze")],
            "per-model": [(families[self.family].get(model, ""), "phaze")],
            "family": [(other.get(model, ""), "phaze")],
        }[role]:
            if (reading, model, chip, planner) in self._rows:
                return float(self._rows[reading, model, chip, planner][value].max())
        return 0.0

    def ratio(self, reading: str, model: str, mean: str) -> float:
        """Throughput ratio of one workload that enters a printed mean; 0 if either role is not placed."""
        above, below = (self.best(reading, model, role) for role in MEANS[mean][:2])
        return above / below if below else 0.0

    def is_decided(self, model: str) -> bool:
        """True if a reading changes the common accelerator's speed-up by more than `DECIDES`."""
        found = [self.ratio(reading, model, "common") for reading in self.inputs.study.shown_readings]
        changes = [ratio / found[0] for ratio in found if ratio and found[0]]
        return any(change > DECIDES or change < 1 / DECIDES for change in changes)

    def figures(self, reading: str) -> Iterator[Row]:
        """Yield the rows of table `reading_figures` for a reading."""
        for model in self.models:
            yield from self._placement(reading, model)
            mfu = self.published.workloads[model].mfu
            for role, (key, _) in MFUS.items() if mfu else ():
                theirs, ours = float(getattr(mfu, key)), self.best(reading, model, role, "mfu_paper")
                row = _figure(theirs, ours, NEAR_MFU, percent)
                yield {"reading": reading, "model": model, "kind": "mfu", "of": role, **row}
        undecided = tuple(model for model in self.models if not self.is_decided(model))
        for models, of in (("all", self.models), ("undecided", undecided)):
            for mean in MEANS if self.published.headline and of else ():
                ratios = [ratio for model in of if (ratio := self.ratio(reading, model, mean))]
                theirs, ours = (
                    float(getattr(self.published.headline, mean)),
                    geometric_mean(ratios) if ratios else 0.0,
                )
                row = _figure(theirs, ours, NEAR_MEAN, times)
                yield {"reading": reading, "model": models, "kind": "mean", "of": mean, **row}

    def _placement(self, reading: str, model: str) -> Iterator[Row]:
        """Yield the row on the placement on a workload's printed accelerator, at the chosen HBM size."""
        printed = self.published.workloads[model]
        plan, chip = printed.placement, printed.architecture
        if plan is None or chip is None:
            return
        rows = self._rows.get((reading, model, self.published.families[self.family].get(model, ""), "phaze"))
        row = None if rows is None else choose(rows.assign(area_um2=0.0), self.inputs.study.screen.tolerance)
        theirs = (plan.pipeline, plan.data, plan.tensor)
        rest = (plan.microbatch, plan.recompute, chip.hbm_gib)
        ours = () if row is None else (row["stages"], row["data"], layout_of(row).tp)
        whole = () if row is None else (layout_of(row).microbatch, row["recompute"], row["hbm_gib"])
        yield {
            "reading": reading,
            "model": model,
            "kind": "placement",
            "of": self.family,
            "printed": _in_words("{" + ", ".join(map(str, theirs)) + "}", *rest),
            "ours": "" if row is None else _in_words(widths(row), *whole),
            "ratio": 0.0,
            "agrees": ours == theirs,
            "in_full": ours == theirs and whole == rest,
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
    study, families = beside.inputs.study, beside.published.families
    named = set(study.architectures.named)
    own = next((f for f, chips in families.items() if set(chips.values()) & named), None)
    none = beside.inputs.readings.empty or not beside.shares_baseline
    if none or study.architectures.baseline is None or own is None:
        return ReadingFigures.empty()
    read = ReadingsBeside(beside, own)
    rows = [row for reading in study.shown_readings for row in read.figures(reading)]
    return ReadingFigures.check(pd.DataFrame(rows)) if rows else ReadingFigures.empty()


def reading_scores(beside: Beside, figures: pd.DataFrame) -> pd.DataFrame:
    """Build table `reading_scores` from the figures; empty without figures."""
    notes = {name: reading.note for name, reading in beside.inputs.study.shown_readings.items()}
    headline = beside.published.headline
    rows = []
    for reading, mine in figures.groupby("reading", sort=False):
        placed, mfus = (mine[mine["kind"] == kind] for kind in ("placement", "mfu"))
        means = mine[(mine["kind"] == "mean") & (mine["model"] == "all")].set_index("of")["ratio"]
        rows.append(
            {
                "reading": reading,
                "note": notes[str(reading)],
                "placements": int(placed["agrees"].sum()),
                "in_full": int(placed["in_full"].sum()),
                "printed_placements": len(placed),
                "mfu_factor": rms_factor(mfus["ratio"]),
                "printed_mfus": int((mfus["ratio"] > 0).sum()),
                **{mean: float(means.get(mean, 0.0)) * getattr(headline, mean, 0.0) for mean in MEANS},
            }
        )
    return ReadingScores.check(pd.DataFrame(rows)) if rows else ReadingScores.empty()


def readings(beside: Beside, every: pd.DataFrame, scores: pd.DataFrame) -> Iterator[Block]:
    """Yield the blocks that compare readings, from both tables of readings; nothing without readings."""
    if not scores.empty:
        figures = _in_order(beside.inputs, every)
        figures = figures.assign(
            called=[_called(*key) for key in zip(figures["kind"], figures["of"], strict=True)]
        )
        yield from (Heading("Readings of the paper's setting"), Prose(WORDS.sentences["readings"]))
        yield from (_scores_sheet(beside, every, scores), *_explained(figures), *_beside(figures))


def _in_order(inputs: Inputs, figures: pd.DataFrame) -> pd.DataFrame:
    """Figures sorted by kind, workload, accelerator and reading, in the order of page and study."""
    orders = {
        "kind": list(_KINDS),
        "model": list(inputs.study.models),
        "of": [*MFUS, *MEANS],
        "reading": list(inputs.study.shown_readings),
    }
    places = {key: figures[key].map({name: i for i, name in enumerate(o)}) for key, o in orders.items()}
    return figures.loc[pd.DataFrame(places).fillna(-1).sort_values(list(places), kind="stable").index]


def in_words(scores: pd.DataFrame) -> str:
    """Sentence on the agreement of the best reading with the publication; empty without readings."""
    if len(scores) < 2:
        return ""
    own = scores[scores["reading"] == OWN_READING].iloc[0]
    best = scores.sort_values("mfu_factor").iloc[0]
    given = {"reading": best["reading"], "best_placements": best["placements"]}
    given |= {"best_in_full": best["in_full"], "best_factor": best["mfu_factor"]}
    return fill(WORDS.sentences["answer"], pd.Series({**own, **given}, dtype=object))


def _scores_sheet(beside: Beside, figures: pd.DataFrame, scores: pd.DataFrame) -> Sheet:
    """Table of the agreement of each reading, with the printed figures as first row."""
    headline = beside.published.headline
    scores = scores.set_index("reading").loc[list(beside.inputs.study.shown_readings)].reset_index()
    means = figures[(figures["kind"] == "mean") & (figures["model"] == "undecided")]
    by_mean = means.pivot(index="reading", columns="of", values="ours").reindex(columns=list(MEANS))
    scores = scores.join(by_mean.add_prefix("undecided_"), on="reading").fillna("–")
    sheet = WORDS.sheet("scores", scores, printed_mfus=scores["printed_mfus"].iloc[0], decides=DECIDES)
    count = str(scores["printed_placements"].iloc[0])
    printed = tuple(times(float(getattr(headline, mean))) if headline else "–" for mean in MEANS)
    theirs = ("", "as the paper prints them", count, count, "1.00", *printed, *("–" for _ in MEANS))
    return replace(sheet, rows=(theirs, *sheet.rows), marked=frozenset({0}))


_NONE = "none: unexplained"
_KINDS = {"placement": "placements", "mfu": "utilisations", "mean": "means"}


def _explained(every: pd.DataFrame) -> Iterator[Block]:
    """Yield the blocks on each printed figure: the readings that reproduce it, if any."""
    rows = []
    for (kind, model, _), mine in every[every["model"] != "undecided"].groupby(
        ["kind", "model", "of"], sort=False
    ):
        agree, first = mine[mine["agrees"]], mine.iloc[0]
        ratio = mine["ratio"].where(mine["ratio"] > 0)
        off = pd.concat([ratio, 1 / ratio], axis=1).max(axis=1).fillna(float("inf"))
        near = mine if kind == "placement" else mine.loc[off.sort_values().index]
        nearest = (agree if len(agree) else near)["ours"].iloc[0]
        given = join(agree["reading"]) if len(agree) else _NONE
        missing = "" if len(agree) else first["called"] + ("" if kind == "mean" else f" of {model}")
        found = {"study": first["ours"], "nearest": nearest, "given": given, "missing": missing}
        rows.append({**first[["kind", "model", "called", "printed"]], **found})
    table = pd.DataFrame(rows)
    sentences = []
    for kind, mine in table.groupby("kind", sort=False):
        none = [words for words in mine["missing"] if words]
        gives = f"Of {len(mine)} printed {_KINDS[str(kind)]} some reading gives {len(mine) - len(none)}"
        sentences.append(gives + (f"; unexplained: {join(none)}." if none else "."))
    yield Heading("What explains each figure")
    yield Items(tuple(sentences))
    yield WORDS.sheet("explained", table, table["given"] == _NONE, mfu=NEAR_MFU, mean=NEAR_MEAN)


def _called(kind: str, of: str) -> str:
    return "placement" if kind == "placement" else (MFUS if kind == "mfu" else MEANS)[of][-1]


def _beside(figures: pd.DataFrame) -> Iterator[Block]:
    """Yield tables of utilisations and placements, with a column per reading."""
    for kind in ("mfu", "placement"):
        mine = figures[figures["kind"] == kind].replace({"ours": {"": "fits nowhere"}})
        printed = mine.drop_duplicates(["model", "of"]).assign(
            reading="printed", ours=lambda rows: rows["printed"]
        )
        heads = {name: name for name in ("printed", *mine["reading"].unique())}
        sheet = WORDS.sheet(kind, pd.concat([printed, mine]), heads=heads)
        yield sheet if kind == "mfu" else replace(sheet, words=len(sheet.header))
