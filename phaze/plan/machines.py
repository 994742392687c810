"""Machines that plans are priced on, from the files of config/systems, config/devices and config/stacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.cost.network.fabric import network_of
from phaze.cost.vector import usual_cycles
from phaze.plan.plan import Machine
from phaze.runtimes.rules import TrainingTask
from phaze.spec.files import FOLDER
from phaze.spec.system import Cluster, Device, Stack
from phaze.spec.systems import load_cluster, load_stack_of, sized


def load_machine(
    system: str, folder: Path = FOLDER, stack: str | None = None, devices: int | None = None
) -> Machine:
    """System of config/systems, or of a YAML file by path, that says its device and its levels.

    `stack` names a file of config/stacks, or is the path of one; the system's own unless given. `devices` is
    their number where it is not the system's (`sized`).
    """
    cluster, device = load_cluster(system, folder)
    cluster = cluster if devices is None else sized(cluster, devices, system)
    return machine_of(cluster, device, load_stack_of(cluster, folder, stack), folder)


def machine_of(cluster: Cluster, device: Device, stack: Stack, folder: Path = FOLDER) -> Machine:
    """Devices of a cluster on its network, with the software that trains on them."""
    cycles = usual_cycles(folder)
    machine = Machine(
        network_of(cluster),
        0.0,
        cluster.devices,
        vector_cycles=cycles,
        stack=stack,
        system=cluster,
    )
    return machine.with_device(device)


def grown(machine: Machine, devices: int) -> Machine:
    """Machine with at least so many devices, its system `sized` where it has fewer."""
    if machine.system is None or devices <= machine.devices:
        return machine
    system = sized(machine.system, devices, "gpus")
    return replace(machine, network=network_of(system), devices=system.devices, system=system)


def device_of(machine: Machine) -> Device:
    """Device of a machine; PhazeError for one whose plans bring the times of their layers."""
    if machine.device is None:
        raise PhazeError("machine: says nothing of its device, on which layers would run")
    return machine.device


def host_bytes_per_s(machine: Machine) -> float:
    """Bytes that a device reaches to and from the memory of its host; PhazeError where that is not said."""
    device = device_of(machine)
    if not device.host_bandwidth_bytes_per_s:
        raise PhazeError(f"offload: device {device.name} says no host_bandwidth_bytes_per_s")
    return device.host_bandwidth_bytes_per_s


def prudent(task: TrainingTask, machine: Machine) -> tuple[TrainingTask, Machine]:
    """Task and machine at prudent prices: no more overlap than is proven, and experts as unevenly loaded as
    the stack says, unless another load was asked for.
    """
    stack = machine.stack
    load = stack.load.prudent if task.load == stack.load.expected else task.load
    return replace(task, load=load), proven(machine)


def proven(machine: Machine) -> Machine:
    """Machine whose stack is expected to overlap no more than is proven."""
    return replace(machine, stack=machine.stack.proven())


def usable_gib(machine: Machine) -> float:
    """Memory of a device that the tensors of a plan may use."""
    device = device_of(machine)
    return device.hbm_gib - device.reserve_gib
