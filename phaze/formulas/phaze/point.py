"""Placement inputs: a model's layer chain under one layout, and the devices with their layer latencies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats, Ints
from phaze.cost.memory import ParameterBytes, parameter_bytes
from phaze.cost.utilisation import peak_flops_per_s
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze.chains import Runs, read_runs
from phaze.formulas.phaze.energy import LayerEnergy
from phaze.layout import Layout
from phaze.spec.architecture import EnergyFigures
from phaze.spec.counts import TokenFlops
from phaze.spec.settings import Training
from phaze.spec.system import Scenario
from phaze.tables.columns import ENERGIES, layout_of
from phaze.workload.workload import DIRECTIONS

Latencies = tuple[Floats, Floats]
"""Forward and backward latency of one layer of each kind."""


@dataclass(frozen=True)
class Conditions:
    """Training conditions of a model: scenario, training options, energy figures and FLOPs."""

    scenario: Scenario
    training: Training
    energy: EnergyFigures
    sequence: int
    """Tokens per sample."""
    flops_per_token: TokenFlops
    """Training FLOPs per token."""

    def of_chip(self, hbm_gib: float, hbm_bytes_per_s: float = 0.0) -> Conditions:
        """Conditions on an architecture with its own HBM, or with that of the study and system if it is 0."""
        training, scenario = self.training, self.scenario
        if hbm_gib:
            training = training.model_copy(update={"hbm_gib": (hbm_gib,)})
        if hbm_bytes_per_s:
            scenario = scenario.model_copy(update={"hbm_bandwidth_bytes_per_s": hbm_bytes_per_s})
        return replace(self, training=training, scenario=scenario)

    def settings(self, layout: Layout) -> list[Setting]:
        """Placement settings: for every recompute option all HBM sizes, the largest first."""
        settings = Setting.grid(self.scenario, self.training, layout)
        return sorted(settings, key=lambda setting: (setting.recompute, -setting.memory_bytes))


@dataclass(frozen=True)
class Point:
    """Model sharded for one layout, as a layer chain without latencies."""

    model: str
    layout: Layout
    kinds: tuple[str, ...]
    """Name of every kind of layer."""
    runs: Runs
    parameters: Floats
    """Number of parameters of one layer of each kind."""
    bytes_per_parameter: ParameterBytes

    @property
    def layers(self) -> list[str]:
        """Kind of every layer by name, in order."""
        return [self.kinds[kind] for kind in self.runs.layers]

    def repeated(self) -> tuple[int, int]:
        """First block and number of blocks of the longest periodic stretch of layer kinds.

        It has at least two periods, so alternating dense and expert blocks all count.
        """
        kinds, first, most = self.runs.layers, 0, 1
        for period in range(1, len(kinds) // 2 + 1):
            # Runs of layers that equal the one a period earlier; such a run and one period form a stretch.
            alike = np.concatenate(([False], kinds[period:] == kinds[:-period], [False]))
            begins, ends = np.flatnonzero(np.diff(alike)).reshape(-1, 2).T
            longest = int(np.argmax(ends - begins)) if len(begins) else 0
            # A second period at least, and longer than the longest stretch of a shorter period.
            if len(begins) and ends[longest] - begins[longest] >= max(period, most - period + 1):
                first, most = int(begins[longest]), int(ends[longest] - begins[longest]) + period
        return first, most


@dataclass(frozen=True)
class TimedChip:
    """Architecture with the latencies of all kinds of layers, as scheduled and as lower bounds."""

    name: str
    named: bool
    hbm_gib: float
    """Own HBM capacity; 0: every one that the study considers."""
    hbm_bytes_per_s: float
    """Own HBM bandwidth; 0: that of the system."""
    peak_flops_per_s: float
    """Peak rate of the tensor cores."""
    area_um2: float
    latencies: Latencies
    bounds: Latencies
    work: LayerEnergy


def read_point(layers: pd.DataFrame, graph: pd.DataFrame, conditions: Conditions) -> Point:
    """Read a model's layer chain for one layout."""
    per_parameter = parameter_bytes(conditions.training.optimizer, conditions.training.precision)
    runs, kinds = read_runs(layers, graph, per_parameter)
    return Point(
        model=str(layers["model"].iloc[0]),
        layout=layout_of(layers),
        kinds=tuple(kinds),
        runs=runs,
        parameters=layers.set_index("layer").loc[kinds, "parameters"].to_numpy(float),
        bytes_per_parameter=per_parameter,
    )


def read_devices(
    point: Point,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    screens: pd.DataFrame,
    conditions: Conditions,
) -> list[TimedChip]:
    """Architectures that the screening kept, sorted by name, with their layer latencies."""
    names = sorted(screens.loc[screens["kept"], "architecture"].unique())
    if not names:
        return []
    chips = architectures.set_index("architecture").loc[names]
    rows = _rows_of(point, solves, names)
    objectives, bounds = (solves[value].to_numpy(float)[rows] for value in ("objective_s", "bound_s"))
    parts = np.stack([solves[f"{part}_j"].to_numpy(float)[rows] for part in ENERGIES], axis=-1)
    return [
        TimedChip(
            name=name,
            named=bool(chips["named"].iloc[a]),
            hbm_gib=float(chips["hbm_gib"].iloc[a]),
            hbm_bytes_per_s=float(chips["hbm_bandwidth_bytes_per_s"].iloc[a]),
            peak_flops_per_s=peak_flops_per_s(
                int(chips["num_tc"].iloc[a]),
                int(chips["pe_x"].iloc[a]),
                int(chips["pe_y"].iloc[a]),
                float(chips["clock_hz"].iloc[a]) or conditions.scenario.clock_hz,
            ),
            area_um2=float(chips["area_um2"].iloc[a]),
            latencies=(objectives[a, 0], objectives[a, 1]),
            bounds=(bounds[a, 0], bounds[a, 1]),
            work=LayerEnergy(*parts[a]),
        )
        for a, name in enumerate(names)
    ]


def _rows_of(point: Point, solves: pd.DataFrame, names: list[str]) -> Ints:
    """Row number in table `solves` for each architecture, direction and kind of layer, (A, 2, kinds)."""
    keys = pd.MultiIndex.from_frame(solves[["architecture", "direction", "layer"]])
    expected = pd.MultiIndex.from_product([names, DIRECTIONS, point.kinds])
    rows = np.asarray(keys.get_indexer(expected), np.int64).reshape(len(names), len(DIRECTIONS), -1)
    missing = (rows < 0).any(axis=(1, 2))
    if missing.any():
        raise ValueError(f"table solves: a layer of {names[int(missing.argmax())]} has no schedule")
    return rows
