"""No faster resource makes a step longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.fabric import network_of
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Machine
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import Run, plan_of_run
from phaze.spec.systems import load_cluster, sized
from phaze.validate.rows import read_row

SITES = (
    ("h100", "megatron-bridge"),
    ("h100", "megatron-bridge-alltoall"),
    ("h100", "torchtitan"),
    ("gb200", "megatron-bridge"),
    ("a100-vtrain", "megatron-deepspeed"),
)
DRAWS = 20
FACTORS = (1.1, 2.0, 4.0)
ROUNDING = 1e-9


def drawn(random: Random) -> tuple[dict[str, str], str, str]:
    """Row of any widths and options, and its machine."""
    system, stack = random.choice(SITES)
    model = random.choice(["mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-8b"])
    tp, cp, pp, dp = (random.choice(widths) for widths in ([1, 2, 4, 8], [1, 1, 2], [1, 2, 4], [1, 2, 8]))
    row: dict[str, object] = {
        "model": model, "seq": random.choice([2048, 4096]), "gpus": tp * cp * pp * dp, "tp": tp, "cp": cp,
        "pp": pp, "dp": dp, "microbatch": 1, "global_batch": 4 * dp,
        "zero": random.choice([0, 1]),
        "recompute": random.choice(["none", "full", "selective"]), "cp_kind": random.choice(["p2p", "a2a"]),
        "compute": random.choice(["bf16", "fp8", "fp8-cs"] if system == "h100" else ["bf16"]),
        "sequence_parallel": str(tp > 1).lower(), "vp": 2 if pp > 1 and random.random() < 0.5 else 1,
    }  # fmt: skip
    if model != "llama-3.1-8b":
        row |= {"ep": random.choice([1, 2, 8]), "etp": random.choice(["1", ""])}
    return {name: str(value) for name, value in row.items()}, system, stack


def faster(machine: Machine, system: str, factor: float) -> Iterator[tuple[str, Machine]]:
    """Machines with one resource faster by a factor, for each resource."""
    device, stack = device_of(machine), machine.stack
    for key in ("clock_hz", "hbm_bandwidth_bytes_per_s"):
        yield key, machine.with_device(device.model_copy(update={key: factor * getattr(device, key)}))
    yield ("kernel_s", machine.with_device(device.model_copy(update={"kernel_s": device.kernel_s / factor})))
    launch_s = stack.launch_s / factor
    yield "launch_s", replace(machine, stack=stack.model_copy(update={"launch_s": launch_s}))
    cluster = sized(load_cluster(system)[0], machine.devices, "system")
    for number, level in enumerate(cluster.levels):
        levels = list(cluster.levels)
        bandwidth = factor * level.bandwidth_bytes_per_s
        levels[number] = level.model_copy(update={"bandwidth_bytes_per_s": bandwidth})
        network = network_of(cluster.model_copy(update={"levels": tuple(levels)}))
        yield f"level {number}", replace(machine, network=network)


def step_s(run: Run, machine: Machine) -> float:
    return price(plan_of_run(run, machine), machine).time_s


@pytest.mark.slow
def test_no_resource_that_is_faster_makes_a_step_longer() -> None:
    random, priced = Random(0), 0
    while priced < DRAWS:
        row, system, stack = drawn(random)
        machine, found = load_machine(system, stack=stack), read_row(row)
        try:
            before_s = step_s(found.runs[0], machine)
        except (PhazeError, IndexError):
            continue
        priced += 1
        for factor in FACTORS:
            for what, other in faster(machine, system, factor):
                assert step_s(found.runs[0], other) <= before_s * (1 + ROUNDING), (what, factor, row, stack)


def test_collectives_stay_hidden_behind_kernels_that_the_host_starts() -> None:
    """With a higher clock, products end before the host launches the next ones, which takes as long as
    before.
    """
    row = (
        "mixtral-8x7b,4096,64,8,8,4,2,8,2,1,true,1,fp8,true",
        "model,seq,gpus,global_batch,tp,pp,cp,ep,etp,microbatch,sequence_parallel,zero,compute,flash_attention",
    )
    run = read_row(dict(zip(row[1].split(","), row[0].split(","), strict=True))).runs[0]
    machine = load_machine("h100")
    device = device_of(machine)
    times_s = [
        step_s(run, machine.with_device(device.model_copy(update={"clock_hz": factor * device.clock_hz})))
        for factor in (1, 2, 2.5, 3, 4, 8)
    ]
    assert times_s == sorted(times_s, reverse=True)
