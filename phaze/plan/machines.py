"""Build machines for pricing plans from the files in config/systems, config/devices and config/stacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.cost.network.fabric import network_of
from phaze.cost.size import slowest
from phaze.cost.vector import usual_cycles
from phaze.plan.plan import Machine
from phaze.runtimes.rules import TrainingTask
from phaze.spec.files import FOLDER
from phaze.spec.system import Cluster, Device, Scenario, Stack
from phaze.spec.systems import load_cluster, load_stack_of, sized
from phaze.spec.training_plan import AskedPlan


def load_machine(
    system: str, folder: Path = FOLDER, stack: str | None = None, devices: int | None = None
) -> Machine:
    """Load a machine by its system's name in config/systems, or from a YAML file.

    `stack` is the name of a file in config/stacks or a path, by default the system's own. `devices` overrides
    the system's number of devices (`sized`).
    """
    cluster, device = load_cluster(system, folder)
    cluster = cluster if devices is None else sized(cluster, devices, system)
    software = load_stack_of(cluster, folder, stack)
    return machine_of(
        cluster if stack in (None, cluster.stack) else unfitted(cluster), device, software, folder
    )


def unfitted(cluster: Cluster) -> Cluster:
    """Cluster without its calibration, which is valid only for the stack of the calibrated runs."""
    return cluster.model_copy(update={"calibrated": None})


def planned_machine(request: AskedPlan, folder: Path = FOLDER) -> Machine:
    """Build the machine of a planning request from its plan file, or else from the named files."""
    stored = request.stored_machine(folder)
    cluster = sized(stored.cluster, request.devices, request.system)
    return machine_of(cluster, stored.device, stored.stack, folder)


def machine_of(
    system: Scenario | Cluster,
    device: Device,
    stack: Stack,
    folder: Path = FOLDER,
    cycles: Mapping[tuple[str, str], float] | None = None,
) -> Machine:
    """Build a machine from a cluster, or that of a scenario, its device and its training software.

    `cycles` are those of vector operations by role and kind; default: those of the default technology.
    """
    return Machine(
        network_of(system),
        0.0,
        system.devices,
        vector_cycles=usual_cycles(folder) if cycles is None else cycles,
        stack=stack,
        system=system if isinstance(system, Cluster) else None,
    ).with_device(device)


def grown(machine: Machine, devices: int) -> Machine:
    """Machine with at least this number of devices; a smaller system is enlarged (`sized`)."""
    if machine.system is None or devices <= machine.devices:
        return machine
    system = sized(machine.system, devices, "gpus")
    return replace(machine, network=network_of(system), devices=system.devices, system=system)


def device_of(machine: Machine) -> Device:
    """Device of a machine; PhazeError if it has none because its plans contain the layer times."""
    if machine.device is None:
        raise PhazeError("machine: has no device to run layers on")
    return machine.device


def slowest_device(machine: Machine) -> Device:
    """Device of a machine with the sustained speeds of the slowest one (`slowest`), and with `vboost`."""
    device = device_of(machine)
    boost = device.boost if machine.stack.vboost else 1.0
    lag = float(slowest(machine.devices, device.spread))
    speeds = {
        "sustained_clock": min(device.sustained_clock * boost, 1.0) / lag,
        "sustained_hbm": device.sustained_hbm / lag,
    }
    return device if lag == boost == 1 else device.model_copy(update=speeds)


def host_bytes_per_s(machine: Machine) -> float:
    """Bandwidth between a device and its host's memory; PhazeError if it is not specified."""
    device = device_of(machine)
    if not device.host_bandwidth_bytes_per_s:
        raise PhazeError(f"offload: device {device.name} needs host_bandwidth_bytes_per_s")
    return device.host_bandwidth_bytes_per_s


def prudent(task: TrainingTask, machine: Machine) -> tuple[TrainingTask, Machine]:
    """Task and machine under prudent (conservative) assumptions: only proven overlap, uneven expert load.

    The load is the stack's prudent one, unless the task has a load other than the expected one.
    """
    stack = machine.stack
    expected = bool(task.experts) and task.load == stack.load.expected
    load = stack.load.prudent if expected else task.load
    return replace(task, load=load), proven(machine)


def proven(machine: Machine) -> Machine:
    """Machine whose software stack overlaps communication only where that is proven."""
    return replace(machine, stack=machine.stack.proven())


def usable_gib(machine: Machine) -> float:
    """Device memory available to a plan's tensors, in GiB."""
    device = device_of(machine)
    return device.hbm_gib - device.reserve_gib
