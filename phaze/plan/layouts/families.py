"""Families of layouts, each bounded as one until it is opened into its recompute options.

A family has all layouts that differ in recomputation alone. Its bound holds whatever is recomputed, so that a
family whose bound is not below the best plan is excluded with all of its layouts. The others are opened: of
their options those are listed that no other one dominates in the family's slice (`Slices.dominated`), each
with a bound of its own.
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
"""A layout that does not fit, its schedule, and the bytes that its rank with peak memory lacks at least."""


@dataclass(eq=False)
class LayoutFamilies:
    """Families of a question, and the layouts of those that are open by now."""

    question: PlanQuestion
    every: LayoutGrid
    """A layout of each family, (F,)."""
    options: Bools
    """Recompute options of each, (F, options)."""
    bounds: LayoutBounds
    """Of every family; of an open one the least of its layouts'."""
    opened: Bools
    """Families that are open, (F,)."""
    grid: LayoutGrid
    """Layouts of open families that may fit, none of them dominated, (N,)."""
    family: Ints
    """Family of each, (N,)."""
    own: LayoutBounds
    """Bounds of each."""
    dominated: int = 0
    """Layouts of open families that another one dominates."""
    unfit: int = 0
    """Layouts of open families that have not enough memory."""
    _closest: list[Closest] = field(default_factory=list)
    """Of these the ones that lack the least, of each opening and with one chunk and with several."""

    @classmethod
    def of(cls, question: PlanQuestion, space: Space) -> Self:
        """Families of a space with a first bound; options that do the same as others are left out."""
        repeats = question.repeats(space.families.recomputes)
        options = space.options & ~repeats
        some: Bools = np.asarray(options.any(axis=1))
        kept = ~repeats | repeats.all()
        words = tuple(word for word, one in zip(space.families.recomputes, kept, strict=True) if one)
        every = replace(space.families.take(some), recomputes=words)
        none = every.take(np.zeros(0, np.int64))
        return cls(
            question,
            every,
            options[some][:, kept],
            bound_layouts(question, every, "tokens"),
            np.zeros(len(every), np.bool_),
            none,
            np.zeros(0, np.int64),
            bound_layouts(question, none),
        )

    def closed(self, enough_s: float) -> Ints:
        """Families that are not open, may fit and may take less, those with the least bound first."""
        return self.bounds.in_order(~self.opened & (self.bounds.time_s < enough_s))

    def sharpen(self, which: Ints, common: Common) -> None:
        """Raise the bounds of some families."""
        self.bounds.sharpen(which, bound_layouts(self.question, self.every.take(which), common))

    def open(self, which: Ints) -> None:
        """List the layouts of families that are not open yet, with bounds of their own."""
        which = which[~self.opened[which]]
        if not len(which):
            return
        few, options = self.every.take(which), self.options[which]
        slices = Slices.of(self.question, few)
        better = slices.dominated(few.recomputes)[slices.where] & options[:, None]
        kept = options & ~better.any(axis=2)
        self.dominated += int((options & ~kept).sum())
        place = np.nonzero(kept)[0]
        rows = few.recomputing(kept)
        found = bounds_by(self.question, rows, slices, place)
        self._note_closest(rows, found)
        fits, self.unfit = found.fits, self.unfit + int((~found.fits).sum())
        least_s = np.full(len(which), inf)
        np.minimum.at(least_s, place[fits], found.time_s[fits])
        self.bounds.time_s[which] = np.maximum(self.bounds.time_s[which], least_s)
        self.opened[which] = True
        self.grid = self.grid.joined(rows.take(fits))
        self.family = np.concatenate([self.family, which[place[fits]]])
        self.own = self.own.joined(found.take(fits))

    def _note_closest(self, rows: LayoutGrid, found: LayoutBounds) -> None:
        for several in (False, True):
            some = np.flatnonzero(~found.fits & ((rows.vp > 1) == several))
            if len(some):
                place = int(some[np.argmin(found.lacking_bytes[some])])
                lacking_bytes = float(found.lacking_bytes[place])
                self._closest.append((rows.layout(place), rows.schedule_of(place), lacking_bytes))

    def closest(self) -> Closest | None:
        """Layout that lacks the least memory by its bound where none fits; None without any layout.

        Interleaved stages need no less than others, and their bounds are looser: they count only where there
        are no others.
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
        """The least bound of families that may fit and are not open; infinite where all are."""
        left = ~self.opened & self.bounds.fits
        return float(self.bounds.time_s[left].min(initial=inf))

    @property
    def unknown(self) -> int:
        """Layouts of families that may fit and are not open."""
        return int(self.options[~self.opened & self.bounds.fits].sum())

    @property
    def all_unfit(self) -> int:
        """Layouts that have not enough memory."""
        return self.unfit + int(self.options[~self.opened & ~self.bounds.fits].sum())

    @property
    def lacking_bytes(self) -> float:
        """The least of what layouts lack that have not enough memory; infinite where all have."""
        left = ~self.opened & ~self.bounds.fits
        known = min((one[2] for one in self._closest), default=inf)
        return min(known, float(self.bounds.lacking_bytes[left].min(initial=inf)))
