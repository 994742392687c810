"""Speed of plans for networks with levels; `pytest tests/benchmarks --benchmark-enable` measures it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phaze.base.units import GIB
from phaze.plan.piper.hierarchy import plan_hierarchy
from phaze.plan.piper.instance import read_instance
from phaze.plan.piper.nested import Hierarchy, NestedPlan

Benchmark = Callable[..., NestedPlan | None]


@pytest.mark.parametrize("microbatches", [512, 1920])
@pytest.mark.parametrize("machines", [8, 64, 256])
def test_plan_bert_on_machines_of_eight(
    machines: int, microbatches: int, benchmark: Benchmark, shared_data: Path
) -> None:
    """Plan BERT-32 on devices of 8 GiB, 300 GiB/s inside a machine and 25 GiB/s between machines."""
    layers = read_instance(shared_data / "piper" / "bert32a100.json").layers()
    hierarchy = Hierarchy((8, machines), (300 * GIB, 25 * GIB), 8 * GIB, microbatches)
    plan = benchmark(plan_hierarchy, layers, hierarchy)
    assert plan is not None
    assert plan.devices <= machines
