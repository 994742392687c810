"""Section of the Parmesan paper: published speed-ups next to ours, under each interpretation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pandas as pd

from phaze.base.units import digits
from phaze.pages.document import Block, Items, Prose, Section, Sheet
from phaze.pages.verdicts import run_checks
from phaze.papers.case_checks import MAP_CHECKS
from phaze.papers.cases import MapCases
from phaze.papers.page import Paper, paper_of, words_of
from phaze.papers.publications import PublishedMaps
from phaze.papers.scores import geometric_mean, mean_factor
from phaze.papers.speed_ups import speed_ups, steps
from phaze.spec.map_study import MapCase, MapReading, Search
from phaze.spec.topology import MeshOrTorus, RandomBlocks, UniformDist
from phaze.tables import Checks, FiguresRead, Mappings, SearchGaps, SpeedUps

Row = dict[str, object]
WORDS = words_of("parmesan")

OWN: dict[Search, str] = {"ours": "ours", "authors": "paper"}
"""Column of `phaze.papers.speed_ups.steps` that holds the step times of each kind of search."""
OVER = {
    "over-consecutive": ("cs-map", "over CS map (Table III)"),
    "over-heuristics": ("heuristics", "over CS and p2p map (Table VI)"),
}
"""Baseline column of `phaze.papers.speed_ups.steps` and display name, for each published speed-up."""
FIRST = "pipedream"
"""Partitioner that, with CS map, is the baseline of the published speed-ups by partitioner."""
REFINED = {"refined, CS map for both (Table IV)": "cs-map", "refined, our map for each (Table IV)": "ours"}
"""Column of `phaze.papers.speed_ups.steps` for each speed-up of refinement over clustering alone."""


@dataclass(frozen=True)
class MapInputs(MapCases):
    """Mappings of a study, and Parmesan's publication to compare them with."""

    published: PublishedMaps | None = None
    search_gaps: pd.DataFrame = field(default_factory=SearchGaps.empty)
    """Table `search_gaps`: local search alone against optima and bounds, for cases with `show: gaps`."""

    def subjects(self, case: MapCase) -> dict[str, str]:
        """Display names of the topologies or graphs that a case compares."""
        if case.show == "topologies":
            return {topology: self.label(topology) for topology in case.topologies}
        return {graph: self.study.graphs[graph].label for graph in case.graphs}


def readings_of(case: MapCase) -> dict[str, MapReading]:
    """Interpretations of a case; if the case lists none, our mappings of its first partition.

    Empty for several graphs by topology: the printed speed-ups are of one graph.
    """
    if case.readings or (case.show == "topologies" and len(case.graphs) > 1):
        return case.readings
    return {"ours": MapReading(label="ours", partitioner=case.partitioners[0])}


def read_figures(inputs: MapInputs) -> pd.DataFrame:
    """Build table `figures_read`: published speed-ups next to ours under each interpretation."""
    rows = [
        {"case": name, "reading": key, **row}
        for show, read in (("topologies", _by_topology), ("partitioners", _by_partitioner))
        for name, case in inputs.showing(show)
        for key, reading in readings_of(case).items()
        for row in read(inputs, case, reading, _steps(inputs, name, reading))
    ]
    return pd.DataFrame(rows) if rows else FiguresRead.empty()


def _steps(inputs: MapInputs, name: str, reading: MapReading) -> pd.DataFrame:
    """Step times of a case, in the measure that an interpretation uses to compare mappings."""
    return inputs.rows(name, f"{reading.judge.replace('-', '_')}_s", reading)


def _by_topology(inputs: MapInputs, case: MapCase, reading: MapReading, rows: pd.DataFrame) -> Iterator[Row]:
    """Yield our and the published speed-ups by topology under an interpretation; medians over seeds."""
    topologies = reading.topologies or {topology: topology for topology in case.topologies}
    for (topology, used), (over, (column, _)) in product(topologies.items(), OVER.items()):
        printed = getattr(inputs.published, over.replace("-", "_"), {}).get(topology, {})
        for shape, shape_rows in rows[rows["topology"] == used].groupby("shape"):
            ours = float(np.median(shape_rows[column] / shape_rows[OWN[reading.search]]))
            about = {"subject": topology, "figure": over, "shape": shape}
            yield {**about, "ours": ours, "printed": float(printed.get(shape, 0.0))}


def _by_partitioner(
    inputs: MapInputs, case: MapCase, reading: MapReading, rows: pd.DataFrame
) -> Iterator[Row]:
    """Yield speed-ups over PipeDream's partition with CS map, and speed-ups from refinement."""
    first, published = reading.partitioner, inputs.published
    if published is None:
        return
    for graph in case.graphs:
        # The reading names the partition of ours that stands for PipeDream's.
        for partitioner, mappings in published.over_first.get(graph, {}).items():
            cut_by = first if partitioner == FIRST else partitioner
            for mapping, by_shape in mappings.items():
                # The baseline has no speed-up over itself.
                if (cut_by, mapping) != (first, "cs-map"):
                    other = cut_by, OWN[reading.search] if mapping == "ours" else mapping
                    labels = graph, f"{partitioner} {mapping}"
                    yield from _ratios(rows, labels, (first, "cs-map"), other, by_shape)
        for figure, column in REFINED.items():
            by_shape = published.over_clusters.get(graph, {})
            yield from _ratios(rows, (graph, figure), ("clusters", column), ("paper", column), by_shape)


def _ratios(
    rows: pd.DataFrame,
    labels: tuple[str, str],
    first: tuple[str, str],
    other: tuple[str, str],
    printed: Mapping[str, float],
) -> Iterator[Row]:
    """Yield our and the published speed-ups of `other` over `first`, two pairs of partitioner and mapping.

    `labels` is the graph and the name of the figure. Shapes without our result are left out.
    """
    graph, figure = labels
    key = ["shape", "partitioner"]
    steps_of = rows[rows["graph"] == graph].drop_duplicates(key).set_index(key)
    for shape, value in printed.items():
        if {(shape, first[0]), (shape, other[0])} <= set(steps_of.index):
            first_s, other_s = (steps_of[column].loc[shape, by] for by, column in (first, other))
            about = {"subject": graph, "figure": figure, "shape": shape}
            yield {**about, "ours": first_s / other_s, "printed": value}


def groups(inputs: MapInputs, case: MapCase) -> dict[str, list[str]]:
    """Non-empty groups of a case's topologies: meshes and tori, random topologies, and other topologies."""
    kinds = {topology: inputs.study.topologies[topology].sizes[0] for topology in case.topologies}
    classes = {"meshes and tori": (MeshOrTorus,), "random topologies": (RandomBlocks, UniformDist)}
    members = {name: [t for t, kind in kinds.items() if isinstance(kind, of)] for name, of in classes.items()}
    grouped = {topology for topologies in members.values() for topology in topologies}
    members["other topologies"] = [topology for topology in kinds if topology not in grouped]
    return {name: topologies for name, topologies in members.items() if topologies}


def about(figures: pd.DataFrame, reading: str, subjects: Sequence[str]) -> pd.DataFrame:
    """Speed-ups under an interpretation for the given topologies or graphs; empty if any is missing."""
    selected = figures[(figures["reading"] == reading) & figures["subject"].isin(subjects)]
    return selected if set(selected["subject"]) == set(subjects) else selected.iloc[:0]


def nearest(figures: pd.DataFrame, readings: Iterable[str], subjects: Sequence[str]) -> tuple[str, float]:
    """Interpretation with the smallest mean deviation over all `subjects`, and that deviation."""
    factors = {reading: mean_factor(about(figures, reading, subjects)) for reading in readings}
    finite = {reading: factor for reading, factor in factors.items() if np.isfinite(factor)}
    return min(finite.items(), key=lambda pair: pair[1]) if finite else ("", float("nan"))


def sections_of(inputs: MapInputs, figures: pd.DataFrame) -> Iterator[Section]:
    """Yield the sections of all cases with figures, from the result of `read_figures`."""
    for show in ("topologies", "partitioners"):
        for name, case in inputs.showing(show):
            case_figures = figures[figures["case"] == name]
            if len(case_figures):
                yield WORDS.section(show, _blocks(inputs, case_figures, case), name=name)


def _blocks(inputs: MapInputs, figures: pd.DataFrame, case: MapCase) -> Iterator[Block]:
    """Yield report blocks: deviation of each interpretation, all figures, and the unexplained figures."""
    labels = inputs.subjects(case)
    # Refinement is compared with clusters, not with a baseline mapping: it is listed, but not scored.
    printed = figures[(figures["printed"] > 0) & ~figures["figure"].isin(REFINED)]
    by_shape = printed.groupby(["reading", "subject", "figure"], sort=False)[["ours", "printed"]]
    means = by_shape.agg(geometric_mean).reset_index().assign(shape="geometric mean")
    if len(printed):
        parts = {label: [subject] for subject, label in labels.items()}
        parts |= groups(inputs, case) if case.show == "topologies" else {}
        yield Prose(WORDS.sentences["factor"])
        yield _factors_sheet(printed, means, case, parts)
    yield _figures_sheet(pd.concat([figures, means]), case, labels)
    if sentences := tuple(open_sentences(printed, case)):
        yield Items(sentences)


def _figures_sheet(rows: pd.DataFrame, case: MapCase, labels: Mapping[str, str]) -> Sheet:
    """Report table of all figures: published, then ours under each interpretation."""
    rows = rows.assign(label=rows["subject"].map(labels))
    printed = rows.assign(reading="printed", cell=rows["printed"].map("{:.3g}".format))
    ours = rows.assign(cell=rows["ours"].map("{:.2f}".format))
    heads = {key: reading.label for key, reading in readings_of(case).items()}
    names = {over: name for over, (_, name) in OVER.items()}
    shown = pd.concat([printed[printed["printed"] > 0], ours]).replace({"figure": names})
    shown = shown.sort_values("label", key=lambda label: label.map([*labels.values()].index), kind="stable")
    return WORDS.sheet("figures", shown, heads={"printed": "printed"} | heads)


def _factors_sheet(
    figures: pd.DataFrame, means: pd.DataFrame, case: MapCase, parts: Mapping[str, Sequence[str]]
) -> Sheet:
    """Report table of mean deviations by interpretation: for each part, all figures and means over shapes."""
    rows = []
    for key, reading in readings_of(case).items():
        selected = figures[figures["reading"] == key]
        factors = {part: mean_factor(about(selected, key, subjects)) for part, subjects in parts.items()}
        selected_means = means[means["reading"] == key]
        factors |= {"all figures": mean_factor(selected), "means over shapes": mean_factor(selected_means)}
        cells = {part: digits(factor) for part, factor in factors.items()} | {"figures": str(len(selected))}
        rows += [{"reading": reading.label, "part": part, "cell": cell} for part, cell in cells.items()]
    return WORDS.sheet("factors", pd.DataFrame(rows))


def open_sentences(printed: pd.DataFrame, case: MapCase) -> Iterator[str]:
    """Yield a sentence per unexplained figure, with our values under the closest interpretation."""
    for unexplained in case.unexplained:
        shapes = [f"{stages}x{replicas}" for stages, replicas in unexplained.shapes or case.shapes]
        subjects = unexplained.topologies or unexplained.graphs or (*case.topologies, *case.graphs)
        figures = printed[printed["subject"].isin(subjects) & printed["shape"].isin(shapes)]
        key, factor = nearest(figures, case.plain_readings, sorted(set(figures["subject"])))
        if key:
            rows = figures[figures["reading"] == key]
            pairs = ", ".join(f"{a:.2f} ({b:g})" for a, b in zip(rows["ours"], rows["printed"], strict=True))
            details = {"label": case.readings[key].label, "figures": len(rows), "pairs": pairs}
            yield WORDS.sentence("unexplained", about=unexplained.about, factor=factor, **details)


def parmesan_paper(inputs: MapInputs) -> Paper:
    """Build Parmesan's section, which compares the paper with the mappings of a study."""
    gains, figures = SpeedUps.check(speed_ups(steps(inputs.mappings))), read_figures(inputs)
    return paper_of(
        "parmesan",
        inputs.published,
        answer_of(inputs, gains, figures),
        sections_of(inputs, figures),
        {
            "mappings": (Mappings, inputs.mappings),
            "speed-ups": (SpeedUps, gains),
            "figures-read": (FiguresRead, FiguresRead.check(figures[~figures["figure"].isin(REFINED)])),
            "search-gaps": (SearchGaps, inputs.search_gaps),
            "map-checks": (Checks, run_checks(MAP_CHECKS, inputs)),
        },
    )


def answer_of(inputs: MapInputs, gains: pd.DataFrame, figures: pd.DataFrame) -> str:
    """Summary by kind of topology: published gain from mapping, our gain, and the closest interpretation."""
    for name, case in inputs.showing("topologies"):
        case_figures = figures[(figures["case"] == name) & (figures["printed"] > 0)]
        if case.readings and len(case_figures):
            break
    else:
        mean = geometric_mean(gains["over_consecutive"])
        return WORDS.sentence("gain", mean=mean, cases=len(gains))
    over = case_figures[case_figures["figure"] == "over-consecutive"]
    first, graph = next(iter(case.readings)), inputs.study.graphs[case.graphs[0]].label
    gained, near = [], []
    for group, topologies in groups(inputs, case).items():
        means = about(over, first, topologies)[["ours", "printed"]].agg(geometric_mean)
        gained.append(WORDS.sentence("gained", group=group, **means))
        key, factor = nearest(case_figures, case.plain_readings, topologies)
        near.append(WORDS.sentence("near", group=group, factor=factor, label=case.readings[key].label))
    several = {"gained": " and ".join(gained), "near": " and ".join(near)}
    return WORDS.sentence("answer", graph=graph, readings=len(case.plain_readings), **several)
