"""Result of a search over layouts: plans, and a certificate of their optimality gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from phaze.layout import MODEL_WIDTHS, Layout
from phaze.plan.layouts.division_search import FoundDivision
from phaze.plan.layouts.divisions import DividedLayout
from phaze.spec.training_plan import PlanCertificate


@dataclass(frozen=True)
class PlannedLayout:
    """Layout with the best pipeline split found for it."""

    divided: DividedLayout
    found: FoundDivision
    twins: tuple[PlannedLayout, ...] = ()
    """Other layouts with nearly equal step time and peak memory."""

    @cached_property
    def peak_bytes(self) -> float:
        """Tensor bytes on the rank with peak memory."""
        return float(self.divided.timeline(self.found.division).peak_bytes.max())

    @property
    def layout(self) -> Layout:
        """Layout of the plan."""
        return self.divided.layout

    @property
    def schedule(self) -> str:
        """Name of the pipeline schedule."""
        return self.divided.schedule

    @property
    def kinds(self) -> int:
        """Number of kinds of parallelism other than data parallelism, plus one for recompute."""
        wide = [name for name in MODEL_WIDTHS if getattr(self.layout, name) > 1]
        return len(wide) + (self.layout.recompute != "none")


@dataclass(frozen=True)
class LayoutPlans:
    """Plans by increasing step time, with their certificate; no plans if nothing fits."""

    plans: tuple[PlannedLayout, ...]
    certificate: PlanCertificate
    closest: tuple[Layout, str, float] | None = None
    """If nothing fits: the closest layout, its schedule, and its memory shortfall in bytes."""
    stopped: str = ""
    """Reason why the search ended before its gap was closed; empty if it is closed."""
