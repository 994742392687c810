"""The section on the readings of a study: side by side, and what they say of the printed figures."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.report.document import Block, Heading, Items, Section, Sheet
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.readings import DECIDES, MEANS, NEAR_MEAN, NEAR_MFU
from phaze.report.words import join, times
from phaze.spec.study import OWN_READING

_ABOUT = (
    "The same accelerators and workloads under other settings, each evaluated as the study is. A figure is "
    "of the best of all HBM sizes of the study on any accelerator; the experts' placement cuts layers evenly."
)
_ROLES = {
    "expert": "baseline, experts",
    "baseline": "baseline",
    "common": "common",
}
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
    headline = inputs.published.headline if inputs.published else None
    scores = findings.reading_scores.set_index("reading").loc[list(inputs.study.shown_readings)].reset_index()
    first = scores.iloc[0]
    undecided = _means(findings, "undecided")
    printed = tuple(times(float(getattr(headline, mean))) if headline else "–" for mean in MEANS)
    count = f"{first['printed_placements']}"
    rows = [("", "as the paper prints them", count, count, "1.00", *printed, *("–" for _ in MEANS))]
    rows += [
        (
            row["reading"], row["note"], str(row["placements"]), str(row["in_full"]),
            f"{row['mfu_factor']:.2f}",
            *(times(row[mean]) for mean in MEANS),
            *(undecided.get((row["reading"], mean), "–") for mean in MEANS),
        )
        for _, row in scores.iterrows()
    ]  # fmt: skip
    header = (
        "reading", "what it assumes", "placements", "in full", "MFU off by",
        *(_MEANS[mean] for mean in MEANS), *(f"{_MEANS[mean]}, undecided" for mean in MEANS),
    )  # fmt: skip
    caption = (
        f"Placements with the printed {{p, d, t}}, and in full with microbatch, recomputation and HBM; by "
        f"what factor the {first['printed_mfus']} utilisations are off (root mean square); geometric means "
        f"over all workloads, and over those whose speed-up no reading changes more than {DECIDES:g} times"
    )
    return Sheet(caption, header, tuple(rows), 2, frozenset({0}), "reading_scores")


def _means(findings: Findings, models: str) -> dict[tuple[str, str], str]:
    """Return the means over some models in words, by reading and mean."""
    figures = findings.reading_figures
    mine = figures[(figures["kind"] == "mean") & (figures["model"] == models)]
    return {(row["reading"], row["of"]): row["ours"] for _, row in mine.iterrows()}


def _explained(every: pd.DataFrame) -> Iterator[Block]:
    """Yield for every printed figure which readings give it, or that none does."""
    figures = every[every["model"] != "undecided"]
    rows: list[tuple[str, ...]] = []
    marked = set()
    for (kind, model, of), mine in figures.groupby(["kind", "model", "of"], sort=False):
        agree = mine[mine["agrees"]]
        if agree.empty:
            marked.add(len(rows))
        near = mine if kind == "placement" else mine.loc[_distance(mine).sort_values().index]
        shown = agree if len(agree) else near
        rows.append(
            (
                _called(str(kind), str(of)), str(model),
                str(mine["printed"].iloc[0]), str(mine["ours"].iloc[0]), str(shown["ours"].iloc[0]),
                join(agree["reading"]) if len(agree) else "none: unexplained",
            )
        )  # fmt: skip
    header = ("figure", "workload", "printed", "the study", "nearest", "readings that give it")
    caption = (
        "What explains each printed figure: the readings with the same {p, d, t}, a utilisation within a "
        f"factor of {NEAR_MFU:g}, a mean within {NEAR_MEAN:g}; those that stand out no reading gives"
    )
    count = figures.drop_duplicates(["kind", "model", "of"]).groupby("kind", sort=False).size()
    yield Heading("What explains each figure")
    yield Items(tuple(_counted(figures, str(kind), int(number)) for kind, number in count.items()))
    yield Sheet(caption, header, tuple(rows), 6, frozenset(marked), "reading_figures")


_KINDS = {"placement": "placements", "mfu": "utilisations", "mean": "means"}


def _counted(figures: pd.DataFrame, kind: str, number: int) -> str:
    """Return how many figures of a kind some reading gives, and which none does."""
    mine = figures[figures["kind"] == kind]
    given = mine.groupby(["model", "of"], sort=False)["agrees"].any()
    rest = [
        _called(kind, str(of)) + ("" if kind == "mean" else f" of {model}")
        for model, of in given.index[~given.to_numpy()]
    ]
    without = f"; unexplained: {join(rest)}" if rest else ""
    return f"Of {number} printed {_KINDS[kind]} some reading gives {int(given.sum())}{without}."


def _called(kind: str, of: str) -> str:
    """Return what a figure is of, for readers."""
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
        cells = mine.set_index(["model", "of", "reading"])["ours"]
        rows = [
            (row["model"], _called(kind, row["of"]), row["printed"],
             *(cells[row["model"], row["of"], name] or "fits nowhere" for name in names))
            for _, row in mine.drop_duplicates(["model", "of"]).iterrows()
        ]  # fmt: skip
        header = ("workload", "accelerator", "printed", *names)
        yield Sheet(
            caption, header, tuple(rows), 2 if kind == "mfu" else len(header), source="reading_figures"
        )


def _missing(inputs: Inputs) -> Iterator[Block]:
    """Yield what the publication prints and the study does not show."""
    if inputs.published and inputs.published.missing:
        yield Heading("What is missing")
        yield Items(inputs.published.missing)
