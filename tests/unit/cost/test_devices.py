"""Devices other than systolic arrays, described by an architecture, compared with published figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.commands.answers import estimate_subject, read_architecture, read_subject
from phaze.cost.kernels import time_kernels
from phaze.cost.mapper.works import Works
from phaze.spec.config import load_architecture
from phaze.spec.systems import load_device

# Largest FLOP/s of a product of 16-bit matrices m × k × n that a search over shapes has measured (S. Bekman,
# Machine Learning Engineering, "Maximum Achievable Matmul FLOPS", CUDA 12.1; MI300X: mag-/gpu_benchmark), and
# within which share ours is.
MEASURED = {
    "a100-80gb": ((6912, 2048, 16384), 267.9e12, 0.05),
    "h100-80gb": ((6144, 2816, 17920), 792.1e12, 0.12),
    "mi300x": ((4352, 3840, 13568), 758.3e12, 0.05),
}


def product(m: int, k: int, n: int) -> Works:
    """Return a kernel that multiplies two matrices."""
    nothing = np.zeros(1)
    return Works(
        np.zeros(1, int), np.zeros(1, int), np.array([[1, m, k, n]]), *(nothing,) * 5, np.array(["matmul"])
    )


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_a_large_product_is_as_fast_as_the_best_that_was_measured(name: str) -> None:
    """At the clock of a short measurement; long training runs are limited by power."""
    shape, measured, within = MEASURED[name]
    device = load_device(name).model_copy(update={"sustained_clock": 1.0})
    ours = 2 * float(np.prod(shape)) / time_kernels(product(*shape), device, 2).sum()
    assert ours == pytest.approx(measured, rel=within)
    assert ours < 2 * device.num_tc * device.pe_x * device.pe_y * device.clock_hz


def test_a_device_is_an_architecture() -> None:
    """An A100 has 108 processors of four 16-wide tensor cores, 164 KiB of shared memory, 40 MB of cache."""
    chip = load_architecture("a100-80gb")
    assert (chip.num_tc, chip.pe_x * chip.pe_y, chip.lanes) == (108, 4 * 16 * 16, 64)
    assert (chip.tensor_l2_kib, chip.glb_mib, chip.hbm_gib) == (164, 40, 80)
    assert read_architecture("a100-80gb")["architecture"].iloc[0] == "a100-80gb"


def test_a_device_may_be_given_by_its_path() -> None:
    by_path = load_architecture("config/devices/a100-80gb.yaml")
    assert by_path == load_architecture("a100-80gb")


def test_an_unknown_architecture_is_answered_with_devices_as_well() -> None:
    """But not chips of tiles."""
    with pytest.raises(
        PhazeError,
        match=r"no architecture 'a100-81gb'; did you mean a100-\d+gb or .*config/architectures and config",
    ) as error:
        load_architecture("a100-81gb")
    assert "grayskull" not in str(error.value)


def test_a_chip_has_its_own_clock_and_memory_in_a_cluster_or_else_those_of_its_device() -> None:
    subject = read_subject("gpt2", 1024, [1], [8], "paired")
    first, second = (estimate_subject(subject, "a100-80gb", system, 1e9) for system in ("paper", "h100"))
    pd.testing.assert_frame_equal(first, second)
    slow, fast = (estimate_subject(subject, "tpu-v4", system, 1e9) for system in ("paper", "h100"))
    bound = (slow["limit_all"] == fast["limit_all"]) & (slow["limit_all"] == "compute")
    clocks = [load_device(name).clock_hz for name in ("tpu-v4-as-built", "h100-80gb")]
    ratios = slow["latency_all_s"][bound] / fast["latency_all_s"][bound]
    assert bound.sum() > 1
    assert ratios.to_numpy() == pytest.approx(clocks[1] / clocks[0])


def test_operators_are_estimated_on_a_device_as_on_any_architecture() -> None:
    """No operator exceeds the peak of the A100, and large ones reach most of it."""
    found = estimate_subject(read_subject("gpt2", 1024, [1], [8], "paired"), "a100-80gb", "paper")
    row = found[(found["name"] == "logits") & (found["direction"] == "forward")].iloc[0]
    flops = 2 * 8 * 1024 * 768 * 50257 / row["latency_all_s"]
    assert 0.6 * 312e12 < flops < 312e12


def test_a_chip_of_tiles_is_no_architecture() -> None:
    with pytest.raises(PhazeError, match=r"devices/grayskull\.yaml: is a chip of tiles; give a device"):
        load_architecture("grayskull")
