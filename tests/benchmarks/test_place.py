"""Speed of placement; measured with `pytest tests/benchmarks --benchmark-enable`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.branches import place_graphs
from phaze.formulas.phaze.chains import Runs, best_times
from phaze.formulas.phaze.flush import Placement, place_widths
from phaze.formulas.phaze.instance import place_instance, read_instance
from phaze.layout import Layout
from phaze.workload.graphs import edge_arrays

Benchmark = Callable[..., object]
MODELS = {
    "gpt3": (96, [309e6, 906e6, 309e6], [101e6, 214e6, 64e6], 50e6, 4, [1e-4, 6e-3, 2.5e-3]),
    "llama2-7b": (32, [412e6, 403e6, 412e6], [67e6, 570e6, 446e6], 34e6, 1, [1e-4, 2e-2, 1e-2]),
    "bert": (24, [103e6, 25e6, 103e6], [8e6, 71e6, 210e6], 4e6, 1, [4e-4, 8e-2, 4e-2]),
}


def test_place_gpt3(benchmark: Benchmark, shared_data: Path) -> None:
    """Place GPT-3 over two TMP widths, 98 layers, on 1,024 devices."""
    instance = read_instance(shared_data / "placement" / "gpt3.json")
    result = benchmark(place_instance, instance)
    assert result == place_instance(instance)


@pytest.mark.parametrize("model", MODELS)
def test_best_times_of_many_architectures(model: str, benchmark: Benchmark) -> None:
    """Find the best time of 15,000 architectures at three HBM sizes, with and without recomputation.

    150 architectures without measuring.
    """
    count = 15_000 if benchmark.enabled else 150  # type: ignore[attr-defined]
    blocks, weights, activations, output, tensor, latencies = MODELS[model]
    runs = Runs(
        counts=(1, blocks, 1),
        weight_bytes=np.array(weights),
        static_bytes=2 * np.array(weights),
        activation_bytes=np.array(activations),
        output_bytes=np.full(3, output),
        tensor_parallel=np.full(3, tensor > 1),
    )
    rng = np.random.default_rng(0)
    forward = np.array(latencies) * np.exp(rng.normal(0, 1, (count, 1)) + rng.normal(0, 0.2, (count, 3)))
    choices = [(hbm, recompute) for hbm in (32, 64, 80) for recompute in (False, True)]
    settings = [Setting(1024, 4096, 2.0**32, hbm * 2.0**30, recompute) for hbm, recompute in choices]
    layout = Layout(tp=tensor)
    best_times(runs, forward[:1], 2 * forward[:1], layout, settings)
    times = benchmark(best_times, runs, forward, 2 * forward, layout, settings)
    assert np.shape(times) == (6, count)


def towers(layers: int, count: int, tensor: int) -> Chain:
    """Return towers of layers with a layer that joins them; a single one is a chain."""
    rng = np.random.default_rng(0)
    n, weights = count * layers + 1, rng.integers(1e7, 1e8, count * layers + 1) / tensor
    last = [layers * (tower + 1) - 1 for tower in range(count)]
    edges = [(v, v + 1 if v not in last else n - 1, 5e6) for v in range(n - 1)]
    forward = 0.01 * rng.random(n) / tensor
    activations = rng.integers(1e7, 1e8, n) / tensor
    split = np.full(n, tensor > 1)
    return Chain(forward, 2 * forward, weights, 4 * weights, activations, split, **edge_arrays(edges))


BRANCHED = Setting(1024, 4096, 1e10, memory_bytes=2.0**30, recompute=True)


@pytest.mark.parametrize("count", [1, 2])
def test_place_towers(count: int, benchmark: Benchmark) -> None:
    """Place 60 layers, in a chain or in two towers with 962 downsets, at four TMP widths on 1,024 devices.

    24 layers without measuring.
    """
    layers = 60 if benchmark.enabled else 24  # type: ignore[attr-defined]
    graphs = {Layout(tp=t): towers(layers // count, count, t) for t in (1, 2, 4, 8)}
    place_graphs(graphs, BRANCHED)
    found = benchmark(place_graphs, graphs, BRANCHED)
    assert isinstance(found, Placement)
    if count == 1:
        chain = place_widths(graphs, BRANCHED)
        assert isinstance(chain, Placement)
        assert found.rank() == chain.rank()
