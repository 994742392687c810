"""Constants of a system that runs can determine, with ranges from physics and published systems.

There are few, so that a handful of runs determines them: sustained clock and HBM bandwidth of devices on long
jobs, kernel launch overhead, HBM traffic of elementwise kernels, time of the kernels that route tokens to
experts, and for every network level the fraction of the bandwidth that collectives reach and their start-up
time. The memory of runs determines the buffers of their framework (`RESERVED`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from phaze.plan.machines import machine_of
from phaze.plan.plan import Machine
from phaze.plan.pricing.runs import Run
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.noun import Noun
from phaze.spec.system import Cluster, Device, Level, Stack
from phaze.spec.systems import load_cluster, load_stack_of, with_numbers


@dataclass(frozen=True)
class Constant:
    """Constant of a device, software stack or network level, with its range."""

    part: str
    """Part of the system: `device`, `stack`, or for example `levels.0` for the innermost level."""
    key: str
    low: float
    high: float

    @property
    def name(self) -> str:
        """Part and key joined by a dot, such as stack.launch_s."""
        return f"{self.part}.{self.key}"

    def usual(self, folder: Path = FOLDER) -> tuple[float, float] | None:
        """Smallest and largest value in the device files of the configuration that state the constant.

        None for constants of stacks and network levels, which too few files state or which depend on links.
        """
        files = sorted((folder / "devices").glob("*.yaml")) if self.part == "device" else []
        stated = [value for file in files if isinstance(value := read_mapping(file).get(self.key), float)]
        return (min(stated), max(stated)) if stated else None


OF_DEVICE = (
    Constant("device", "sustained_clock", 0.4, 1.0),  # base clocks under a power cap; boost
    Constant("device", "sustained_hbm", 0.3, 1.0),
)
ROUTING = Constant("stack", "permuted", 0.5, 8.0)  # fused kernels; index operations in PyTorch
OF_STACK = (
    Constant("stack", "launch_s", 1e-6, 2e-4),  # CUDA graphs; busy Python hosts
    Constant("stack", "elementwise", 0.8, 6.0),  # fused beyond what is assumed; unfused in single precision
    ROUTING,
)
RESERVED = Constant("stack", "reserved_gib", 0.01, 32.0)  # from none to half of a small device
OF_LEVEL = (
    Constant("levels.{}", "sustained", 0.05, 1.0),
    Constant("levels.{}", "start_s", 1e-7, 5e-3),  # a message inside a node; a collective of thousands
)


def value_at(noun: Noun, key: str) -> float:
    """Value of a numeric constant; dots in the key lead to nested values. KeyError without such a number."""
    value: object = noun.model_dump()
    for name in key.split("."):
        value = value[name] if isinstance(value, dict) else None
    if not isinstance(value, float | int):
        raise KeyError(key)
    return float(value)


def with_values_at(fields: Mapping[str, object], values: Mapping[str, float]) -> dict[str, object]:
    """Top-level fields of a noun that change with constants at keys, whose dots lead to nested values."""
    changed: dict[str, object] = {}
    for key, number in values.items():
        name, _, nested = key.partition(".")
        field = changed.get(name, fields[name])
        if nested:
            if not isinstance(field, Mapping):
                raise KeyError(key)
            field = {**field, **with_values_at(field, {nested: number})}
        changed[name] = field if nested else number
    return changed


@dataclass(frozen=True)
class Site:
    """System on which runs were measured: cluster, device and software stack."""

    cluster: Cluster
    device: Device
    stack: Stack
    folder: Path = FOLDER
    """Configuration folder."""

    @classmethod
    def load(cls, system: str, stack: str | None = None, folder: Path = FOLDER) -> Site:
        """Load a system by name or path, with its own or the given software stack."""
        cluster, device = load_cluster(system, folder)
        software = load_stack_of(cluster, folder, stack)
        # The file of a fitted system is written from its cluster, which must name this stack.
        chosen = cluster if stack is None else cluster.model_copy(update={"stack": stack})
        return cls(chosen, device, software, folder)

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Constants that runs on the system may determine; network constants exist for each level."""
        levels = range(len(self.cluster.levels))
        of_levels = (replace(c, part=c.part.format(level)) for level in levels for c in OF_LEVEL)
        return (*OF_DEVICE, *OF_STACK, *of_levels)

    def affects(self, constant: Constant, runs: Sequence[Run]) -> bool:
        """False if a constant cannot change any run: routing without experts, links that no run uses."""
        if constant == ROUTING:
            return any(run.model.experts is not None for run in runs)
        _, _, level = constant.part.partition("levels.")
        inner = self.cluster.levels[int(level) - 1].devices if level not in ("", "0") else 1
        return not level or any(run.gpus > inner for run in runs)

    def value(self, constant: Constant) -> float:
        """Value of a constant on this system."""
        parts: dict[str, Device | Stack | Level] = {"device": self.device, "stack": self.stack}
        parts |= {f"levels.{n}": level for n, level in enumerate(self.cluster.levels)}
        return value_at(parts[constant.part], constant.key)

    def with_values(self, values: Mapping[Constant, float]) -> Site:
        """Copy of the system with new values for some constants."""

        def values_of(part: str, noun: Noun) -> dict[str, object]:
            numbers = {c.key: value for c, value in values.items() if c.part == part}
            return with_values_at(noun.model_dump(), numbers) if numbers else {}

        levels = tuple(
            with_numbers(level, values_of(f"levels.{n}", level), f"levels.{n}")
            for n, level in enumerate(self.cluster.levels)
        )
        return Site(
            self.cluster.model_copy(update={"levels": levels}),
            with_numbers(self.device, values_of("device", self.device), "device"),
            with_numbers(self.stack, values_of("stack", self.stack), "stack"),
            self.folder,
        )

    @cached_property
    def machine(self) -> Machine:
        """Machine on which the runs are priced."""
        return machine_of(self.cluster, self.device, self.stack, self.folder)
