"""Families of layouts that differ only in recompute, with a common bound until a family is expanded.

A family has all layouts that differ only in recompute. Its bound holds for every recompute option, so a
family whose bound is not below the best plan is excluded with all of its layouts. The other families are
expanded: options that another option of the same shard dominates are dropped (`Slices.dominated`), and each
remaining option gets its own bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Self

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.layout import Layout
from phaze.plan.layouts.bounds import LayoutBounds, bound_layouts, bounds_by
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.slices import Common, Slices
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.space import Space

Closest = tuple[Layout, str, float]
"""Layout that does not fit, its schedule, and a lower bound on its memory shortfall in bytes."""


@dataclass(eq=False)
class LayoutFamilies:
    """All families of a planning request with their bounds, and the layouts of families expanded so far."""

    question: PlanQuestion
    space: Space
    """Layouts that the runtime can run."""
    every: LayoutGrid
    """One representative layout per family, (F,)."""
    options: Bools
    """Mask of the recompute options of each family, (F, options)."""
    bounds: LayoutBounds
    """Lower bounds of the families; for an expanded family, the smallest bound of its layouts."""
    bounded: Bools
    """Mask of the families with a first bound, (F,)."""
    sharpened: Bools
    """Mask of the families with a second, tighter bound, (F,)."""
    opened: Bools
    """Mask of the expanded families, (F,)."""
    grid: LayoutGrid
    """Layouts of expanded families that may fit and are not dominated, (N,)."""
    family: Ints
    """Family index of each layout in `grid`, (N,)."""
    own: LayoutBounds
    """Lower bounds of each layout in `grid`."""
    dominated: int = 0
    """Number of dominated layouts in expanded families."""
    unfit: int = 0
    """Number of layouts in expanded families that do not fit."""
    _closest: list[Closest] = field(default_factory=list)
    """Layouts with the smallest memory shortfall of each batch expanded, with one and with several chunks."""

    @classmethod
    def of(cls, question: PlanQuestion, space: Space) -> Self:
        """Build the families of a layout space, not yet bounded; equivalent recompute options are dropped."""
        repeats = question.repeats(space.families.recomputes)
        options = space.options & ~repeats
        some: Bools = np.asarray(options.any(axis=1))
        kept = ~repeats | repeats.all()
        words = tuple(word for word, one in zip(space.families.recomputes, kept, strict=True) if one)
        every = replace(space.families.take(some), recomputes=words)
        none = every.take(np.zeros(0, np.int64))
        return cls(
            question,
            space,
            every,
            options[some][:, kept],
            LayoutBounds(np.zeros(len(every)), np.zeros(len(every))),
            np.zeros(len(every), np.bool_),
            np.zeros(len(every), np.bool_),
            np.zeros(len(every), np.bool_),
            none,
            np.zeros(0, np.int64),
            bound_layouts(question, none),
        )

    def closed(self, enough_s: float) -> Ints:
        """Unexpanded families that may fit and may beat `enough_s`, by increasing bound."""
        return self.bounds.in_order(~self.opened & (self.bounds.time_s < enough_s))

    def bound(self) -> None:
        """Compute a first bound for every family."""
        self.sharpen(np.arange(len(self.every)), "tokens")

    def sharpen(self, which: Ints, common: Common) -> None:
        """Raise the bounds of the given families, except those already raised."""
        which = which[~(self.sharpened if common == "microbatch" else self.bounded)[which]]
        self.bounds.sharpen(which, bound_layouts(self.question, self.every.take(which), common))
        self.bounded[which] = True
        self.sharpened[which] |= common == "microbatch"

    def open(self, which: Ints) -> None:
        """Expand families: add their layouts that may fit to `grid`, each with its own bound."""
        which = which[~self.opened[which]]
        if not len(which):
            return
        few, options = self.every.take(which), self.options[which]
        slices = Slices.of(self.question, few)
        better = slices.dominated(few.recomputes)[slices.where] & options[:, None]
        kept = options & ~better.any(axis=2)
        place = np.nonzero(kept)[0]
        rows = few.recomputing(kept)
        found = bounds_by(self.question, rows, slices, place)
        # A family's bound holds for its layouts, so that no bound falls when the family is expanded.
        np.maximum(found.time_s, self.bounds.time_s[which[place]], out=found.time_s)
        self._note_closest(rows, found)
        fits = found.fits
        least_s = np.full(len(which), inf)
        np.minimum.at(least_s, place[fits], found.time_s[fits])
        self.bounds.time_s[which] = np.maximum(self.bounds.time_s[which], least_s)
        # The families are expanded last: until then their common bounds count, also for other threads.
        self.grid = self.grid.joined(rows.take(fits))
        self.family = np.concatenate([self.family, which[place[fits]]])
        self.own = self.own.joined(found.take(fits))
        self.dominated += int((options & ~kept).sum())
        self.unfit += int((~fits).sum())
        self.opened[which] = True

    def _note_closest(self, rows: LayoutGrid, found: LayoutBounds) -> None:
        for several in (False, True):
            some = np.flatnonzero(~found.fits & ((rows.vp > 1) == several))
            if len(some):
                place = int(some[np.argmin(found.lacking_bytes[some])])
                lacking_bytes = float(found.lacking_bytes[place])
                self._closest.append((rows.layout(place), rows.schedule_of(place), lacking_bytes))

    def closest(self) -> Closest | None:
        """Layout with the smallest bound on its memory shortfall if none fits; None if there are no layouts.

        Interleaved layouts need at least as much memory, and their bounds are looser. They count only if
        there are no others.
        """
        for several in (False, True):
            own = (self.every.vp > 1) == several
            left = np.flatnonzero(own & ~self.opened & ~self.bounds.fits)
            self.sharpen(left, "microbatch")
            for family in left[np.argsort(self.bounds.lacking_bytes[left], kind="stable")].tolist():
                known = min((one[2] for one in self._closest if (one[0].vp > 1) == several), default=inf)
                if self.bounds.lacking_bytes[family] >= known:
                    break
                self.open(np.array([family]))
            found = [one for one in self._closest if (one[0].vp > 1) == several]
            if found:
                return min(found, key=lambda one: one[2])
        return None

    @property
    def closed_s(self) -> float:
        """Smallest time bound of unexpanded families that may fit; infinite if all are expanded."""
        left = ~self.opened & self.bounds.fits
        return float(self.bounds.time_s[left].min(initial=inf))

    @property
    def same(self) -> int:
        """Number of layouts that are equivalent to another one."""
        return int(self.space.options.sum()) - int(self.options.sum())

    @property
    def unknown(self) -> int:
        """Number of layouts in unexpanded families that may fit."""
        return int(self.options[~self.opened & self.bounds.fits].sum())

    @property
    def all_unfit(self) -> int:
        """Number of layouts that do not fit in memory."""
        return self.unfit + int(self.options[~self.opened & ~self.bounds.fits].sum())

    @property
    def lacking_bytes(self) -> float:
        """Smallest memory shortfall of any layout, in bytes; infinite if all fit."""
        left = ~self.opened & ~self.bounds.fits
        known = min((one[2] for one in self._closest), default=inf)
        return min(known, float(self.bounds.lacking_bytes[left].min(initial=inf)))
