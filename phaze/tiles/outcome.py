"""What groups of tiles do, and what came out of it: the same for all fidelities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats
from phaze.tiles.chip import Chip
from phaze.tiles.mapping import Tiles
from phaze.tiles.steps import Step

Bound = Literal["compute", "sram", "dram", "links"]
"""What can bind a time; the way of an access through the network belongs to dram."""

Spent = Mapping[Bound, float]
"""Seconds that nothing else covers, by what took them; their sum is the time."""


@dataclass(frozen=True)
class Activity:
    """Steps of one group of tiles, all of which do the same."""

    tiles: Tiles
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Outcome:
    """Activities that started together."""

    finish_s: tuple[float, ...]
    """When every activity is over."""
    spent: tuple[Spent, ...]
    """What took the time of every activity."""
    busy_s: Floats
    """Seconds for which every resource of the network was held, (resources,)."""

    @property
    def time_s(self) -> float:
        """When all are over."""
        return max(self.finish_s, default=0.0)

    @property
    def bound_by(self) -> tuple[Bound, ...]:
        """What took most of the time of every activity; the first of several."""
        return tuple(max(spent, key=lambda bound: spent[bound]) for spent in self.spent)


@lru_cache(maxsize=64)
def port_resources(chip: Chip) -> NDArray[np.bool_]:
    """Return which resources of the network are ports of memories, (resources,), not to be changed."""
    found = np.zeros(chip.topology.resources, np.bool_)
    for link, resource in zip(chip.topology.links, chip.topology.resource_of, strict=True):
        found[resource] |= link.buffered
    found.setflags(write=False)
    return found
