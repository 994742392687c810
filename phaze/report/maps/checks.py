"""Checks of the mappings of a study; one that fails is a defect of ours, not a finding."""

from __future__ import annotations

from phaze.report.maps.inputs import NETWORK, POINT, MapInputs, steps
from phaze.report.verdicts import ROUNDING, Checklist, Verdicts, each

CHECKS: Checklist[MapInputs] = Checklist()


@CHECKS.hold("every case is mapped for every seed")
def _every_case_is_mapped(inputs: MapInputs) -> Verdicts:
    seen = set(inputs.mappings[[*POINT, *NETWORK]].itertuples(index=False, name=None))
    for case in inputs.maps.cases.keys() - inputs.maps.showing("gaps"):
        for reading in (None, *inputs.maps.cases[case].readings.values()):
            for point, topology in inputs.maps.mapped(case, reading):
                sizes = inputs.maps.topologies[topology]
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
    """Yield for every shape on random pairs whether the median over seeds is five times as fast."""
    random = [
        name
        for name, topology in inputs.maps.topologies.items()
        if topology.sizes[0].kind == "uniform-dist" and len(topology.seeds) >= 10
    ]
    mappings = inputs.mappings[inputs.mappings["topology"].isin(random)]
    rows = steps(mappings).dropna(subset="ours") if len(mappings) else mappings
    if len(rows):
        for key, median in (
            (rows["cs-map"] / rows["ours"]).groupby([rows[key] for key in POINT]).median().items()
        ):
            yield median >= 5, f"{key!r}: {median:.2f}"
