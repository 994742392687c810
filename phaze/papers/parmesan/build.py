"""The page of the mappings: tables and figures of the Parmesan paper, pictures, and checks."""

from __future__ import annotations

import pandas as pd

from phaze.base.units import digits
from phaze.papers.page import Paper, checked, paper_of, part
from phaze.papers.parmesan.inputs import NETWORK, POINT, MapInputs, speed_ups, steps
from phaze.papers.parmesan.readings import about, groups, nearest, read_figures
from phaze.papers.parmesan.sections import sections_of
from phaze.papers.scores import geometric_mean, mean_factor
from phaze.report.document import FirstScreen
from phaze.report.pages import wide
from phaze.report.verdicts import ROUNDING, Checklist, Verdicts, each
from phaze.spec.map_study import MapCase
from phaze.tables import FiguresRead, Mappings, SpeedUps


def parmesan_paper(inputs: MapInputs) -> Paper:
    """The Parmesan paper beside the mappings of a study."""
    gains, figures = SpeedUps.check(speed_ups(steps(inputs.mappings))), read_figures(inputs)
    answer = answer_of(inputs, gains, figures)
    checks, table = checked("map-checks", CHECKS, inputs)
    return paper_of(
        "parmesan",
        inputs.published,
        answer.sentence,
        (answer.sheet, *part(sections_of(inputs, figures)), *checks),
        {
            "mappings": (Mappings, inputs.mappings),
            "speed-ups": (SpeedUps, gains),
            "figures-read": (FiguresRead, figures),
            **table,
        },
    )


def answer_of(inputs: MapInputs, gains: pd.DataFrame, figures: pd.DataFrame) -> FirstScreen:
    """The first screen: beside a publication where there are readings of it, else speed-ups alone."""
    printed = figures[figures["printed"] > 0]
    for name, case in inputs.of("topologies"):
        mine = printed[printed["case"] == name]
        if case.readings and len(mine):
            return _beside(inputs, case, mine, printed)
    return _alone(inputs, gains)


def _beside(inputs: MapInputs, case: MapCase, mine: pd.DataFrame, printed: pd.DataFrame) -> FirstScreen:
    assert inputs.published is not None
    paper, grouped = inputs.published.title.partition(":")[0], groups(inputs, case)
    first, graph = next(iter(case.readings)), inputs.study.graphs[case.graphs[0]].label
    gained = [
        f"{_mean(about(mine, first, topologies), 'ours')} times as fast on {group} "
        f"({paper} prints {_mean(about(mine, first, topologies), 'printed')})"
        for group, topologies in grouped.items()
    ]
    near = {group: nearest(mine, case.plain_readings, topologies) for group, topologies in grouped.items()}
    nearest_of = " and ".join(
        f"{factor:.2f} on {group} (“{case.readings[key].label}”)" for group, (key, factor) in near.items()
    )
    sentence = (
        f"In simulation, mapping the stages of {graph} to the topology instead of to consecutive devices "
        f"makes a training step {' and '.join(gained)}, geometric means over shapes. Of "
        f"{len(case.plain_readings)} readings of what the paper leaves open, the nearest to its printed "
        f"figures is off by a factor of {nearest_of}, the geometric mean over figures. All times are "
        "simulated from estimates of the paper's devices; none is measured."
    )
    off = [(factor, f"off on {group}", case.readings[key]) for group, (key, factor) in near.items()]
    for name, clusters in inputs.of("partitioners"):
        own = printed[printed["case"] == name]
        key, factor = nearest(own, clusters.plain_readings, sorted(set(own["subject"])))
        off += [(factor, f"off in {name}", clusters.readings[key])] if key else []
    rows = []
    for key, one in case.readings.items():
        cells: dict[str, str] = {}
        for group, topologies in grouped.items():
            own = about(mine, key, topologies)
            if len(own):
                cells |= {group: _mean(own, "ours"), f"{group}, off": digits(mean_factor(own))}
        rows += [((one.label,), cells)] if cells else []
    columns: dict[str, str] = {}
    for group in grouped:
        columns |= {group: f"over CS map, {group}", f"{group}, off": "mean factor off print"}
    return FirstScreen(
        f"What does a mapping to the topology gain, and what explains the figures of {paper}?",
        sentence,
        tuple((digits(factor), f"{where}: “{one.label}”") for factor, where, one in off),
        wide("Readings of the printed speed-ups by topology", ("reading",), columns, rows, "figures-read"),
    )


def _mean(figures: pd.DataFrame, column: str) -> str:
    return f"{geometric_mean(figures.loc[figures['figure'] == 'over-consecutive', column]):.2f}"


def _alone(inputs: MapInputs, gains: pd.DataFrame) -> FirstScreen:
    """The answer without a publication: speed-ups by topology, proofs, times."""
    columns = {"over_consecutive": "over CS map", "over_heuristics": "over CS and p2p map", "cases": "cases"}
    rows = []
    for topology in inputs.study.topologies:
        mine = gains[gains["topology"] == topology]
        if len(mine):
            means = {key: f"{geometric_mean(mine[key]):.2f}" for key in list(columns)[:2]}
            rows.append(((inputs.label(topology),), means | {"cases": str(len(mine))}))
    sheet = wide("Speed-up, geometric mean over cases", ("topology",), columns, rows, "speed-ups")
    searched = inputs.mappings[inputs.mappings["way"].isin(("p2p", "allreduce", "exact"))]
    sentence = (
        "A simulated training step with the mappings found here is "
        f"{geometric_mean(gains['over_consecutive']):.2f} times as fast as with consecutive devices, the "
        f"geometric mean over {len(gains)} cases."
    )
    facts = (
        (f"{geometric_mean(gains['over_heuristics']):.2f}×", "over the better of CS map and p2p map"),
        (f"{int(searched['proven'].sum())} of {len(searched)}", "searches ended with a proof"),
    )
    return FirstScreen("What does a mapping to the topology gain?", sentence, facts, sheet)


CHECKS: Checklist[MapInputs] = Checklist()


@CHECKS.hold("every case is mapped for every seed")
def _every_case_is_mapped(inputs: MapInputs) -> Verdicts:
    seen = set(inputs.mappings[[*POINT, *NETWORK]].itertuples(index=False, name=None))
    for case in inputs.study.cases.keys() - inputs.study.showing("gaps"):
        for reading in (None, *inputs.study.cases[case].readings.values()):
            for point, topology in inputs.study.mapped(case, reading):
                sizes = inputs.study.topologies[topology]
                for seed, _ in sizes.drawn(point.stages * point.replicas):
                    key = (*point.model_dump().values(), topology, seed)
                    yield key in seen, f"{key!r}"


@CHECKS.hold("searching is never worse than CS map or p2p map")
def _ours_is_never_worse_than_by_hand(inputs: MapInputs) -> Verdicts:
    rows = steps(inputs.mappings).dropna(subset="ours")
    yield from each(rows["ours"] <= rows["heuristics"] * (1 + ROUNDING), rows, (*POINT, *NETWORK))


@CHECKS.hold("no mapping is below a bound")
def _bounds_hold_for_every_way(inputs: MapInputs) -> Verdicts:
    for key, rows in inputs.mappings.groupby([*POINT, *NETWORK, "counted"]):
        yield rows["bound_s"].max() <= rows["value_s"].min() * (1 + 1e-9), f"{key!r}"


@CHECKS.hold("uniform_dist: at least five times as fast as CS map")
def _five_times_on_uniform_dist(inputs: MapInputs) -> Verdicts:
    """The median over seeds is five times as fast, for every shape on random pairs."""
    random = [
        name
        for name, topology in inputs.study.topologies.items()
        if topology.sizes[0].kind == "uniform-dist" and len(topology.seeds) >= 10
    ]
    mappings = inputs.mappings[inputs.mappings["topology"].isin(random)]
    rows = steps(mappings).dropna(subset="ours") if len(mappings) else mappings
    if len(rows):
        for key, median in (
            (rows["cs-map"] / rows["ours"]).groupby([rows[key] for key in POINT]).median().items()
        ):
            yield median >= 5, f"{key!r}: {median:.2f}"
