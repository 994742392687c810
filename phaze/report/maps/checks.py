"""Checks of the mappings of a study; one that fails is a defect of ours, not a finding."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from phaze.report.maps.inputs import NETWORK, POINT, MapInputs, steps
from phaze.report.verdicts import ROUNDING, Verdicts, describe, run_checks

Check = Callable[[MapInputs], Verdicts]


def check_maps(inputs: MapInputs) -> pd.DataFrame:
    """Return table checks of the mappings."""
    return run_checks(CHECKS, inputs)


def ours_is_never_worse_than_by_hand(inputs: MapInputs) -> Verdicts:
    """Yield for every case whether the searches' own mapping is as fast as CS map and p2p map."""
    for _, row in steps(inputs.mappings).dropna(subset="ours").iterrows():
        yield row["ours"] <= row["heuristics"] * (1 + ROUNDING), describe(row, (*POINT, *NETWORK))


def bounds_hold_for_every_way(inputs: MapInputs) -> Verdicts:
    """Yield for every bound whether no other way has found a mapping below it."""
    for key, rows in inputs.mappings.groupby([*POINT, *NETWORK, "counted"]):
        yield rows["bound_s"].max() <= rows["value_s"].min() * (1 + 1e-9), f"{key!r}"


def every_case_is_mapped(inputs: MapInputs) -> Verdicts:
    """Yield for every case, topology and seed whether it is there."""
    seen = set(inputs.mappings[[*POINT, *NETWORK]].itertuples(index=False, name=None))
    for case in inputs.maps.cases.keys() - inputs.maps.showing("gaps"):
        for reading in (None, *inputs.maps.cases[case].readings.values()):
            for point, topology in inputs.maps.mapped(case, reading):
                sizes = inputs.maps.topologies[topology]
                for seed, _ in sizes.drawn(point.stages * point.replicas):
                    key = (*point.model_dump().values(), topology, seed)
                    yield key in seen, f"{key!r}"


def five_times_on_uniform_dist(inputs: MapInputs) -> Verdicts:
    """Yield for every shape on random pairs whether the median over seeds is five times as fast."""
    random = {
        name
        for name, topology in inputs.maps.topologies.items()
        if topology.sizes[0].kind == "uniform-dist" and len(topology.seeds) >= 10
    }
    rows = steps(inputs.mappings[inputs.mappings["topology"].isin(random)]) if random else pd.DataFrame()
    rows = rows.dropna(subset="ours") if len(rows) else rows
    if len(rows):
        ratio = (rows["cs-map"] / rows["ours"]).groupby([rows[key] for key in POINT]).median()
        for key, median in ratio.items():
            yield median >= 5, f"{key!r}: {median:.2f}"


CHECKS: dict[str, Check] = {
    "every case is mapped for every seed": every_case_is_mapped,
    "searching is never worse than CS map or p2p map": ours_is_never_worse_than_by_hand,
    "no mapping is below a bound": bounds_hold_for_every_way,
    "uniform_dist: at least five times as fast as CS map": five_times_on_uniform_dist,
}
