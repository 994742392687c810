"""Properties of a run that determine which measured runs are similar to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from phaze.layout import Layout, law_of_load
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.spec.model import Model
from phaze.spec.system import Calibration

KEYS = ("stack", "device", "parallelism", "experts", "precision", "features")
"""Properties of a run in addition to its utilisation; all but `features` determine how similar two runs are.
"""


@dataclass(frozen=True)
class RunKind:
    """Properties of a run that determine which runs are similar to it."""

    stack: str
    device: str
    parallelism: str
    experts: str
    """Routing of experts that are sharded across ranks: `natural`, `balanced`, or `no` such experts."""
    precision: str
    features: str = ""
    """Features that no distance expresses, joined by +; see `features_of`."""
    mfu: float = float("nan")
    """Predicted model FLOPs utilisation; nan if unknown."""
    devices: int = 0
    """Number of devices; 0 if unknown."""
    years: float = 0.0
    """Years between the run and the software that its stack describes; published runs count as inside."""
    calibrated: Calibration | None = None
    """Fit of system and stack to a user's own runs, if there is one."""

    @classmethod
    def of(
        cls, machine: Machine, layout: Layout, schedule: str, model: Model, mfu: float = float("nan")
    ) -> RunKind:
        """Properties of a run, given its machine, layout, schedule and model."""
        return cls(
            stack=machine.stack.name,
            device=device_of(machine).name,
            parallelism=parallelism_of(layout),
            experts=routing_of(layout),
            precision=layout.compute,
            features="+".join(sorted(features_of(layout, schedule, model))),
            mfu=mfu,
            devices=layout.devices,
            calibrated=machine.system.calibrated if machine.system else None,
        )

    @property
    def needed(self) -> tuple[str, ...]:
        """Features that some measured runs must have for this run to have an interval."""
        team = f"stack {team_of(self.stack)}"
        named = (team, f"device {_chip(self.device)}", f"precision {self.precision}")
        return (*named, *filter(None, self.features.split("+")))


PROPERTIES = tuple(field.name for field in fields(RunKind))
"""Columns of a table of runs that make up the kind of each run."""


def features_of(layout: Layout, schedule: str, model: Model) -> Iterator[str]:
    """Yield the features of a run that change its time, and that no distance to another run expresses."""
    offloaded, latent = layout.offloaded, model.latent
    present = {
        f"schedule {schedule}": layout.pp > 1,
        f"cp {layout.cp_kind.partition(':')[0].replace('+', ' and ')}": layout.cp > 1,
        f"ZeRO-{layout.zero}": layout.dp > 1,
        "HSDP": layout.sharers > layout.shards,
        "expert tensor parallelism": model.experts is not None and layout.etp > 1,
        "offloaded modules": bool(offloaded.modules),
        "offloaded layers": offloaded.layers > 0,
        "offloaded optimizer states": offloaded.optimizer,
        "LoRA": model.lora is not None,
        "latent attention": latent is not None,
        "attention to indexed tokens": latent is not None and latent.index is not None,
        "attention in windows": model.window is not None,
        "attention in chunks": model.chunk is not None,
        "Mamba": model.mamba is not None,
        "delta nets": model.delta is not None,
        "multi-token prediction": model.mtp > 0,
    }
    yield from (name for name, has in present.items() if has)


def team_of(stack: str) -> str:
    """Family of a stack, the first word of its name: stacks of one runtime, of different years."""
    return stack.split("-", 1)[0]


def routing_of(layout: Layout) -> str:
    """Routing of experts: `natural` by any law, `balanced` for a factor, `no` without expert parallelism."""
    if layout.ep == 1:
        return "no"
    return "natural" if law_of_load(layout.load)[0] else "balanced"


def _chip(device: str) -> str:
    """Name of a device's chip: devices with another memory size have the same one."""
    return re.sub(r"-\d+gb$", "", device)


def parallelism_of(layout: Layout) -> str:
    """Kinds of parallelism that a layout uses, such as tp+dp; fsdp is ZeRO 3, hsdp replicated shards."""
    widths = {"tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "dp": layout.dp}
    kinds = [name for name, width in widths.items() if width > 1]
    kinds += ["fsdp"] * (layout.zero == 3) + ["hsdp"] * (layout.sharers > layout.shards)
    return "+".join(kinds) or "one"
