"""Results of a search over layouts: plans, and the certificate of how far from the best they can be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from phaze.layout import Layout
from phaze.plan.layouts.division_search import FoundDivision
from phaze.plan.layouts.divisions import DividedLayout
from phaze.spec.training_plan import PlanCertificate


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
class LayoutPlans:
    """The best plan, the next ones by their time, and the certificate; no plan where nothing fits."""

    plans: tuple[PlannedLayout, ...]
    certificate: PlanCertificate
    closest: tuple[Layout, str, float] | None = None
    """Where nothing fits: the layout, its schedule, and the bytes that its fullest rank lacks."""
