"""Baselines choose from less than Piper does, and are the optima of the authors' program."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.units import GIB
from phaze.plan.piper.baselines import (
    BASELINES,
    plan_baselines,
    recomputes,
    without_recomputation,
    without_tensor_parallelism,
)
from phaze.plan.piper.instance import read_instance
from phaze.plan.piper.layers import Cluster, Layers, Options, Plan
from phaze.plan.piper.planner import plan
from phaze.workload.graphs import edge_arrays
from tests.unit.plan.phaze.files import saved
from tests.unit.plan.piper.exhaustive import draw_layers
from tests.unit.plan.piper.instances import example


def by_the_rule(layers: Layers, cluster: Cluster, most_data: int | None) -> Plan | None:
    return plan(layers, cluster, most_data=most_data)


def exactly(layers: Layers, cluster: Cluster, most_data: int | None) -> Plan | None:
    return plan(layers, cluster, most_data=most_data, exact_knapsack=True)


def time_of(found: Plan | None) -> float:
    return found.time_per_sample_s if found else inf


@pytest.mark.parametrize(
    ("name", "again"),
    [("vanilla", False), ("activation recomp", True), ("Recompute", True), ("stash", False), ("", False)],
)
def test_recomputing_configurations_are_known_by_their_name(name: str, again: bool) -> None:
    assert recomputes(name) == again


def test_what_is_left_out_is_left_out(tmp_path: Path) -> None:
    layers = read_instance(saved(tmp_path, example())).layers()
    assert list(without_tensor_parallelism(layers).options) == [1]
    kept = without_recomputation(layers)
    assert {t: options.names for t, options in kept.options.items()} == {
        1: ("vanilla",) * 3,
        2: ("vanilla",) * 2,
    }
    assert kept.options[2].layer.tolist() == [0, 2]
    assert kept.options[2].forward_sync_bytes.tolist() == [[100, 0, 0], [0, 200, 50]]


def test_a_layer_that_always_recomputes_has_no_plan_without() -> None:
    one = np.ones(1)
    options = Options(
        ("recompute",), np.zeros(1, dtype=np.int64), one, one, one, one, *[np.zeros((1, 0))] * 2
    )
    layers = Layers((0,), ("",), {1: options}, **edge_arrays([]))
    found = plan_baselines(layers, Cluster(2, 10.0, 1.0, 2), by_the_rule)
    assert {name: other is not None for name, other in found.items()} == {
        name: name not in ("no_ar", "pipedream") for name in BASELINES
    }


def named(layers: Layers) -> Layers:
    """Return the layers with the second half of each layer's configurations named as recomputing."""

    def renamed(options: Options) -> Options:
        first = options.first(len(layers))
        names = (
            "recomp" if x - first[v] >= (first[v + 1] - first[v] + 1) // 2 else "vanilla"
            for x, v in enumerate(options.layer)
        )
        return Options(tuple(names), *[getattr(options, name) for name in FIELDS])

    return Layers(
        layers.ids,
        layers.names,
        {t: renamed(options) for t, options in layers.options.items()},
        edges=layers.edges,
        edge_bytes=layers.edge_bytes,
    )


FIELDS = (
    "layer",
    "time_s",
    "weight_bytes",
    "stash_bytes",
    "fixed_bytes",
    "forward_sync_bytes",
    "backward_sync_bytes",
)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1))
def test_no_baseline_within_the_memory_is_faster_and_each_keeps_its_promise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = named(draw_layers(rng, int(rng.integers(1, 5)), False))
    cluster = Cluster(int(rng.integers(1, 7)), float(rng.integers(5, 60)), 10.0, int(rng.integers(1, 7)))
    best = time_of(exactly(layers, cluster, None))
    found = plan_baselines(layers, cluster, exactly)
    assert tuple(found) == BASELINES
    for name, other in found.items():
        assert time_of(other) >= best * (1 - 1e-9) or name == "pipedream"
        if other is None:
            continue
        names = [
            layers.options[stage.layout.tp].names[x] for stage in other.stages for x in stage.configurations
        ]
        owners = [
            layers.options[stage.layout.tp].layer[x] for stage in other.stages for x in stage.configurations
        ]
        assert owners == [v for stage in other.stages for v in stage.layers]
        assert name != "no_dp" or all(stage.layout.dp == 1 for stage in other.stages)
        assert name not in ("no_tp", "equi_no_tp", "pipedream") or all(s.layout.tp == 1 for s in other.stages)
        assert name not in ("no_ar", "pipedream") or set(names) == {"vanilla"}
    plain = without_recomputation(without_tensor_parallelism(layers))
    assert time_of(found["pipedream"]) <= time_of(exactly(plain, cluster, None)) * (1 + 1e-9)
    assert time_of(found["equi"]) <= time_of(found["equi_no_tp"])


@pytest.mark.parity
@pytest.mark.parametrize("row", range(6))
def test_the_optima_of_the_authors_program_come_out(row: int, shared_data: Path) -> None:
    optimum = pd.read_csv(shared_data / "piper" / "optima.csv").to_dict("records")[row]
    layers = read_instance(shared_data / "piper" / str(optimum["input"])).layers()
    cluster = Cluster(optimum["devices"], optimum["memory_gib"] * GIB, 25.0 * GIB, optimum["microbatches"])
    found = plan_baselines(layers, cluster, by_the_rule)
    for name in ("no_dp", "no_tp", "no_ar", "equi", "equi_no_tp"):
        expected = inf if optimum[name] == "infeasible" else float(optimum[name])
        assert time_of(found[name]) == pytest.approx(expected, rel=1e-9), name
