"""Many layouts as arrays, one array per field, for vectorised rules, bounds and memory estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.layout import SHARED_OPTIONS, WIDTHS, CpKind, Layout, LayoutFields, Recompute

WORDS = {"schedule": "schedules", "recompute": "recomputes", "cp_kind": "cp_kinds"}
"""Grid fields that hold indices, with the field of the grid into which each of them indexes."""
ALIKE = (*SHARED_OPTIONS, "compute", "load")
"""Grid fields whose value is the same for all layouts."""
COLUMNS = (*WIDTHS, "microbatch", "zero", "sequence_parallel", *WORDS)
"""Fields of a grid that are arrays."""
FIXABLE = (*COLUMNS, *SHARED_OPTIONS)
"""Layout fields that a user can fix."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LayoutGrid(LayoutFields[Ints, Bools, Ints, Ints]):
    """Many layouts in mixed precision, with each field an array of shape (N,)."""

    schedule: Ints
    """Index into `schedules`; `recompute` and `cp_kind` are indices too."""
    schedules: tuple[str, ...]
    recomputes: tuple[Recompute, ...]
    cp_kinds: tuple[CpKind, ...]

    def __post_init__(self) -> None:
        """Raise TypeError if a column is omitted: the inherited default is a single value, not an array."""
        if missing := [name for name in COLUMNS if np.ndim(getattr(self, name)) != 1]:
            raise TypeError(f"grid of layouts: columns {', '.join(missing)} must be arrays")

    def __len__(self) -> int:
        """Number of layouts, N."""
        return len(self.tp)

    def under(self, *schedules: str) -> Bools:
        """Mask of the layouts whose schedule is one of `schedules`, (N,)."""
        return np.array([name in schedules for name in self.schedules])[self.schedule]

    def take(self, which: Bools | Ints) -> Self:
        """Select layouts by indices or by a mask."""
        return replace(self, **{name: getattr(self, name)[which] for name in COLUMNS})

    def joined(self, other: Self) -> Self:
        """Concatenate this grid and another one with the same named options."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS
        }
        return replace(self, **columns)

    def recomputing(self, chosen: Bools) -> Self:
        """Copy every layout once per recompute option chosen for it, in order; `chosen` is (N, options)."""
        places, recompute = np.nonzero(chosen)
        return replace(self.take(places), recompute=recompute)

    def schedule_of(self, place: int) -> str:
        """Schedule of the layout at an index."""
        return self.schedules[int(self.schedule[place])]

    def layout(self, place: int) -> Layout:
        """Layout at an index, without its schedule (see `schedule_of`)."""
        fields: dict[str, Any] = {name: getattr(self, name)[place].item() for name in COLUMNS}
        fields |= {name: getattr(self, words)[fields[name]] for name, words in WORDS.items()}
        del fields["schedule"]
        return Layout(**fields, **{name: getattr(self, name) for name in ALIKE})

    @classmethod
    def of(
        cls,
        layouts: Sequence[tuple[Layout, str]],
        schedules: tuple[str, ...],
        recomputes: tuple[Recompute, ...],
        cp_kinds: tuple[CpKind, ...],
    ) -> Self:
        """Build a grid from layouts with schedules; shared fields (`ALIKE`) come from the first layout."""
        rows = [{**vars(layout), "schedule": schedule} for layout, schedule in layouts]
        words = {"schedules": schedules, "recomputes": recomputes, "cp_kinds": cp_kinds}
        places = {name: {word: i for i, word in enumerate(words[options])} for name, options in WORDS.items()}
        columns: dict[str, Any] = {
            name: np.array([places[name][row[name]] if name in WORDS else row[name] for row in rows])
            for name in COLUMNS
        }
        return cls(**columns | words | {name: rows[0][name] for name in ALIKE})
