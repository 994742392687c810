"""Raise the bounds of undecided layouts with flows that all layouts of a pipeline shape share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phaze.plan.layouts.families import LayoutFamilies
from phaze.plan.layouts.pipeline_bounds import PipelineBounds
from phaze.plan.layouts.pipeline_shapes import PipelineShape
from phaze.plan.layouts.question import PlanQuestion

SEVERAL = 2
"""Minimum number of layouts per flow of a pipeline shape."""


@dataclass(eq=False)
class ShapeFlows:
    """Event-graph flows that bound all layouts of a pipeline shape at once, computed for selected layouts."""

    question: PlanQuestion
    families: LayoutFamilies
    work: int = 0
    """Count of linear programs solved, weighted by their relative duration."""
    _pipelines: PipelineBounds | None = None
    """Loads of the layouts that the flows bound; None before the first flow."""
    _flowed: dict[PipelineShape, list[int]] = field(default_factory=dict)
    """Layouts whose best flow was computed, by pipeline shape."""

    def begin_again(self) -> None:
        """Discard all flows, so that flows of other layouts can be computed."""
        self._pipelines, self._flowed = None, {}

    def bound_like(self, place: int, enough_s: float) -> bool:
        """Raise the bounds of all layouts of a pipeline shape with the best flow of one of them.

        Only bounds below `enough_s` count. False if the flow was already used, or too few layouts have the
        shape.
        """
        bounds = self.families.own
        if self._pipelines is None:
            some = np.flatnonzero(bounds.fits & (bounds.time_s < enough_s))
            self._pipelines = PipelineBounds.of(self.question, self.families.grid, some)
        found = self._pipelines
        alike = found.alike(place, bounds.time_s[found.places] < enough_s)
        if not len(alike) or not (shape := found.shapes[found.shape[alike[0]]]).has_flows:
            return False
        flowed = self._flowed.setdefault(shape, [])
        if place in flowed or len(alike) < SEVERAL * (1 + len(flowed)):
            return False
        flowed.append(place)
        self.work += shape.work
        flow = found.best(int(alike[0]))
        if flow is None:
            return False
        own = found.places[alike]
        bounds.time_s[own] = np.maximum(bounds.time_s[own], found.by_flow(flow, alike))
        return True
