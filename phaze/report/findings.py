"""Findings of a report as tables: computed once, then shown as figures, page and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import pandas as pd

from phaze.report.document import Section
from phaze.report.inputs import Inputs
from phaze.report.winners import geometric_means

COPIED = (
    "fronts", "plans", "plan_stages", "simulations", "simulation_stages", "plan_maps", "times",
    "certificates", "audits",
)  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """Result tables of a study, by name as in `phaze.tables`; `COPIED` ones come from the inputs."""

    results: pd.DataFrame
    recommendations: pd.DataFrame
    gains: pd.DataFrame
    comparisons: pd.DataFrame
    memories: pd.DataFrame
    rankings: pd.DataFrame
    fronts: pd.DataFrame
    breakdowns: pd.DataFrame
    bindings: pd.DataFrame
    energies: pd.DataFrame
    areas: pd.DataFrame
    complexities: pd.DataFrame
    variations: pd.DataFrame
    plans: pd.DataFrame
    plan_stages: pd.DataFrame
    simulations: pd.DataFrame
    simulation_stages: pd.DataFrame
    plan_maps: pd.DataFrame
    walks: pd.DataFrame
    searches: pd.DataFrame
    times: pd.DataFrame
    proofs: pd.DataFrame
    certificates: pd.DataFrame
    audits: pd.DataFrame
    checks: pd.DataFrame

    @cached_property
    def means(self) -> pd.DataFrame:
        """Geometric mean of the planned speed-ups of each design, with the number of models."""
        return geometric_means(self.results)

    @cached_property
    def simulated_means(self) -> pd.Series:
        """Geometric mean of the simulated speed-ups of recommended plans, by design.

        Empty without simulations.
        """
        return geometric_means(self.recommendations).set_index("design")["speedup"]

    def in_order(self, models: tuple[str, ...]) -> Findings:
        """Copy in which the models of each table are in the order of the study, for display."""
        place = {model: number for number, model in enumerate(models)}
        shown = {
            name: frame.sort_values("model", key=lambda m: m.map(place), kind="stable", ignore_index=True)
            for name, frame in self.tables().items()
            if "model" in frame
        }
        return replace(self, **shown)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Result tables by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


Part = Callable[[Inputs, Findings], Iterator[Section]]
"""Function that yields report sections on some of the findings; nothing if there is nothing to show."""
RESULT_TABLES = tuple(field.name for field in fields(Findings) if field.name != "times")
"""Tables written by the report: all but the measured times, so that equal studies write equal tables."""
