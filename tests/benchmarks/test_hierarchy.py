"""Speed of planning for networks with levels; measured with `pytest tests/benchmarks --benchmark-enable`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phaze.base.units import GIB
from phaze.formulas.piper.hierarchy import plan_hierarchy
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.layers import FlatCluster, Hierarchy, NetworkLevel, PiperPlan

Benchmark = Callable[..., PiperPlan | None]


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [512, 1920])
@pytest.mark.parametrize("machines", [8, 64, 256])
def test_plan_bert_on_machines_of_eight(
    machines: int, microbatches: int, benchmark: Benchmark, shared_data: Path
) -> None:
    """Plan BERT-32 on devices of 8 GiB, 300 GiB/s inside a machine and 25 GiB/s between machines."""
    layers = read_instance(shared_data / "piper" / "bert32a100.json").layers()
    inner = FlatCluster(8, 8 * GIB, 300 * GIB, microbatches)
    hierarchy = Hierarchy(inner, (NetworkLevel(machines, 25 * GIB),))
    plan = benchmark(plan_hierarchy, layers, hierarchy)
    assert plan is not None
    assert plan.devices <= machines
