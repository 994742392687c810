"""Machines of any size, kernel times on them, and stages with some recomputed blocks."""

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.kernels import kernels_of, time_kernels, works_of_kernels
from phaze.layout import Group, Layout
from phaze.plan.layers.costs import kernel_times
from phaze.plan.layers.kernels import attention_kernel
from phaze.plan.machines import device_of, load_machine, slowest_device
from phaze.plan.pricing.lowering import Lowering, ModelTraining
from phaze.spec.models import load_transformer
from phaze.spec.system import Stack
from phaze.workload.models import library_workload
from phaze.workload.workload import DIRECTIONS

MODEL = load_transformer("gpt2-xl", "test").model_copy(update={"layers": 6})


def test_a_machine_has_as_many_devices_as_are_asked_for() -> None:
    own, large, small = (
        load_machine("h100", stack="megatron-core-2024", devices=devices) for devices in (None, 16384, 64)
    )
    assert (own.devices, large.devices, small.devices) == (6144, 16384, 64)
    for group in (Group(8, 1), Group(8, 8), Group(4, 16)):
        assert (
            len({machine.network.seconds("all_reduce", 1e9, group) for machine in (own, large, small)}) == 1
        )
    wide = Group(2048, 8)
    assert large.network.seconds("all_reduce", 1e9, wide) > large.network.seconds(
        "all_reduce", 1e9, Group(8, 8)
    )


@pytest.mark.parametrize(
    ("system", "stack", "kernel"),
    [
        ("h100", "torchtitan", "2"),
        ("gb200", "torchtitan", "cudnn"),
        ("h100", "megatron-core", "cudnn"),
        ("a100-selene", "megatron-core", "2"),
        ("b200", "megatron-deepspeed", "cudnn"),
    ],
)
def test_attention_runs_in_the_first_kernel_that_the_device_has(system: str, stack: str, kernel: str) -> None:
    device = device_of(load_machine(system, stack=stack))
    assert attention_kernel(device, load_machine(system, stack=stack).stack) == kernel
    with pytest.raises(PhazeError, match=f"has attention 9, and device {device.name} knows"):
        attention_kernel(device, Stack(attention=("9",)))


def test_kernels_that_were_timed_before_take_as_long_as_all_at_once() -> None:
    machine = load_machine("h100", stack="megatron-core-2024", devices=8)
    layers = library_workload(MODEL, 1024, Layout(microbatch=2)).layers
    passes = (layer.pass_of(direction) for layer in layers for direction in DIRECTIONS)
    kernels = [kernel for one in passes for operator in one.operators for kernel in kernels_of(operator)]
    times = kernel_times(machine, 2)
    works = works_of_kernels(kernels, machine.vector_cycles)
    whole = time_kernels(works, slowest_device(machine), 2, added_bytes=times.added_bytes)
    half = len(kernels) // 2
    assert (times.of(kernels[half:]) == whole[half:]).all()
    assert (times.of(kernels) == whole).all()
    order = np.random.default_rng(0).permutation(len(kernels)).tolist()
    assert (times.of([kernels[i] for i in order]) == whole[order]).all()


@pytest.mark.parametrize("cut", [range(8), range(2, 6), range(5), range(3, 8)])
def test_blocks_that_run_forward_again_cost_time_and_free_memory_each_alike(cut: range) -> None:
    """With none a stage without recomputation, with all one with it; between both, block by block."""
    machine = load_machine("h100", stack="megatron-core-2024", devices=8)
    lowering = Lowering(ModelTraining(MODEL, 1024, 64, flash_attention=True), machine)
    full, plain = (Layout(microbatch=2, recompute=word) for word in ("full", "none"))
    blocks = len(cut) - (cut.start == 0) - (cut.stop == 8)
    stages = [lowering.stage(cut, full, k) for k in range(blocks + 1)]
    without, every = lowering.stage(cut, plain), lowering.stage(cut, full)
    for name in ("recompute_s", "stash_bytes", "work_bytes", "fixed_bytes", "forward_s", "backward_s"):
        values = np.array([getattr(stage, name) for stage in stages])
        assert values[0] == pytest.approx(getattr(without, name), rel=1e-12)
        assert values[-1] == getattr(every, name)
    again = np.diff([stage.recompute_s for stage in stages])
    freed = -np.diff([stage.stash_bytes for stage in stages])
    assert stages[0].recompute_s == 0
    assert (again > 0).all()
    assert again == pytest.approx(again[0])
    assert (freed > 0).all()
    assert freed == pytest.approx(freed[0])
