"""Families of layouts that differ only in recompute, with a common bound until a family is expanded.

A family has all layouts that differ only in recompute. Its bound holds for every recompute option, so a
family whose bound is not below the best plan is excluded with all of its layouts. The other families are
expanded: options that another option of the same shard dominates are dropped (`ShardCosts.dominated`), and
each remaining option gets its own bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import compress
from math import inf
from typing import NamedTuple, Self

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.layout import Layout
from phaze.plan.bounds.layouts import LayoutBounds, bound_layouts, bounds_by
from phaze.plan.bounds.shards import Common, ShardCosts
from phaze.plan.question import PlanQuestion
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.space import Space


class UnfitLayout(NamedTuple):
    """Layout that does not fit, with a lower bound on its memory shortfall in bytes."""

    layout: Layout
    schedule: str
    lacking_bytes: float


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
    layout_bounds: LayoutBounds
    """Lower bounds of each layout in `grid`."""
    dominated: int = 0
    """Number of dominated layouts in expanded families."""
    unfit: int = 0
    """Number of layouts in expanded families that do not fit."""
    _closest: dict[bool, UnfitLayout] = field(default_factory=dict)
    """Layout with the smallest memory shortfall in expanded families, with one (False) or several chunks."""

    @classmethod
    def of(cls, question: PlanQuestion, space: Space, least_s: Floats | None = None) -> Self:
        """Build the families of a layout space; equivalent recompute options are dropped.

        `least_s` are lower bounds on their step times that are already known, (F,).
        """
        repeats = question.repeats(space.families.recomputes)
        options = space.options & ~repeats
        nonempty: Bools = np.asarray(options.any(axis=1))
        distinct = ~repeats | repeats.all()
        recomputes = tuple(compress(space.families.recomputes, distinct))
        # A space that several searches share is not copied.
        families = space.families if nonempty.all() else space.families.take(nonempty)
        every = replace(families, recomputes=recomputes)
        bounds = LayoutBounds(*np.zeros((2, len(every))))
        if least_s is not None:
            bounds.time_s[:] = least_s[nonempty]
        bounded, sharpened, opened = np.zeros((3, len(every)), np.bool_)
        family = np.zeros(0, np.int64)
        grid = every.take(family)
        masks = options[nonempty][:, distinct], bounds, bounded, sharpened, opened
        return cls(question, space, every, *masks, grid, family, bound_layouts(question, grid))

    def closed(self, target_s: float) -> Ints:
        """Unexpanded families that may fit and may beat `target_s`, by increasing bound."""
        return self.bounds.in_order(~self.opened & (self.bounds.time_s < target_s))

    def bound(self, target_s: float) -> None:
        """Compute a first bound for every unexpanded family that may beat `target_s`."""
        self.sharpen(self.closed(target_s), "tokens")

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
        shard_costs = ShardCosts.of(self.question, few)
        # An option is left out if another one of the family is as good in every figure of the same shards.
        better = shard_costs.dominated(few.recomputes)[shard_costs.where] & options[:, None]
        best = options & ~better.any(axis=2)
        place = np.nonzero(best)[0]
        rows = few.recomputing(best)
        bounds = bounds_by(self.question, rows, shard_costs, place)
        # A family's bound holds for its layouts, so that no bound falls when the family is expanded.
        np.maximum(bounds.time_s, self.bounds.time_s[which[place]], out=bounds.time_s)
        self._note_closest(rows, bounds)
        fits = bounds.fits
        least_s = np.full(len(which), inf)
        np.minimum.at(least_s, place[fits], bounds.time_s[fits])
        self.bounds.time_s[which] = np.maximum(self.bounds.time_s[which], least_s)
        # The families are expanded last: until then their common bounds count, also for other threads.
        self.grid = self.grid.joined(rows.take(fits))
        self.family = np.concatenate([self.family, which[place[fits]]])
        self.layout_bounds = self.layout_bounds.joined(bounds.take(fits))
        self.dominated += int((options & ~best).sum())
        self.unfit += int((~fits).sum())
        self.opened[which] = True

    def _note_closest(self, rows: LayoutGrid, bounds: LayoutBounds) -> None:
        for several in (False, True):
            unfit = np.flatnonzero(~bounds.fits & ((rows.vp > 1) == several))
            if len(unfit):
                place = int(unfit[np.argmin(bounds.lacking_bytes[unfit])])
                lacking_bytes = float(bounds.lacking_bytes[place])
                if several not in self._closest or lacking_bytes < self._closest[several].lacking_bytes:
                    layout = rows.layout(place), rows.schedule_of(place)
                    self._closest[several] = UnfitLayout(*layout, lacking_bytes)

    def closest(self) -> UnfitLayout | None:
        """Layout with the smallest bound on its memory shortfall if none fits; None if there are no layouts.

        Interleaved layouts need at least as much memory, and their bounds are looser. They count only if
        there are no others.
        """
        for several in (False, True):
            same_chunks = (self.every.vp > 1) == several
            candidates = np.flatnonzero(same_chunks & ~self.opened & ~self.bounds.fits)
            self.sharpen(candidates, "microbatch")
            order = np.argsort(self.bounds.lacking_bytes[candidates], kind="stable")
            for family in candidates[order].tolist():
                # Bounds of families are lower bounds: no later family can come closer than this one.
                closest = self._closest.get(several)
                if closest is not None and self.bounds.lacking_bytes[family] >= closest.lacking_bytes:
                    break
                self.open(np.array([family]))
            if several in self._closest:
                return self._closest[several]
        return None

    @property
    def closed_s(self) -> float:
        """Smallest time bound of unexpanded families that may fit; infinite if all are expanded."""
        fitting = ~self.opened & self.bounds.fits
        return float(self.bounds.time_s[fitting].min(initial=inf))

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
        unfit = ~self.opened & ~self.bounds.fits
        least_bytes = min((layout.lacking_bytes for layout in self._closest.values()), default=inf)
        return min(least_bytes, float(self.bounds.lacking_bytes[unfit].min(initial=inf)))
