"""Cost of placement against size: layers, devices and architectures, up to realistic sizes.

The paper's bound for one architecture (Appendix B.2) is O(V^3 + V^2 K min(K, V)) for V layers and K devices.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.chains import Runs, best_times
from phaze.formulas.phaze.flush import Placement, place_widths
from phaze.layout import Layout
from phaze.workload.graphs import edge_arrays

GIB = 2.0**30
LAYERS, DEVICES = 98, 1024
MOST = 1000
"""Maximum size without measuring."""
KINDS = {
    "weight_bytes": (309e6, 906e6, 309e6),
    "activation_bytes": (101e6, 214e6, 64e6),
    "forward_s": (1e-4, 6e-3, 2.5e-3),
}
"""Embedding, block and head of one tensor-parallel rank of GPT-3 (t = 4)."""


def spread(values: tuple[float, ...], layers: int) -> np.ndarray:
    """Return the values of a chain: embedding, blocks that differ a little, head; shape (layers,)."""
    first, block, last = values
    noise = 1 + 0.05 * np.random.default_rng(0).random(layers - 2)
    return np.concatenate([[first], block * noise, [last]])


def chain_of(layers: int) -> Chain:
    """Return a chain of distinct layers, so that no repetition can be exploited."""
    of = {name: spread(values, layers) for name, values in KINDS.items()}
    return Chain(
        parameter_bytes=of["weight_bytes"],
        static_bytes=2 * of["weight_bytes"],
        activation_bytes=of["activation_bytes"],
        **edge_arrays((i, i + 1, 50e6) for i in range(layers - 1)),
        forward_s=of["forward_s"],
        backward_s=2 * of["forward_s"],
        tensor_parallel=np.ones(layers, dtype=bool),
    )


def setting_of(devices: int) -> Setting:
    """Return the paper's cluster with another number of devices, and four samples a device."""
    return Setting(devices, 4 * devices, 2.0**32, 80 * GIB, recompute=True)


def measure(benchmark: BenchmarkFixture, curve: str, size: int, bound: float) -> int:
    """Record which point of which curve a benchmark is; return its size, or a small one without measuring."""
    benchmark.extra_info.update(curve=curve, size=size, bound=bound)
    return size if benchmark.enabled else min(size, MOST)


@pytest.mark.parametrize("layers", [25, 50, 100, 200, 400])
def test_place_against_layers(benchmark: BenchmarkFixture, layers: int) -> None:
    """By number of layers of one chain on 1,024 devices."""
    layers = measure(benchmark, "place, layers", layers, 3)
    placed = benchmark(place_widths, {Layout(tp=4): chain_of(layers)}, setting_of(DEVICES))
    assert isinstance(placed, Placement)


@pytest.mark.parametrize("devices", [100, 1000, 10_000, 100_000])
def test_place_against_devices(benchmark: BenchmarkFixture, devices: int) -> None:
    """By number of devices for a chain of 98 layers, up to a hundred thousand."""
    devices = measure(benchmark, "place, devices", devices, 1)
    placed = benchmark(place_widths, {Layout(tp=4): chain_of(LAYERS)}, setting_of(devices))
    assert isinstance(placed, Placement)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [100, 1000, 10_000, 100_000])
def test_screen_against_devices(benchmark: BenchmarkFixture, devices: int) -> None:
    """By number of devices for 1,000 architectures at once."""
    devices = measure(benchmark, "1,000 architectures, devices", devices, 1)
    times = benchmark(times_of, 1000, devices)
    assert np.isfinite(times).all()


@pytest.mark.slow
@pytest.mark.parametrize("architectures", [100, 1000, 10_000, 100_000])
def test_screen_against_architectures(benchmark: BenchmarkFixture, architectures: int) -> None:
    """By number of architectures in one call, on 1,024 devices."""
    architectures = measure(benchmark, "times, architectures", architectures, 1)
    times = benchmark(times_of, architectures, DEVICES)
    assert np.isfinite(times).all()


def times_of(architectures: int, devices: int) -> np.ndarray:
    """Return the best times per batch of a 98-layer model on random architectures, shape (1, A)."""
    weights = np.array(KINDS["weight_bytes"])
    runs = Runs(
        counts=(1, LAYERS - 2, 1),
        weight_bytes=weights,
        static_bytes=2 * weights,
        activation_bytes=np.array(KINDS["activation_bytes"]),
        output_bytes=np.full(3, 50e6),
        tensor_parallel=np.ones(3, dtype=bool),
    )
    rng = np.random.default_rng(0)
    forward = np.array(KINDS["forward_s"]) * np.exp(rng.normal(0, 1, (architectures, 3)))
    return best_times(runs, forward, 2 * forward, Layout(tp=4), [setting_of(devices)])
