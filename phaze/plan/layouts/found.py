"""Results of a search over layouts: plans, and the certificate of how far from the best they can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from phaze.layout import Layout
from phaze.plan.layouts.division_search import FoundDivision
from phaze.plan.layouts.divisions import DividedLayout
from phaze.spec.training_plan import UndecidedPlan


@dataclass(frozen=True)
class PlannedLayout:
    """A layout with the best division found of it."""

    divided: DividedLayout
    found: FoundDivision
    twins: tuple[PlannedLayout, ...] = ()
    """Other layouts with about its time and memory."""

    @cached_property
    def peak_bytes(self) -> float:
        """Bytes of tensors on the rank with peak memory."""
        return float(self.divided.timeline(self.found.division).peak_bytes.max())

    @property
    def layout(self) -> Layout:
        """Widths and what ranks keep."""
        return self.divided.layout

    @property
    def schedule(self) -> str:
        """Name of the schedule."""
        return self.divided.schedule

    @property
    def kinds(self) -> int:
        """Kinds of parallelism beside data parallelism, and recomputation."""
        layout = self.layout
        widths = (layout.tp, layout.cp, layout.ep, layout.etp, layout.pp, layout.vp)
        return sum(width > 1 for width in widths) + (layout.recompute != "none")


@dataclass(frozen=True)
class LayoutCertificate:
    """What became of all layouts, and what none of them can be faster than."""

    layouts: int
    illegal: Mapping[str, int]
    """By the first rule that a layout breaks."""
    same: int
    """Layouts that do the same as another one."""
    unfit: int
    """Layouts that have not enough memory however they are divided."""
    lacking_gib: float | None
    """Of these the least that is missing on the rank with peak memory, as a bound; where nothing fits, that
    of the layout that comes closest."""
    bounded: Mapping[str, int]
    """Layouts excluded by their bound, by what it is from."""
    simulated: int
    """Layouts of which divisions were simulated."""
    divisions: int
    """Divisions that were simulated."""
    bound_s: float
    """No layout, however divided, takes less."""
    gap: float
    """Share of the best plan's time that is not proven to be needed."""
    rows: int
    """First plans than which no other layout is faster by more than the gap of the search."""
    undecided: tuple[UndecidedPlan, ...] = ()
    """Layouts with the least bounds of those that may be faster by more than that, at most a few."""
    undecided_layouts: int = 0
    """Such layouts in all."""


@dataclass(frozen=True)
class LayoutPlans:
    """The best plan, the next ones by their time, and the certificate; no plan where nothing fits."""

    plans: tuple[PlannedLayout, ...]
    certificate: LayoutCertificate
    closest: tuple[Layout, str, float] | None = None
    """Where nothing fits: the layout, its schedule, and the bytes that its fullest rank lacks."""
