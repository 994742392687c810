"""What a placement needs of the tables: the chain of a model in one layout, and the devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats, Ints
from phaze.cost.memory import ParameterBytes, parameter_bytes
from phaze.cost.utilisation import peak_flops_per_s
from phaze.layout import Layout
from phaze.pipeline.flushing import Setting
from phaze.plan.phaze.chains import Runs
from phaze.plan.phaze.energy import DYNAMIC, Work
from phaze.plan.plan import Traffic
from phaze.spec.architecture import EnergyFigures
from phaze.spec.settings import Training
from phaze.spec.system import Scenario
from phaze.tables.columns import layout_of

Latencies = tuple[Floats, Floats]
"""Forward and backward latency of one layer of each run."""


@dataclass(frozen=True)
class Conditions:
    """Where and how a model is trained."""

    scenario: Scenario
    training: Training
    energy: EnergyFigures
    sequence: int
    """Tokens in a sample."""
    flops_per_token: float
    """FLOPs that training the model needs for a token (PaLM, Appendix B)."""

    def settings(self, layout: Layout) -> list[Setting]:
        """Return what placements have to respect: for every recompute all HBM sizes, the largest first."""
        return [
            Setting.of(self.scenario, self.training, layout, hbm_gib, recompute=recompute)
            for recompute in self.training.recompute
            for hbm_gib in sorted(self.training.hbm_gib, reverse=True)
        ]


@dataclass(frozen=True)
class Point:
    """A model in one layout: its chain, without latencies."""

    model: str
    layout: Layout
    layers: tuple[str, ...]
    """Distinct layer of each run."""
    runs: Runs
    parameters: Floats
    """Of one layer of each run."""
    bytes_per_parameter: ParameterBytes

    def repeated(self) -> tuple[int, int]:
        """Return position of the first layer and length of the longest run."""
        longest = int(np.argmax(self.runs.counts))
        return sum(self.runs.counts[:longest]), self.runs.counts[longest]


@dataclass(frozen=True)
class Device:
    """An architecture with the latencies of every run's layer on it: as scheduled, and bounded from below."""

    name: str
    named: bool
    peak_flops_per_s: float
    """Of its tensor cores."""
    area_um2: float
    latencies: Latencies
    bounds: Latencies
    work: Work
    traffic: Traffic
    """Of one layer of each run."""


def read_point(layers: pd.DataFrame, graph: pd.DataFrame, conditions: Conditions) -> Point:
    """Return the chain of a model in one layout."""
    graph = graph.sort_values("position")
    rows = layers.set_index("layer").loc[graph["layer"]]
    each = parameter_bytes(conditions.training.optimizer, conditions.training.precision)
    parameters = rows["parameters"].to_numpy(float)
    return Point(
        model=str(rows["model"].iloc[0]),
        layout=layout_of(rows),
        layers=tuple(graph["layer"]),
        runs=Runs(
            counts=tuple(int(count) for count in graph["count"]),
            weight_bytes=each.weights * parameters,
            static_bytes=each.static * parameters,
            activation_bytes=rows["activation_bytes"].to_numpy(float),
            output_bytes=rows["output_bytes"].to_numpy(float),
            tensor_parallel=rows["tensor_parallel"].to_numpy(bool),
        ),
        parameters=parameters,
        bytes_per_parameter=each,
    )


def read_devices(
    point: Point,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    screens: pd.DataFrame,
    conditions: Conditions,
) -> list[Device]:
    """Return the architectures that the screen kept, by name, with their latencies."""
    kept = sorted(screens.loc[screens["kept"], "architecture"].unique())
    if not kept:
        return []
    chips = architectures.set_index("architecture").loc[kept]
    rows = _rows_of(point, solves, kept)
    objectives, bounds = (_latencies(solves, rows, value) for value in ("objective_s", "bound_s"))
    spent, moved = _works(solves, rows), _traffic(solves, rows)
    return [
        Device(
            name=name,
            named=bool(chips["named"].iloc[a]),
            peak_flops_per_s=peak_flops_per_s(
                int(chips["num_tc"].iloc[a]),
                int(chips["pe_x"].iloc[a]),
                int(chips["pe_y"].iloc[a]),
                conditions.scenario.clock_hz,
            ),
            area_um2=float(chips["area_um2"].iloc[a]),
            latencies=objectives[a],
            bounds=bounds[a],
            work=spent[a],
            traffic=moved[a],
        )
        for a, name in enumerate(kept)
    ]


def _works(solves: pd.DataFrame, rows: Ints) -> list[Work]:
    """Return the energy of every run's layer by part, for each of the architectures of the rows."""
    parts = np.stack([solves[f"{part}_j"].to_numpy(float)[rows] for part in DYNAMIC], axis=-1)
    return [Work(forward, backward) for forward, backward in parts]


def _traffic(solves: pd.DataFrame, rows: Ints) -> list[Traffic]:
    """Return the bytes that every run's layer moves, for each of the architectures of the rows."""
    hbm, reduced = (_latencies(solves, rows, value) for value in ("hbm_bytes", "reduced_bytes"))
    return [Traffic(*moved, *summed) for moved, summed in zip(hbm, reduced, strict=True)]


def _latencies(solves: pd.DataFrame, rows: Ints, value: str) -> list[Latencies]:
    """Return one value of every run's schedules, for each of the architectures of the rows."""
    return [(forward, backward) for forward, backward in solves[value].to_numpy(float)[rows]]


def _rows_of(point: Point, solves: pd.DataFrame, names: list[str]) -> Ints:
    """Return which row of table solves is about each architecture, direction and run, (A, 2, runs)."""
    found = np.full((len(names), 2, len(point.layers)), -1, dtype=np.int64)
    chips = pd.Index(names).get_indexer(pd.Index(solves["architecture"]))
    layer, direction = (solves[key].to_numpy(object) for key in ("layer", "direction"))
    for d, way in enumerate(("forward", "backward")):
        for name in set(point.layers):
            mine = np.flatnonzero((layer == name) & (direction == way) & (chips >= 0))
            runs = [r for r, one in enumerate(point.layers) if one == name]
            found[chips[mine][:, None], d, runs] = mine[:, None]
    missing = (found < 0).any(axis=(1, 2))
    if missing.any():
        raise ValueError(f"table solves: a layer of {names[int(missing.argmax())]} has no schedule")
    return found
