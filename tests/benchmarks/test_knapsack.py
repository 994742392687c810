"""The paper's rule for choosing configurations, compared with the exact knapsack (Piper, Section 4 and
Appendix C).

`pytest tests/benchmarks/test_knapsack.py --benchmark-enable` compares 27,000 stages from planning BERT-32 on
512 devices of 8 GiB with N = 512, in all of which memory binds. It reports how many differ and by how much,
with the authors' two configurations per layer and with four. Without the option there are fewer stages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.base.units import GIB
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.layers import FlatCluster
from tests.unit.formulas.piper.knapsacks import arising, with_more_configurations

INSTANCES = 27_000
"""Number of instances, as in Appendix C."""


@pytest.mark.parity
@pytest.mark.parametrize("most", [2, 4])
def test_the_rule_beside_the_exact_knapsack(
    most: int, benchmark: BenchmarkFixture, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exact choice is never slower than the rule's."""
    layers = read_instance(shared_data / "piper" / "bert32a100.json").layers()
    if most == 4:
        layers = with_more_configurations(layers, 1)
    cluster = FlatCluster(512, 8.0 * GIB, 25.0 * GIB, 512)
    knapsacks = list(arising(layers, cluster, INSTANCES if benchmark.enabled else 1000, 7))
    ruled = np.array([knapsack.by_the_rule() for knapsack in knapsacks])
    exact = benchmark.pedantic(lambda: np.array([knapsack.exactly() for knapsack in knapsacks]))
    gap = ruled / exact - 1
    assert gap.min() >= -1e-12
    slower = gap[gap > 1e-9]
    found = f"{most} configurations: {len(slower)} of {len(gap)} are slower by the rule"
    if len(slower):
        found += f", by {slower.mean():.2%} in the mean and {slower.max():.2%} at most"
    benchmark.extra_info["compared"] = found
    if benchmark.enabled:
        with capsys.disabled():
            print(f"\n{found}")  # noqa: T201 - what the comparison is for
