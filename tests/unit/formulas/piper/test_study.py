"""Layers of a study's model as input of Piper's planner."""

from __future__ import annotations

import pandas as pd
import pytest

from phaze.formulas.piper.study import study_layers
from phaze.layout import Layout
from phaze.tables import Layers
from tests.unit.formulas.phaze.test_model import CONDITIONS, solves, tables

KEYS = ("tp1-b2", "tp2-b2")
SHARE = 0.6
"""Latencies of two tensor-parallel ranks, relative to those of one."""


def test_layers_are_those_of_the_tables() -> None:
    layers, graph, _, architectures, _ = tables()
    graph = graph.assign(count=[1, 1, 3])
    sliced, solved = [], []
    for key in KEYS:
        point, layout = {"model": "toy", "layout": key}, Layout.of_key(key)
        shards = layers.assign(**point, tensor_parallel=layout.tp > 1)
        shards["activation_bytes"] *= layout.microbatch / layout.tp
        sliced.append(shards.assign(parameters=(shards["parameters"] / layout.tp).astype(int)))
        factor = layout.microbatch * (1.0 if layout.tp == 1 else SHARE)
        times = {name: factor * solves(point)[name] for name in ("objective_s", "bound_s")}
        solved.append(solves(point).assign(**times))
    found = study_layers(
        Layers.check(pd.concat(sliced)),
        graph,
        pd.concat(solved, ignore_index=True),
        architectures[architectures["architecture"] == "a0"],
        CONDITIONS,
    )
    assert found.names == ("embedding", "block", "block", "block", "head")
    assert list(found.options) == [1, 2]
    # Adam in mixed precision takes 16 bytes of each parameter; PipeDream-2BW another 2 for its weights.
    assert found.options[1].fixed_bytes[2] == 18 * 20_000_000
    assert found.options[2].fixed_bytes[2] == 18 * 10_000_000
    assert found.options[2].stash_bytes[2] == 2 * 1e8 / 2
    assert found.options[2].time_s[2] == pytest.approx(2 * SHARE * (0.02 + 0.04))
