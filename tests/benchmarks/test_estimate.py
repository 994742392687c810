"""Speed of the estimate on the space of the paper, also as a ratio to a search without its factors.

Run with `pytest tests/benchmarks/test_estimate.py --benchmark-enable --benchmark-only`.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.config import load_technology
from phaze.estimate import Hardware, enumerate_grid, estimate_operators
from phaze.estimate.designs import designs_of
from phaze.estimate.loads import _distinct_cores
from phaze.estimate.tensor import map_shapes
from phaze.spec.architecture import Grid
from tests.unit.estimate.exhaustive import Problem
from tests.unit.estimate.reference import fastest_candidate

TECHNOLOGY = load_technology("22nm", Path(__file__).resolve().parents[2] / "config")
LIMIT_UM2 = 278.82667631216e6
HARDWARE = Hardware(1.05e9, 1.2e12, 2.0**32, 2)
HIDDEN, SEQUENCE, HEADS = 1920, 1024, 20
SHAPES = np.array(
    [
        shape
        for tokens in (SEQUENCE, 2 * SEQUENCE)
        for shape in (
            (1, tokens, HIDDEN, 3 * HIDDEN),
            (1, tokens, HIDDEN, HIDDEN),
            (1, tokens, HIDDEN, 4 * HIDDEN),
            (1, tokens, 4 * HIDDEN, HIDDEN),
            (HEADS * tokens // SEQUENCE, SEQUENCE, HIDDEN // HEADS, SEQUENCE),
            (HEADS * tokens // SEQUENCE, SEQUENCE, SEQUENCE, HIDDEN // HEADS),
        )
    ]
)


@pytest.fixture(scope="module")
def space() -> pd.DataFrame:
    """Return the larger shard of the paper's space: 20,316 architectures."""
    grid = Grid().restricted_to("small-buffer")
    return enumerate_grid(grid, TECHNOLOGY.area_um2, LIMIT_UM2, "small-buffer")


def works(number: int) -> pd.DataFrame:
    """Return table parts of so many works: matrix multiplications with a vector operation each."""
    rows = []
    for work in range(number):
        batch, m, k, n = (int(x) for x in SHAPES[work % len(SHAPES)] + (0, work, 0, 0))
        elements = batch * m * n
        rows.append((work, 0, "matmul", batch, m, k, n, 0, 0.0))
        rows.append((work, 1, "gelu", 0, 0, 0, 0, elements, 2.0 * elements))
    columns = ["work", "part", "kind", "batch", "m", "k", "n", "elements", "streamed_bytes"]
    return pd.DataFrame(rows, columns=columns).assign(
        model="toy", tensor=1, microbatch=1, core="fused", role="forward", network_bytes=0.0
    )


def test_fifty_works_on_the_larger_shard(benchmark: BenchmarkFixture, space: pd.DataFrame) -> None:
    """Estimate 50 distinct works on every design, tables checked, as a job of the workflow does."""
    parts = works(50)
    found = benchmark(estimate_operators, parts, space, HARDWARE, TECHNOLOGY, 1, {})
    assert len(found) == 50 * space["fused_design"].nunique()
    per_s = 50 * len(space) / benchmark.stats["mean"] if benchmark.stats else 0.0
    benchmark.extra_info["works times architectures per second"] = per_s


def test_shapes_times_designs_against_a_search_without_factors(
    benchmark: BenchmarkFixture, space: pd.DataFrame
) -> None:
    """Map 12 shapes to every tensor design, and two shapes to one in the plain search of the tests."""
    designs = designs_of(space, "tensor")
    cores, _ = _distinct_cores(designs, HARDWARE.bytes_per_element)
    extra = np.zeros(len(SHAPES))
    benchmark(map_shapes, SHAPES, extra, cores)
    if not benchmark.stats:
        return
    start = perf_counter()
    for batch, m, k, n in SHAPES[:2]:
        fastest_candidate(Problem(int(batch), int(m), int(k), int(n), 0.0, 128, 128, 131072, 4096.0, 4))
    plain_s = (perf_counter() - start) / 2
    each_s = benchmark.stats["mean"] / len(SHAPES) / len(designs)
    benchmark.extra_info["shapes times designs per second"] = 1 / each_s
    benchmark.extra_info["times as fast as a plain search"] = plain_s / each_s
