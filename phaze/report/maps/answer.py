"""The first screen of the page of the mappings: what mapping gains, and which reading is near print."""

from __future__ import annotations

import pandas as pd

from phaze.report.document import Answer, Sheet
from phaze.report.maps.inputs import MapInputs, geometric_mean
from phaze.report.maps.readings import about, groups, mean_factor, nearest
from phaze.report.words import digits
from phaze.spec.map_study import MapCase


def answer_of(inputs: MapInputs, gains: pd.DataFrame, figures: pd.DataFrame) -> Answer:
    """Return the first screen: beside a publication where there are readings of it, else speed-ups alone."""
    printed = figures[figures["printed"] > 0]
    for name, case in inputs.of("topologies"):
        mine = printed[printed["case"] == name]
        if case.readings and len(mine):
            return _beside(inputs, case, mine, printed)
    return _alone(inputs, gains)


def _beside(inputs: MapInputs, case: MapCase, mine: pd.DataFrame, printed: pd.DataFrame) -> Answer:
    """Return the answer with readings of a case beside a publication."""
    assert inputs.published is not None
    paper, grouped = inputs.published.title.partition(":")[0], groups(inputs, case)
    first, graph = next(iter(case.readings)), inputs.maps.graphs[case.graphs[0]].label
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
    facts = [
        (digits(factor), f"off on {group}: “{case.readings[key].label}”")
        for group, (key, factor) in near.items()
    ]
    facts += _of_clusters(inputs, printed)
    return Answer(
        f"What does a mapping to the topology gain, and what explains the figures of {paper}?",
        sentence,
        tuple(facts),
        _sheet(case, mine, grouped),
    )


def _mean(figures: pd.DataFrame, column: str) -> str:
    """Return the geometric mean of speed-ups over CS map."""
    return f"{geometric_mean(figures.loc[figures['figure'] == 'over-consecutive', column]):.2f}"


def _of_clusters(inputs: MapInputs, printed: pd.DataFrame) -> list[tuple[str, str]]:
    """Return by how much the nearest reading of each case of measured tables is off."""
    found = []
    for name, case in inputs.of("partitioners"):
        mine = printed[printed["case"] == name]
        key, factor = nearest(mine, case.plain_readings, sorted(set(mine["subject"])))
        if key:
            found.append((digits(factor), f"off in {name}: “{case.readings[key].label}”"))
    return found


def _sheet(case: MapCase, mine: pd.DataFrame, grouped: dict[str, list[str]]) -> Sheet:
    """Return speed-ups and mean factors of every reading, by group of topologies."""
    rows = []
    for key, one in case.readings.items():
        cells: list[str] = []
        for topologies in grouped.values():
            own = about(mine, key, topologies)
            cells += ["–", "–"] if not len(own) else [_mean(own, "ours"), digits(mean_factor(own))]
        if set(cells) != {"–"}:
            rows.append((one.label, *cells))
    header = ["reading"]
    for group in grouped:
        header += [f"over CS map, {group}", "mean factor off print"]
    caption = "Readings of the printed speed-ups by topology"
    return Sheet(caption, tuple(header), tuple(rows), 1, source="figures-read")


def _alone(inputs: MapInputs, gains: pd.DataFrame) -> Answer:
    """Return the answer without a publication: speed-ups by topology, proofs, times."""
    rows = []
    for topology, one in inputs.maps.topologies.items():
        mine = gains[gains["topology"] == topology]
        if len(mine):
            means = (geometric_mean(mine[key]) for key in ("over_consecutive", "over_heuristics"))
            rows.append((one.label, *(f"{mean:.2f}" for mean in means), str(len(mine))))
    header = ("topology", "over CS map", "over CS and p2p map", "cases")
    sheet = Sheet("Speed-up, geometric mean over cases", header, tuple(rows), 1, source="speed-ups")
    searched = inputs.mappings[inputs.mappings["way"].isin(("p2p", "allreduce", "exact"))]
    seconds = inputs.durations.groupby([*gains.columns[:6], "topology", "seed"])["seconds"].sum()
    mean = geometric_mean(gains["over_consecutive"])
    sentence = (
        f"A simulated training step with the mappings found here is {mean:.2f} times as fast as with "
        f"consecutive devices, the geometric mean over {len(gains)} cases."
    )
    facts = (
        (f"{geometric_mean(gains['over_heuristics']):.2f}×", "over the better of CS map and p2p map"),
        (f"{int(searched['proven'].sum())} of {len(searched)}", "searches ended with a proof"),
        (f"{seconds.max():.0f} s", "for the slowest case"),
    )
    return Answer("What does a mapping to the topology gain?", sentence, facts, sheet)
