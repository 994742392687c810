"""Bounds on the time per batch of many architectures at once.

Every distinct layer has a lower bound and a feasible value of its latency on every architecture
(`schedule.bounds`). A placement's time per batch never falls when a layer's latency rises, and its memory
does not depend on latencies. The best placement with the lower bounds is therefore a lower bound on the best
time per batch, and the best placement with the feasible latencies is feasible. `formulas.phaze.chains` finds
both exactly. Schedules solved later are no longer than the feasible ones and no shorter than the bounds, so
their time per batch lies in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.progress import counted
from phaze.base.ranking import distinct_rows
from phaze.cost.designs import operator_latencies
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze.chains import Runs, best_times, possible_depths
from phaze.formulas.phaze.energy import Batch, Rates
from phaze.layout import Layout
from phaze.schedule.bounds import layer_bounds
from phaze.search.economy import Least, least_sample_j
from phaze.tables.columns import ENERGIES
from phaze.workload.workload import DIRECTIONS

CORES_OF_DESIGN = {
    "tensor_design": ("tensor",),
    "vector_design": ("vector", "network"),
    "fused_design": ("fused",),
}
"""Core types whose operators use the estimates of a design. Collectives reduce on the vector cores."""


@dataclass(frozen=True)
class Bounds:
    """Lower bound and feasible value of one quantity in seconds, two arrays of the same shape."""

    lower_s: Floats
    feasible_s: Floats


def bound_layers(
    operators: pd.DataFrame,
    edges: pd.DataFrame,
    estimates: pd.DataFrame,
    architectures: pd.DataFrame,
    *,
    overlap_communication: bool = False,
) -> dict[tuple[str, str], Bounds]:
    """Latency bounds (A,) of every (layer, direction), in the order of the architectures."""
    bounds_by_layer: dict[tuple[str, str], Bounds] = {}
    for layer in operators["layer"].unique():
        for direction in DIRECTIONS:
            rows = _pass(operators, layer, direction).sort_values("operator")
            links = _pass(edges, layer, direction)[["source", "target"]].to_numpy()
            distinct, place = distinct_rows(_cases(rows, estimates, architectures))
            latencies, counts = distinct[:, :-2], distinct[:, -2:].astype(np.int64)
            one_core_s, every = np.hsplit(latencies, 2)
            bounds = layer_bounds(
                tuple(rows["core"]),
                tuple((int(i), int(j)) for i, j in links),
                one_core_s,
                every,
                counts[:, 0],
                counts[:, 1],
                overlap_communication=overlap_communication,
            )
            bounds_by_layer[layer, direction] = Bounds(*(values[place] for values in bounds))
    return bounds_by_layer


def _cases(operators: pd.DataFrame, estimates: pd.DataFrame, architectures: pd.DataFrame) -> Floats:
    """Inputs of a layer's bounds: latencies on one core and on all cores, and both core counts.

    Core counts are clipped at one core per operator, where more cores stop helping. Many architectures
    therefore share a row.
    """
    of_type = operators["core"].value_counts()
    most = {core: of_type.get(core, 0) + of_type.get("fused", 0) for core in ("tensor", "vector")}
    counts = [
        architectures["num_tc"].clip(upper=most["tensor"]),
        architectures["num_vc"].clip(upper=most["vector"]),
    ]
    return np.column_stack(
        [*operator_latencies(operators, estimates, architectures), *(c.clip(lower=1) for c in counts)]
    )


def least_energies(
    operators: pd.DataFrame, estimates: pd.DataFrame, architectures: pd.DataFrame
) -> dict[tuple[str, str], Floats]:
    """Lower bound (A,) on the energy of every (layer, direction) on one tensor-parallel rank, in joules.

    A schedule runs every operator on one core or on all cores; the cheaper of the two counts.
    """
    single, every = (
        estimates[[f"{part}{which}_j" for part in ENERGIES]].sum(axis=1) for which in ("", "_all")
    )
    least, works, designs = (
        np.minimum(single.to_numpy(), every.to_numpy()),
        estimates["work"].to_numpy(np.int64),
        estimates["design"].to_numpy(np.int64),
    )
    work_count = int(works.max(initial=-1)) + 1
    energies = {}
    for key, rows in operators[operators["work"] >= 0].groupby(["layer", "direction"]):
        total = np.zeros(len(architectures))
        for design, cores in CORES_OF_DESIGN.items():
            often = np.bincount(rows.loc[rows["core"].isin(cores), "work"], minlength=work_count)
            by_design = np.bincount(designs, often[works] * least)
            total += by_design[architectures[design].to_numpy(np.int64)]
        energies[str(key[0]), str(key[1])] = total
    return energies


def _pass(frame: pd.DataFrame, layer: str, direction: str) -> pd.DataFrame:
    return frame[(frame["layer"] == layer) & (frame["direction"] == direction)]


def bound_times(
    runs: Runs,
    names: Sequence[str],
    layers: Mapping[tuple[str, str], Bounds],
    layout: Layout,
    settings: Sequence[Setting],
) -> Bounds:
    """Bounds (settings, A) on the time per batch; inf where no placement fits.

    Equal latencies are placed once. Many architectures differ only in resources that a model does not use,
    and for most of them the bounds of all layers meet.
    """
    both = np.concatenate(
        [
            np.stack([getattr(layers[n, d], bound) for d in DIRECTIONS for n in names], axis=1)
            for bound in ("lower_s", "feasible_s")
        ]
    )
    distinct, place = distinct_rows(both)
    forward, backward = np.hsplit(distinct, 2)
    times = best_times(runs, forward, backward, layout, settings)[:, place]
    lower_s, feasible_s = np.hsplit(times, 2)
    return Bounds(np.minimum(lower_s, feasible_s), feasible_s)


def least_of(
    names: Sequence[str], layers: Mapping[tuple[str, str], Bounds], energies: Mapping[tuple[str, str], Floats]
) -> Least:
    """Lower bounds on time and energy of layers, in the order of `names`; missing energies are 0."""
    none = np.zeros_like(next(iter(layers.values())).lower_s)
    return Least(
        *(np.stack([layers[n, d].lower_s for n in names], axis=1) for d in DIRECTIONS),
        *(np.stack([energies.get((n, d), none) for n in names], axis=1) for d in DIRECTIONS),
    )


def bound_energies(
    runs: Runs,
    least: Least,
    times: Bounds,
    area_um2: Floats,
    settings: Sequence[Setting],
    batch: Batch,
    rates: Rates,
) -> Floats:
    """Lower bound (settings, A) on energy in joules per sample of the best placement; inf if none fits."""
    watts = rates.leakage_w_per_um2 * area_um2
    by_content: dict[tuple[bytes, ...], Floats] = {}
    bounds = []
    for c, setting in enumerate(counted(settings, "HBM size and recomputation")):
        depths, lower, feasible = (
            possible_depths(runs, batch.layout, setting),
            times.lower_s[c],
            times.feasible_s[c],
        )
        key = (depths.key(), lower.tobytes(), feasible.tobytes(), bytes([setting.recompute]))
        if key not in by_content:
            by_content[key] = least_sample_j(
                runs, least, (lower, feasible), watts, depths, setting, batch, rates
            )
        bounds.append(by_content[key])
    return np.array(bounds)
