"""The stages from estimate to place, one after the other in memory, for given architectures and without a screen.

For questions about few architectures: one asked on the command line, the walk down the areas, the candidates for a common
architecture, the winners under other bandwidths. A study of the whole space runs the same stages as jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from phaze import tables
from phaze.estimate import Hardware, estimate_operators
from phaze.extract import LayerTables, extract_graph, extract_layers
from phaze.place import Conditions, Expert, place_model
from phaze.schedule import SolutionStore, schedule_layers
from phaze.spec.architecture import Technology
from phaze.spec.model import Model
from phaze.spec.noun import Noun
from phaze.spec.settings import (
    EstimateSettings,
    ExtractSettings,
    ScheduleSettings,
    Training,
)
from phaze.spec.study import Triple
from phaze.spec.system import Scenario


class Problem(Noun):
    """A workload with everything that its evaluation on an architecture depends on."""

    sequence: int
    """Tokens in a sample."""
    flops_per_token: float
    """FLOPs that training needs for a token (PaLM, Appendix B)."""
    scenario: Scenario
    """Cluster and batch."""
    training: Training
    """How the model is trained."""
    technology: Technology
    """Energies and cycles."""
    extract: ExtractSettings = ExtractSettings()
    """Settings of extract."""
    estimate: EstimateSettings = EstimateSettings()
    """Settings of estimate."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Settings of schedule."""
    expert: Triple | None = None
    """A placement to evaluate on named architectures."""

    def hardware(self) -> Hardware:
        """Return what the estimates depend on."""
        return Hardware(
            clock_hz=self.scenario.clock_hz,
            hbm_bandwidth_bytes_per_s=self.scenario.hbm_bandwidth_bytes_per_s,
            network_bandwidth_bytes_per_s=self.scenario.network_bandwidth_bytes_per_s,
            bytes_per_element=self.extract.bytes_per_element,
        )

    def conditions(self) -> Conditions:
        """Return what the placements depend on."""
        return Conditions.of(
            self.scenario, self.training, sequence=self.sequence, flops_per_token=self.flops_per_token
        )


@dataclass(frozen=True)
class Evaluation:
    """Tables of a model on some architectures, over all its TMP widths and microbatches."""

    estimates: pd.DataFrame
    solves: pd.DataFrame
    schedules: pd.DataFrame
    placements: pd.DataFrame
    stages: pd.DataFrame


def extract_points(
    model: Model, problem: Problem, widths: Iterable[int]
) -> tuple[list[LayerTables], pd.DataFrame]:
    """Return the tables of a model for every TMP width and microbatch, and its layer graph."""
    points = [
        extract_layers(model, problem.sequence, t, b, problem.extract)
        for t in widths
        for b in problem.training.microbatches
    ]
    return points, extract_graph(model)


def evaluate(
    points: Iterable[LayerTables],
    graph: pd.DataFrame,
    architectures: pd.DataFrame,
    problem: Problem,
    solutions: Path | None = None,
) -> Evaluation:
    """Return estimates, schedules and placements of a model on all given architectures.

    `solutions` is a folder of verified solutions; without one nothing is remembered.
    """
    parts = list(_evaluate_points(points, graph, architectures, problem, SolutionStore(solutions)))
    columns = zip(*parts, strict=True) if parts else iter([])
    frames = [pd.concat(frames, ignore_index=True) for frames in columns]
    return Evaluation(*(frames or [t.empty() for t in _TABLES]))


_TABLES = (tables.Estimates, tables.Solves, tables.Schedules, tables.Placements, tables.Stages)


def _evaluate_points(
    points: Iterable[LayerTables],
    graph: pd.DataFrame,
    architectures: pd.DataFrame,
    problem: Problem,
    store: SolutionStore,
) -> Iterator[tuple[pd.DataFrame, ...]]:
    """Yield the tables of each TMP width and microbatch."""
    expert = Expert(**problem.expert.model_dump()) if problem.expert else None
    for point in points:
        tensor = int(point.layers["tensor"].iloc[0])
        estimates = estimate_operators(
            point.parts,
            architectures,
            problem.hardware(),
            problem.technology,
            tensor,
            problem.estimate.vector_cycles,
        )
        everything = keep_all(point.layers, architectures)
        solves, schedules = schedule_layers(
            point.operators, point.edges, estimates, architectures, everything, problem.schedule, store
        )
        placements, stages = place_model(
            point.layers, graph, solves, architectures, everything, problem.conditions(), expert
        )
        yield estimates, solves, schedules, placements, stages


def keep_all(layers: pd.DataFrame, architectures: pd.DataFrame) -> pd.DataFrame:
    """Return table screens as it is where nothing is screened: every architecture is kept."""
    point = layers.iloc[0][["model", "tensor", "microbatch"]].to_dict()
    rows = pd.DataFrame({"architecture": architectures["architecture"], **point})
    return rows.assign(hbm_gib=0.0, recompute=False, lower_s=0.0, feasible_s=np.inf, kept=True)


def best_throughputs(placements: pd.DataFrame, architectures: pd.DataFrame) -> pd.DataFrame:
    """Return samples_per_s and the smallest hbm_gib of the best placement, by architecture; 0 without one."""
    searched = placements[(placements["planner"] == "phaze") & (placements["status"] == "placed")]
    ordered = searched.sort_values(["time_per_batch_s", "hbm_gib"], kind="stable")
    best = ordered.drop_duplicates("architecture").set_index("architecture")[["samples_per_s", "hbm_gib"]]
    return best.reindex(architectures["architecture"]).fillna(0.0)
