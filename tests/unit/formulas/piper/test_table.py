"""The table of one run has the brute-force optimum for every number of devices and sum of degrees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from phaze.formulas.piper.layers import FlatCluster, ProfiledLayers
from phaze.formulas.piper.planner import plan
from phaze.formulas.piper.table import time_table
from tests.unit.formulas.piper.exhaustive import best_times, instances


@given(instances())
def test_each_entry_is_the_best_of_all_plans(instance: tuple[ProfiledLayers, FlatCluster]) -> None:
    layers, cluster = instance
    # With one exchange a round, times do not depend on N, so that N = s gives the plans of one row.
    cluster = replace(cluster, exactly=False, synchronisation="round")
    table = time_table(layers, cluster)
    for s in range(1, len(table.time_s)):
        exactly = replace(cluster, exactly=True, microbatches=s)
        assert table.time_s[s].tolist() == pytest.approx(best_times(layers, exactly), rel=1e-10)


@given(instances())
def test_the_least_time_and_its_stages_are_those_of_the_planner(
    instance: tuple[ProfiledLayers, FlatCluster],
) -> None:
    layers, cluster = instance[0], replace(instance[1], exactly=False)
    table, best = time_table(layers, cluster), plan(layers, cluster)
    least = table.time_s[:, -1].min()
    assert least == pytest.approx(np.inf if best is None else best.time_per_sample_s, rel=1e-10)
    if best is not None:
        s, stages = best.degree, int(table.stages[table.time_s[:, -1].argmin(), -1])
        assert table.time_s[s, best.devices] == pytest.approx(best.time_per_sample_s, rel=1e-10)
        assert 1 <= stages <= len(layers)
