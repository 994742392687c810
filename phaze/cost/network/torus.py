"""Tori and meshes of devices in any number of dimensions, with routes along one dimension after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import walk
from phaze.cost.network.topology import Link, Topology

Place = tuple[int, ...]


def torus(
    shape: Sequence[int], bandwidth_bytes_per_s: float, latency_s: float = 0.0, *, wrap: bool = True
) -> Topology:
    """Return a torus, or without `wrap` a mesh; devices are numbered with the last dimension fastest."""
    if not shape or min(shape) < 1:
        raise PhazeError(f"torus: every dimension must have ≥ 1 devices, got {list(shape)}")
    box = tuple(shape)
    links = tuple(
        Link(source, target, bandwidth_bytes_per_s, latency_s)
        for source in range(prod(box))
        for target in _neighbours(box, source, wrap=wrap)
    )
    name = " × ".join(map(str, box)) + (" torus" if wrap else " mesh")
    return Topology(name, prod(box), prod(box), links, partial(_route, box, wrap))


def _neighbours(shape: Place, device: int, *, wrap: bool) -> list[int]:
    """Return the devices one hop away, each once."""
    place = _place(shape, device)
    found: dict[int, None] = {}
    for axis, step in itertools.product(range(len(shape)), (-1, 1)):
        at = place[axis] + step
        if wrap or 0 <= at < shape[axis]:
            found[_number(shape, _moved(place, axis, at % shape[axis]))] = None
    found.pop(device, None)
    return list(found)


def _route(shape: Place, wrap: bool, source: int, target: int) -> list[int]:
    """Return the devices on the way: the last dimension first (XY routing), the shorter way round."""
    place, end = _place(shape, source), _place(shape, target)
    path = [source]
    for axis in reversed(range(len(shape))):
        for at in walk(place[axis], end[axis], shape[axis], wrap):
            place = _moved(place, axis, at)
            path.append(_number(shape, place))
    return path


def _place(shape: Place, device: int) -> Place:
    return tuple(int(at) for at in np.unravel_index(device, shape))


def _number(shape: Place, place: Place) -> int:
    return int(np.ravel_multi_index(place, shape))


def _moved(place: Place, axis: int, at: int) -> Place:
    return (*place[:axis], at, *place[axis + 1 :])
