"""Baselines of Piper choose from a smaller space, as in the authors' program."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.units import GIB
from phaze.formulas.piper.baselines import CONTENDERS, without_recomputation, without_tensor_parallelism
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, plan
from tests.unit.formulas.phaze.files import saved
from tests.unit.formulas.piper.exhaustive import draw_layers
from tests.unit.formulas.piper.instances import example
from tests.unit.formulas.piper.test_planner import time_of


def test_what_is_left_out_is_left_out_by_width_and_by_name_whatever_its_case(tmp_path: Path) -> None:
    layers = read_instance(saved(tmp_path, example())).layers()
    assert list(without_tensor_parallelism(layers).options) == [1]
    kept = without_recomputation(layers)
    assert {t: options.names for t, options in kept.options.items()} == {
        1: ("vanilla",) * 3,
        2: ("vanilla",) * 2,
    }
    assert kept.options[2].layer.tolist() == [0, 2]
    assert kept.options[2].forward_sync_bytes.tolist() == [[100, 0, 0], [0, 200, 50]]
    capital = replace(layers.options[2], names=("Recompute",) * 4)
    assert list(without_recomputation(replace(layers, options={2: capital})).options) == []


def named(layers: ProfiledLayers) -> ProfiledLayers:
    """Return the layers with the second half of each layer's configurations named as recomputing."""

    def names(options: Configurations) -> tuple[str, ...]:
        first = options.first(len(layers))
        half = (first[:-1] + first[1:] + 1) // 2
        return tuple("recomp" if x >= half[v] else "vanilla" for x, v in enumerate(options.layer))

    renamed = {t: replace(options, names=names(options)) for t, options in layers.options.items()}
    return replace(layers, options=renamed)


@given(st.integers(0, 2**32 - 1))
def test_no_baseline_within_the_memory_is_faster_and_each_keeps_its_promise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = named(draw_layers(rng, int(rng.integers(1, 5)), False))
    cluster = FlatCluster(int(rng.integers(1, 7)), float(rng.integers(5, 60)), 10.0, int(rng.integers(1, 7)))
    exactly, times = SearchOptions(exact_knapsack=True), {}
    for name, by in CONTENDERS.items():
        options = by.restrict(layers).options
        found = by.plan(by.restrict(layers), cluster, exactly)
        times[name] = time_of(found)
        for stage in found.stages if found else ():
            chosen, names = list(stage.configurations), options[stage.layout.tp].names
            assert options[stage.layout.tp].layer[chosen].tolist() == list(stage.layers)
            assert name != "no-dp" or stage.layout.dp == 1
            assert name not in ("no-tp", "equi-no-tp", "pipedream") or stage.layout.tp == 1
            assert name not in ("no-ar", "pipedream") or {names[x] for x in chosen} == {"vanilla"}
    assert all(time >= times["piper"] * (1 - 1e-9) for name, time in times.items() if name != "pipedream")
    plain = without_recomputation(without_tensor_parallelism(layers))
    assert times["pipedream"] <= time_of(plan(plain, cluster, exactly)) * (1 + 1e-9)
    assert times["equi"] <= times["equi-no-tp"]


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("row", range(6))
def test_the_optima_of_the_authors_program_come_out(row: int, shared_data: Path) -> None:
    optimum = pd.read_csv(shared_data / "piper" / "optima.csv").to_dict("records")[row]
    layers = read_instance(shared_data / "piper" / str(optimum["input"])).layers()
    memory, microbatches = optimum["memory_gib"] * GIB, optimum["microbatches"]
    cluster = FlatCluster(optimum["devices"], memory, 25.0 * GIB, microbatches)
    for name in ("no-dp", "no-tp", "no-ar", "equi", "equi-no-tp"):
        printed = optimum[name.replace("-", "_")]
        by = CONTENDERS[name]
        found = time_of(by.plan(by.restrict(layers), cluster, SearchOptions()))
        assert found == pytest.approx(inf if printed == "infeasible" else float(printed), rel=1e-9), name
