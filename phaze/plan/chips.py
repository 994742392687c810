"""Load the chips among which a plan chooses: one, several by name, or a grid with an area limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.base.extras import needs
from phaze.base.units import UM2_PER_MM2
from phaze.spec.architecture import Architecture, ArchitectureSpace, load_technology
from phaze.spec.config import architecture_names, load_architecture, space_of
from phaze.spec.files import FOLDER
from phaze.spec.system import Cluster, Device, completed
from phaze.spec.systems import STACKS, load_cluster, load_stack
from phaze.spec.training_plan import StoredMachine

Chips = tuple[Architecture, ...]
LABEL = "plan: --architecture"
"""Start of error messages."""
FEWEST = 2
"""Minimum number of chips of a space."""


def load_chips(architecture: str, system: str, folder: Path = FOLDER) -> tuple[StoredMachine, Chips | None]:
    """Machine of a system with chips of an architecture, and the chips to choose from; None for one.

    `architecture` is a name, several names separated by commas, or the file of an architecture or of an
    `ArchitectureSpace`. Clock and HBM that a chip leaves open are those of the system's device. PhazeError
    for unknown names, namesakes, and a grid without a chip within its area limit.
    """
    names = architecture_names(architecture, LABEL)
    space = space_of(names[0]) if len(names) == 1 else ArchitectureSpace.parse({"named": names}, LABEL)
    machine = chip_machine(*load_cluster(system, folder), folder)
    if space is None:
        chip = load_architecture(architecture, folder)
        return machine.on_architecture(chip, machine.stack), None
    needs("pandas")
    chips = tuple(completed(chip, machine.device) for chip in architectures_of(space, folder))
    if len(chips) < FEWEST:
        raise PhazeError(
            f"{LABEL} {architecture}: must have at least {FEWEST} chips, got {len(chips)}",
            "raise area_limit_mm2, or pass the name of a single architecture",
        )
    if repeated := sorted(name for name, count in Counter(chip.name for chip in chips).items() if count > 1):
        raise PhazeError(
            f"{LABEL} {architecture}: names must be distinct, {', '.join(repeated)} occurs twice"
        )
    return machine.on_architecture(chips[0], machine.stack), chips


def chip_machine(cluster: Cluster, device: Device, folder: Path = FOLDER) -> StoredMachine:
    """Machine of a cluster whose chips take what they leave open from a device, under the stack of chips."""
    return StoredMachine(cluster=cluster, device=device, stack=load_stack(STACKS["chip"], folder))


def designs_within_area(
    space: ArchitectureSpace,
    cluster: Cluster,
    device: Device,
    hbm_gib: Sequence[float] = (),
    folder: Path = FOLDER,
) -> Chips:
    """Designs of a grid within its area limit, each with all HBM capacities; default: that of the device.

    The interfaces to HBM and to the links of the innermost network level are part of their area.
    """
    interfaces = {
        "hbm_bandwidth_bytes_per_s": device.hbm_bandwidth_bytes_per_s,
        "link_bandwidth_bytes_per_s": cluster.levels[0].bandwidth_bytes_per_s,
    }
    designs = (
        architectures_of(space, folder, {**interfaces, "hbm_gib": capacity})
        for capacity in hbm_gib or (device.hbm_gib,)
    )
    return tuple(completed(chip, device) for chip in chain.from_iterable(designs))


def architectures_of(
    space: ArchitectureSpace, folder: Path = FOLDER, shared: Mapping[str, float] | None = None
) -> list[Architecture]:
    """Named architectures of a space, then those of its grid, each with its area.

    Those of the grid have the fields `shared`, such as hbm_gib, in their area too.
    """
    # Imported for several chips only: a plan of one reads no tables, and loads no pandas.
    from phaze.cost.space import area_limit_um2, area_um2, as_architectures, enumerate_grid

    technology = load_technology(space.technology, folder)
    named = [load_architecture(name, folder) for name in space.named]
    chips = [
        chip.model_copy(update={"area_mm2": area_um2(chip, technology.area_um2) / UM2_PER_MM2})
        for chip in named
    ]
    if space.grid is None:
        return chips
    limit = space.area_limit_mm2
    area = load_architecture(limit, folder).model_dump() if isinstance(limit, str) else limit
    limit_um2 = area_limit_um2(area, technology)
    grid = enumerate_grid(space.grid, technology.area_um2, limit_um2, "grid", shared=shared or {})
    return chips + as_architectures(grid, shared or {})
