"""Speed of the estimate on the space and shapes of the paper, also as a ratio to a search without factors.

A pair is a distinct operator shape (batch, m, k, n, with the words that vector operations stream beside it)
on a distinct tensor-core design (number of cores, rows, columns, L2 buffer, capacity and bandwidth of the
global buffer) of the default study. Its estimate is the latency on one core and on all cores: the search
over mappings, the words to and from HBM, and what both need on the design.

Run with `pytest tests/benchmarks/test_estimate.py --benchmark-enable --benchmark-only`.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pandas as pd
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.base.arrays import Floats, Ints
from phaze.cost.designs import Designs, design_ids, designs_of
from phaze.cost.mapper.loads import Cores, Hardware, distinct_cores, hbm_words, map_shapes
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.cost.operators import estimate_operators
from phaze.cost.space import enumerate_grid
from phaze.spec.config import Settings, load_settings
from phaze.spec.settings import EstimateSettings
from phaze.workload.models import extract_workload
from tests.studies import study_settings
from tests.unit.cost.exhaustive import Problem
from tests.unit.cost.reference import best_candidate, best_tiling, parts_of

CONFIG = Path(__file__).resolve().parents[2] / "config"
LIMIT_UM2 = 278.82667631216e6
HARDWARE = Hardware(1.05e9, 1.2e12, Flat(2.0**32, BOTH_DIRECTIONS), 2)
MODELS = ("bert-large", "megatron-gpt-2.5b")


@pytest.fixture(scope="module")
def study() -> Settings:
    """Return the default study."""
    return load_settings(study_settings("phaze-space"), CONFIG)


@pytest.fixture(scope="module")
def space(study: Settings) -> pd.DataFrame:
    """Return the whole grid: 29,360 architectures, with designs that are distinct in all of it."""
    grid = study.study.architectures.grid
    assert grid is not None
    frame = enumerate_grid(grid, study.technology.area_um2, LIMIT_UM2, "whole")
    return frame.assign(**design_ids(frame))


@pytest.fixture(scope="module")
def parts(study: Settings) -> pd.DataFrame:
    """Return table parts of all points of two models, works numbered through."""
    frames, first = [], 0
    for model in MODELS:
        for layout in study.layouts(model):
            spec, sequence = study.models[model], study.workload(model).sequence
            frame = extract_workload(spec, sequence, layout, study.study.extract).tables["parts"]
            frames.append(frame.assign(work=frame["work"] + first))
            first += int(frame["work"].max()) + 1
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def shapes(parts: pd.DataFrame) -> Floats:
    """Return the distinct shapes of matrix multiplications with extra words, (S, 5), in random order."""
    own = parts[parts["kind"] == "matmul"]
    streamed = parts.groupby("work")["streamed_bytes"].sum() / own.groupby("work").size()
    extra = own["work"].map(streamed) / HARDWARE.bytes_per_element
    found = np.unique(np.column_stack([own[["batch", "m", "k", "n"]], extra]), axis=0)
    return np.random.default_rng(0).permutation(found)


def estimate_pairs(shapes: Floats, designs: Designs) -> tuple[Floats, Floats]:
    """Return the latencies in s on one core and on all cores, arrays (S, D)."""
    whole = shapes[:, :4].astype(np.int64)
    cores, (one, every) = distinct_cores(designs, HARDWARE.bytes_per_element)
    cycles = map_shapes(whole, shapes[:, 4], cores, preload=False).cycles / HARDWARE.clock_hz
    capacities, place = np.unique(designs.glb_bytes, return_inverse=True)
    words = hbm_words(whole, capacities // HARDWARE.bytes_per_element) + shapes[:, 4:]
    hbm_s = words[:, place] * (HARDWARE.bytes_per_element / HARDWARE.hbm_bandwidth_bytes_per_s)
    return np.maximum(cycles[:, one], hbm_s), np.maximum(cycles[:, every], hbm_s)


def cpu_seconds(shapes: Floats, designs: Designs) -> float:
    """Return the CPU time of `estimate_pairs`, which a machine with other work does not distort."""
    start = process_time()
    estimate_pairs(shapes, designs)
    return process_time() - start


def problems(shapes: Floats, cores: Cores, number: int) -> list[tuple[int, int, Problem]]:
    """Return random pairs on up to 8 cores, with their indices."""
    rng, few = np.random.default_rng(1), np.flatnonzero(cores.number <= 8)
    found = []
    for s, c in zip(rng.integers(len(shapes), size=number), rng.choice(few, number), strict=True):
        batch, m, k, n = (int(x) for x in shapes[s, :4])
        rows, columns, l2_words, speed, count = (field[c].item() for field in cores)
        found.append((s, c, Problem(batch, m, k, n, shapes[s, 4], rows, columns, l2_words, speed, count)))
    return found


def test_shapes_times_designs_against_a_search_without_factors(
    benchmark: BenchmarkFixture, space: pd.DataFrame, shapes: Floats
) -> None:
    """Estimate every pair of 64 shapes and all designs; the plain search of the tests runs on random
    pairs.
    """
    some, designs = shapes[:64], designs_of(space, "tensor")
    benchmark.pedantic(estimate_pairs, (some, designs), rounds=5, warmup_rounds=1)
    if not benchmark.stats:
        return
    pairs = len(some) * len(designs)
    each_s = benchmark.stats["min"] / pairs
    cpu_s = min(cpu_seconds(some, designs) for _ in range(5)) / pairs
    cores, _ = distinct_cores(designs, HARDWARE.bytes_per_element)
    found = map_shapes(some[:, :4].astype(np.int64), some[:, 4], cores).cycles
    best_candidate(problems(some, cores, 1)[0][2])
    start, drawn = perf_counter(), problems(some, cores, 20)
    plain = [best_candidate(p) for _, _, p in drawn]
    plain_s = (perf_counter() - start) / len(drawn)
    assert [one.cycles for one in plain] == [found[s, c] for s, c, _ in drawn]
    benchmark.extra_info["pairs"] = pairs
    benchmark.extra_info["pairs per second"] = 1 / each_s
    benchmark.extra_info["pairs per second of CPU time"] = 1 / cpu_s
    benchmark.extra_info["times as fast as a search without factors"] = plain_s / each_s
    benchmark.extra_info["mappings of a drawn pair, mean"] = np.mean([one.mappings for one in plain])


@pytest.mark.slow
def test_mappings_considered(benchmark: BenchmarkFixture, space: pd.DataFrame, shapes: Floats) -> None:
    """Count the mappings of pairs with a single core, which have the fewest: every array with its buffer."""
    cores, _ = distinct_cores(designs_of(space, "tensor"), HARDWARE.bytes_per_element)
    arrays = np.unique(np.column_stack(cores[:3]), axis=0)
    counts = benchmark.pedantic(count_mappings, (shapes[:8], arrays), rounds=1)
    benchmark.extra_info["mappings, smallest"] = min(counts)
    benchmark.extra_info["mappings, mean"] = np.mean(counts)
    assert min(counts) >= 90


def count_mappings(shapes: Floats, arrays: Ints) -> list[int]:
    """Return how many mappings a single core of every array has for every shape."""
    found = []
    for batch, m, k, n in shapes[:, :4].astype(np.int64).tolist():
        for rows, columns, l2_words in arrays.tolist():
            p = Problem(batch, m, k, n, 0.0, rows, columns, l2_words, 4096.0, 1)
            found += [sum(best_tiling(p, part, flow).mappings for flow in range(3)) for part in parts_of(p)]
    return found


@pytest.mark.parametrize("part", [8, 4, 2, 1])
@pytest.mark.parametrize("axis", ["designs", "shapes"])
def test_cost_against_size(
    benchmark: BenchmarkFixture, space: pd.DataFrame, shapes: Floats, axis: str, part: int
) -> None:
    """Reduce one axis of 64 shapes and all designs to an eighth, a quarter, a half."""
    some = shapes[: 64 // part] if axis == "shapes" else shapes[:64]
    grid = space.iloc[:: part if axis == "designs" else 1]
    designs = designs_of(grid, "tensor")
    benchmark.pedantic(estimate_pairs, (some, designs), rounds=2, warmup_rounds=1)
    size = len(some) if axis == "shapes" else len(designs)
    benchmark.extra_info.update(curve=f"estimate: {axis}", size=size, bound=1)
    if benchmark.stats:
        pairs = len(some) * len(designs)
        benchmark.extra_info["pairs per second"] = pairs / benchmark.stats["min"]


def test_a_job_of_the_workflow(
    benchmark: BenchmarkFixture, study: Settings, space: pd.DataFrame, parts: pd.DataFrame
) -> None:
    """Estimate one point on the whole grid: every core type, with energies, as a validated table."""
    point = parts[(parts["model"] == MODELS[1]) & (parts["layout"] == "tp2-b2")]
    found = benchmark(estimate_operators, point, space, HARDWARE, study.technology, EstimateSettings())
    if benchmark.stats:
        benchmark.extra_info["rows per second"] = len(found) / benchmark.stats["mean"]
