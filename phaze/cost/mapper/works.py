"""Distinct units of work of one core type and their parts, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, cast

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints, Names
from phaze.cost.network.network import Kind
from phaze.cost.vector import cycles_per_element
from phaze.layout import Axis
from phaze.workload.kinds import COLLECTIVES, PRODUCTS

if TYPE_CHECKING:
    import pandas as pd

SHAPE = ["batch", "m", "k", "n"]


@dataclass(frozen=True)
class Works:
    """Units of work (W,) of one core type, and their parts (P,) in order."""

    ids: Ints
    of_part: Ints
    """Index of the work of every part, ascending."""
    shapes: Ints
    """Matrix multiplications (P, 4: batch, m, k, n); zeros for other parts."""
    elements: Floats
    cycles: Floats
    """Vector cycles per element."""
    streamed_bytes: Floats
    network_bytes: Floats
    unrolled: Floats
    """Input elements of a matrix multiplication that are unrolled on chip (im2col) instead of read."""
    kinds: Names
    """Kind of every part: a product, a collective, or a vector operation."""
    axes: Names | None = None
    """Axis whose group runs each collective; none means tp."""
    by_rows: Bools | None = None
    """True for matrix multiplications that sum over the rows of both operands, as weight gradients do over
    tokens.

    None means none of the parts.
    """

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def matmuls(self) -> Ints:
        """Indices of the parts that are matrix multiplications."""
        return np.flatnonzero(self.shapes[:, 0])

    def collectives(self) -> Iterator[tuple[Kind, Axis, Bools]]:
        """Kinds of collectives and their axes, each with the mask of their parts, (P,)."""
        axes = np.full(len(self.kinds), "") if self.axes is None else self.axes
        axes = np.where(axes == "", "tp", axes)
        for kind, axis in product(COLLECTIVES, np.unique(axes)):
            chosen: Bools = (self.kinds == kind) & (axes == axis)
            if chosen.any():
                yield cast(Kind, kind), cast(Axis, str(axis)), chosen

    def total(self, values: Floats, parts: Ints | None = None) -> Floats:
        """Sum values over the parts of each unit of work, (P, ...) to (W, ...); `parts` selects a subset."""
        of_part = self.of_part if parts is None else self.of_part[parts]
        sums = np.zeros((len(self), *values.shape[1:]))
        if len(of_part):
            # reduceat sums from one start to the next; works without parts have no start and keep 0.
            starts = np.flatnonzero(np.diff(of_part, prepend=-1))
            sums[of_part[starts]] = np.add.reduceat(values, starts, axis=0)
        return sums


def works_of(parts: pd.DataFrame, core: str, figures: Mapping[tuple[str, str], float]) -> Works:
    """Units of work of a core type in table `parts`; `figures` maps (role, kind) to vector cycles."""
    of_core = parts[parts["core"] == core].sort_values(["work", "part"], ignore_index=True)
    ids, of_part = np.unique(of_core["work"].to_numpy(np.int64), return_inverse=True)
    shapes = of_core[SHAPE].to_numpy(np.int64)
    return Works(
        ids=ids,
        of_part=of_part.ravel(),
        shapes=np.where(of_core["kind"].isin(PRODUCTS).to_numpy()[:, None], shapes, 0),
        elements=of_core["elements"].to_numpy(float),
        cycles=cycles_per_element(of_core, figures),
        streamed_bytes=of_core["streamed_bytes"].to_numpy(float),
        network_bytes=of_core["network_bytes"].to_numpy(float),
        unrolled=of_core["unrolled"].to_numpy(float),
        kinds=of_core["kind"].to_numpy(str),
        axes=of_core["axis"].to_numpy(str),
    )
