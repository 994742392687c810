"""Load systems and devices from config/systems and config/devices."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import log
from pathlib import Path
from typing import TypeVar

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean
from phaze.spec.files import (
    FOLDER,
    is_path,
    named_file,
    named_path,
    read_mapping,
    stack_path,
    system_path,
    within,
)
from phaze.spec.names import Runtime
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.system import Cluster, Device, DeviceFigures, Level, Scenario, Stack
from phaze.spec.tiled import TiledDevice, TiledSystem
from phaze.spec.tiled_study import TiledStudy

STACKS: dict[Runtime, str] = {
    "megatron": "megatron-core",
    "torchtitan": "torchtitan",
    "deepspeed": "megatron-deepspeed",
    "maxtext": "maxtext",
    "chip": "chip",
}
"""Default software stack of each runtime, for systems whose own stack belongs to another runtime."""
PEAK = "peak_flops_per_s"
FIGURES = (PEAK, "hbm_gib", "hbm_bandwidth_bytes_per_s")
"""Fields that suffice to define a device; the first one marks a file that relies on them."""
RUNTIME: Runtime = "megatron"
"""Default runtime of devices that are not tied to another runtime's stack."""
Constants = TypeVar("Constants", Device, Stack, Level)


def flat_scenario(name: str, folder: Path = FOLDER, flat: float | None = None) -> Scenario:
    """Scenario of a study on a system, by name in config/systems or by path of a YAML file.

    `flat` replaces the bandwidth between any two devices, in bytes per second. PhazeError for a cluster with
    several levels unless `flat` is given: no level has the bandwidth between any two devices.
    """
    cluster, device = load_cluster(name, folder)
    outer, factor = cluster.levels[-1], 2.0
    if len(cluster.levels) == 1:
        factor *= (outer.sustained_messages or outer.sustained) / outer.sustained
    elif flat is None:
        levels = ", ".join(f"{level.bandwidth_bytes_per_s:g}" for level in cluster.levels)
        raise PhazeError(
            f"{system_path(name, folder)}: has network levels with {levels} bytes/s, but this planner "
            "assumes one bandwidth between any two devices",
            "give it with --flat-bandwidth or, in the scenario "
            "of a study, with network_bandwidth_bytes_per_s; `plan` uses the levels themselves",
        )
    return Scenario(
        devices=cluster.devices,
        network_bandwidth_bytes_per_s=outer.bandwidth_bytes_per_s if flat is None else flat,
        hbm_bandwidth_bytes_per_s=device.hbm_bandwidth_bytes_per_s,
        clock_hz=device.clock_hz,
        all_reduce_factor=factor,
    )


def load_cluster(name: str, folder: Path = FOLDER) -> tuple[Cluster, Device]:
    """Load a cluster and its device, by name in config/systems or by path of a YAML file.

    A system without a software stack gets the one of its device, else that of RUNTIME. Raises PhazeError,
    also for a system without a device and levels.
    """
    path = system_path(name, folder)
    fields = read_mapping(path)
    _refuse_tiles(fields, path, "a device and levels of a network")
    cluster = _read_cluster(fields, path, folder)
    device = _read_device(_file_of(path, "device", cluster.device, folder), folder)
    if cluster.stack is None:
        cluster = cluster.model_copy(update={"stack": device.stack or STACKS[RUNTIME]})
    if cluster.calibrated is None:
        return cluster, device
    return cluster, with_numbers(device, cluster.calibrated.device, f"{path}: calibrated.device")


def _read_cluster(fields: dict[str, object], path: Path, folder: Path) -> Cluster:
    """Parse the cluster of a file, with the measured collectives to which its levels refer."""
    if "network_bandwidth_bytes_per_s" in fields:
        raise PhazeError(
            f"{path}: network_bandwidth_bytes_per_s: a flat network is one level of a cluster",
            "give a device, with clock and HBM, and levels: [{devices: 1024, bandwidth_bytes_per_s: 4e9}]; "
            "all_reduce_factor: 4 is sustained: 0.5 with sustained_messages: 1",
        )
    if not fields.keys() & {"device", "levels"}:
        files = (folder / "systems").glob("*.yaml")
        clusters = sorted(file.stem for file in files if "levels" in read_mapping(file))
        alike = did_you_mean(path.stem, clusters, "phaze systems")
        raise PhazeError(f"{path}: must define a device and network levels, as a100-selene does", alike)
    levels = fields.get("levels")
    if isinstance(levels, list):
        fields = {**fields, "levels": [_with_network(level, path, folder) for level in levels]}
    return Cluster.parse(fields, str(path))


def _with_network(level: object, path: Path, folder: Path) -> object:
    """Fields of a level, with the name of measured collectives replaced by their contents."""
    if not isinstance(level, dict) or not isinstance(level.get("nccl"), str):
        return level
    return {**level, "nccl": NcclSpeeds.from_file(_file_of(path, "network", level["nccl"], folder))}


def sized(cluster: Cluster, devices: int, where: str) -> Cluster:
    """Resize a cluster to `devices` devices: fewer levels, or a larger outermost level.

    A larger level keeps bandwidth, latency and sustained share per device. If the number does not fill the
    inner groups, every group is reduced equally while it keeps most of its devices, for example 64 of the 72
    devices of a rack. A part of a torus has levels only, since its shape is unknown. Raises PhazeError,
    naming `where`, for other numbers and for clusters that cannot grow: a torus, and a system with one level,
    whose links to other groups are unknown.
    """
    if devices == cluster.devices:
        return cluster
    inner = [level for level in cluster.levels[:-1] if level.devices < devices]
    outer = next((level for level in cluster.levels if level.devices >= devices), cluster.levels[-1])
    if devices > cluster.devices and (cluster.torus is not None or len(cluster.levels) == 1):
        kind = "a torus" if cluster.torus is not None else "one level, with no network to others"
        raise PhazeError(
            f"{where}: devices must be at most {cluster.devices}, as it is {kind}, got {devices}"
        )
    part = _reduced_group(inner, devices) if inner and devices > 0 else 1
    if devices < 1 or not part:
        least = f"a multiple of {inner[-1].devices}, whole groups of a level" if inner else ">= 1"
        raise PhazeError(f"{where}: devices must be {least}, got {devices}")
    # Without inner levels there is no group to shrink.
    inner[-1:] = [level.model_copy(update={"devices": part}) for level in inner[-1:]]
    levels = (*inner, outer.model_copy(update={"devices": devices}))
    return cluster.model_copy(update={"levels": levels, "torus": None})


def _reduced_group(inner: Sequence[Level], devices: int) -> int:
    """Largest group size that divides `devices`; 0 if groups would shrink by an eighth or more.

    The size is a multiple of the groups inside.
    """
    group = inner[-1].devices
    least = inner[-2].devices if len(inner) > 1 else 1
    parts = (part for part in range(group, 7 * group // 8, -1) if devices % part == 0 == part % least)
    return next(parts, 0)


def cluster_files(name: str, folder: Path = FOLDER) -> tuple[Path, ...]:
    """Files on which a system depends: its own, and the files of device, stack and measured collectives."""
    path = system_path(name, folder)
    cluster, _ = load_cluster(name, folder)
    stack = () if cluster.stack is None else (stack_path(cluster.stack, folder),)
    levels = read_mapping(path)["levels"]
    assert isinstance(levels, list)
    names = [level.get("nccl") for level in levels if isinstance(level, dict)]
    networks = (_file_of(path, "network", name, folder) for name in names if isinstance(name, str))
    return path, _file_of(path, "device", cluster.device, folder), *stack, *networks


def runtime_for(system: str, folder: Path = FOLDER, requested: Runtime | None = None) -> Runtime:
    """Requested runtime, or the system's default; PhazeError if the device does not support it."""
    device = load_cluster(system, folder)[1]
    required = next((name for name, stack in STACKS.items() if stack == device.stack), None)
    if requested is not None and required not in (None, requested):
        raise PhazeError(f"runtime: must be {required} on {device.name} (system {system}), got {requested}")
    return requested or required or RUNTIME


def stack_for(cluster: Cluster, runtime: Runtime, folder: Path = FOLDER) -> str:
    """Name of a runtime's software stack on a system: the system's own if it belongs to the runtime.

    Else it is the first of the system's further stacks that does, or the runtime's default.
    """
    for stack in filter(None, (cluster.stack, *cluster.stacks)):
        if stack.startswith(runtime) or load_stack(stack, folder).runtime == runtime:
            return stack
    return STACKS[runtime]


def load_stack(name: str, folder: Path = FOLDER) -> Stack:
    """Load a software stack by name in config/stacks, or by path of a YAML file."""
    path = stack_path(name, folder)
    return Stack.parse({"name": path.stem, **read_mapping(path)}, str(path))


def load_stack_of(cluster: Cluster, folder: Path = FOLDER, name: str | None = None) -> Stack:
    """Load the software stack `name`, or the system's own stack with its calibrated constants."""
    chosen = name or cluster.stack
    stack = Stack() if chosen is None else load_stack(chosen, folder)
    if cluster.calibrated is None or chosen != cluster.stack:
        return stack
    return with_numbers(stack, cluster.calibrated.stack, "calibrated.stack")


def with_numbers(noun: Constants, numbers: Mapping[str, object], source: str) -> Constants:
    """Replace constants of a device or stack; PhazeError names source, key and value of an invalid one."""
    # Parsed again, since constants from another file may be out of range.
    return noun.parse({**noun.model_dump(), **numbers}, source) if numbers else noun


def load_tiled(name: str, folder: Path = FOLDER) -> tuple[TiledSystem, TiledDevice]:
    """Load a tiled system and its chip, by name in config/systems or by path of a YAML file."""
    path = system_path(name, folder)
    system = TiledSystem.from_file(path)
    chip = _file_of(path, "device", system.device, folder)
    return system, TiledDevice.parse({"name": chip.stem, **read_mapping(chip)}, str(chip))


def load_tiled_systems(tiled: TiledStudy, folder: Path = FOLDER) -> dict[str, dict[str, object]]:
    """Load the systems of the tiled cases, each with its chip, as plain values."""
    names = dict.fromkeys(name for case in tiled.cases.values() for name in case.systems)
    nouns = {name: dict(zip(("system", "device"), load_tiled(name, folder), strict=True)) for name in names}
    return {
        name: {key: noun.model_dump(mode="json", exclude_unset=True) for key, noun in parts.items()}
        for name, parts in nouns.items()
    }


def tiled_flops(tiled: TiledStudy, folder: Path = FOLDER) -> float:
    """Peak 16-bit FLOP/s of the first system of the first tiled case; 0 if there are no cases."""
    for case in tiled.cases.values():
        system, device = load_tiled(case.systems[0], folder)
        return system.chips * device.flops
    return 0.0


def _refuse_tiles(fields: dict[str, object], path: Path, needed: str) -> None:
    """Raise PhazeError if the system is a mesh of tiles; `needed` describes the expected kind."""
    if "dram" in fields:
        raise PhazeError(
            f"{path}: is a mesh of tiles; plans and runs need a system with {needed}, such as "
            "a100-selene: they place work on whole devices"
        )


def load_device(name: str, folder: Path = FOLDER) -> Device:
    """Load a device by name in config/devices, or by path of a YAML file."""
    return _read_device(named_path("device", name, folder / "devices"), folder)


def _read_device(path: Path, folder: Path, after: tuple[Path, ...] = ()) -> Device:
    """Load a device from a file; `after` is the chain of files whose key `like` leads to it."""
    if path in after:
        circle = " -> ".join(file.stem for file in (*after[after.index(path) :], path))
        raise PhazeError(f"{path}: like: must lead to a device with its own clock, got the circle {circle}")
    fields = read_mapping(path)
    if "tile" in fields:
        raise PhazeError(f"{path}: is a chip of tiles", "give a device that is derived from an architecture")
    fields = {"name": path.stem, **fields}
    return Device.parse(
        _complete_figures(fields, path, folder, after) if _by_figures(fields) else fields, str(path)
    )


def _by_figures(fields: Mapping[str, object]) -> bool:
    """True for a device given by its peak FLOP/s, or without the clock and the cores of any other device."""
    return PEAK in fields or not fields.keys() & {"clock_hz", "num_tc", "pe_x", "tile"}


def _complete_figures(
    fields: dict[str, object], path: Path, folder: Path, after: tuple[Path, ...]
) -> dict[str, object]:
    """Complete the fields of a device given only by peak FLOP/s, HBM size and HBM bandwidth.

    All other fields come from the device in `like`, or else the most similar one, with its clock scaled to
    reach the given peak.
    """
    if "clock_hz" in fields:
        raise PhazeError(f"{path}: clock_hz: must not be given together with {PEAK}, from which it follows")
    # With a figure missing, a key of no device may be its misspelling: it is refused by name, and first.
    further = fields.keys() if fields.keys() >= {*FIGURES} else Device.model_fields
    figure_names = DeviceFigures.model_fields.keys()
    stated = {name: fields[name] for name in fields if name in figure_names or name not in further}
    figures = DeviceFigures.parse(stated, str(path))
    if figures.like is None:
        near = _nearest(figures, folder)
    else:
        near = _read_device(named_path("device", figures.like, folder / "devices"), folder, (*after, path))
    user_fields = {name: value for name, value in fields.items() if name not in (PEAK, "like")}
    completed = {**near.model_dump(exclude={"known_as"}), "assumed_from": near.name, **user_fields}
    # The arrays are those of the similar device, so only the clock can account for another peak.
    return completed | {"clock_hz": near.clock_hz * figures.peak_flops_per_s / near.peak_flops_per_s}


def _nearest(figures: DeviceFigures, folder: Path) -> Device:
    """Device of config/devices with the most similar peak, HBM capacity and bandwidth, by their ratios.

    Only devices that list all their figures and are not tied to one software stack are considered.
    """
    files = sorted((folder / "devices").glob("*.yaml"))
    paths = [path for path in files if not read_mapping(path).keys() & {"tile", PEAK}]
    devices = [_read_device(path, folder) for path in paths]

    def distance(device: Device) -> float:
        # Logarithms: twice a figure is as far away as half of it, and all figures have equal weight.
        return sum(abs(log(getattr(figures, name) / getattr(device, name))) for name in FIGURES)

    return min((device for device in devices if device.stack is None), key=distance)


def system_of_device(device: str, folder: Path = FOLDER) -> str | None:
    """System in config/systems with a device of this name, in any usual spelling; None if there is none."""
    return _systems_of_devices(folder).get(_spelt(device))


def _spelt(device: str) -> str:
    """Normalised name of a device: `H100-SXM` and `H100 (sglang)` become `h100-sxm` and `h100`."""
    return device.split("(", maxsplit=1)[0].strip().lower().replace("_", "-").replace(" ", "-")


@cache
def _systems_of_devices(folder: Path) -> dict[str, str]:
    """System for each device name: the one with the shortest name, first of those named after the device."""
    systems: dict[str, str] = {}
    for path in sorted((folder / "systems").glob("*.yaml"), key=lambda file: (-len(file.stem), file.stem)):
        try:
            _, device = load_cluster(path.stem, folder)
        except PhazeError:  # tiles have no device
            continue
        for name in map(_spelt, (device.name, *device.known_as)):
            # Later systems have shorter names. `paper` has TPU v4 too, whose system is `tpu-v4`.
            if name not in systems or name.startswith(path.stem) >= name.startswith(systems[name]):
                systems[name] = path.stem
    return systems


def _file_of(system: Path, noun: str, name: str, folder: Path) -> Path:
    """File to which a system's file refers: by name in the configuration, or relative to the file."""
    if is_path(name):
        return within(system.parent, system.parent / name)
    return named_file(noun, name, folder / f"{noun}s")


def chip_path(name: str, folder: Path = FOLDER) -> Path:
    """Path of an architecture or device, by name or by path."""
    return named_path("architecture", name, folder / "architectures", folder / "devices")


def load_device_as_architecture(name: str, folder: Path = FOLDER) -> Device | None:
    """Load the device to which an architecture's name or path refers; None if it refers to no device."""
    path = chip_path(name, folder)
    device_keys = read_mapping(path).keys() & {"clock_hz", "tile", PEAK}
    return _read_device(path, folder) if device_keys else None
