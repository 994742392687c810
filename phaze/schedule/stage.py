"""Scheduling stage: tables `solves` and `schedules` from operators, estimates and kept architectures."""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze import tables
from phaze.base.arrays import Ints
from phaze.base.progress import counted
from phaze.base.store import Store
from phaze.cost.designs import operator_latencies
from phaze.schedule.decomposition import LayerSolution, solve_layer
from phaze.schedule.graphs import CORES, NONE, Edges, ScheduledLayer
from phaze.solver import solver_versions
from phaze.spec.settings import ScheduleSettings
from phaze.tables.columns import ENERGIES, POINT

PASS = ["layer", "direction"]
"""Columns that identify the operator graph of one pass of a layer."""
KEY = [*POINT, "architecture", *PASS]
"""Columns that identify one pass of a layer on an architecture."""
_DESIGN = {"tensor": "tensor", "vector": "vector", "fused": "fused", "network": "vector"}
"""Core type whose design determines an operator's estimate; vector cores run a collective's reduction."""
_ON_ALL = {**{f"{part}_j": f"{part}_all_j" for part in ENERGIES}, "hbm_bytes": "hbm_all_bytes"}
"""Columns summed over a schedule: the estimate on one core, mapped to the estimate on all cores."""


@dataclass(frozen=True)
class Case:
    """One pass of a layer on one architecture, with the values of KEY."""

    key: tuple[object, ...]
    layer: ScheduledLayer
    operators: Ints
    """Operator numbers in the tables."""


def read_cases(
    operators: pd.DataFrame,
    edges: pd.DataFrame,
    estimates: pd.DataFrame,
    architectures: pd.DataFrame,
    *,
    overlap_communication: bool,
) -> Iterator[Case]:
    """Yield each pass of each layer on each architecture."""
    links = dict(list(edges.groupby([*POINT, *PASS])))
    counts = architectures[["num_tc", "num_vc"]].to_numpy(np.int64)
    for (*point, layer, direction), group in operators.groupby([*POINT, *PASS]):
        rows = group.sort_values("operator")
        numbers = rows["operator"].to_numpy(np.int64)
        core = tuple(str(kind) for kind in rows["core"])
        layer_edges = _edges(links.get((*point, layer, direction)), numbers)
        one_core_s, every = operator_latencies(rows, estimates, architectures)
        for a, name in enumerate(architectures["architecture"]):
            num_tc, num_vc = (int(count) for count in counts[a])
            single = ScheduledLayer(
                core, one_core_s[a], every[a], layer_edges, num_tc, num_vc, overlap_communication
            )
            yield Case((*point, name, layer, direction), single, numbers)


def _edges(links: pd.DataFrame | None, numbers: Ints) -> Edges:
    """Edges as pairs of positions; `numbers` are the operators' numbers by position."""
    if links is None:
        return ()
    place = {number: position for position, number in enumerate(numbers)}
    pairs = zip(links["source"], links["target"], strict=True)
    return tuple(sorted((place[source], place[target]) for source, target in pairs))


log = logging.getLogger(__name__)


def schedule_layers(
    operators: pd.DataFrame,
    edges: pd.DataFrame,
    estimates: pd.DataFrame,
    architectures: pd.DataFrame,
    screens: pd.DataFrame,
    settings: ScheduleSettings,
    store: Store,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables `solves` and `schedules` for each pass of each layer on the kept architectures.

    Only the columns architecture and kept of `screens` are read. Equal components are solved once.
    """
    log.info("solvers: %s", solver_versions(settings.solver) or "none is installed")
    names = screens.loc[screens["kept"], "architecture"].unique()
    chosen = architectures[architectures["architecture"].isin(names)]
    cases = list(
        read_cases(operators, edges, estimates, chosen, overlap_communication=settings.overlap_communication)
    )
    if not cases:
        return tables.Solves.empty(), tables.Schedules.empty()
    solutions: list[LayerSolution] = []
    cases_counted = counted(cases, "layer", lambda: _largest_gap(solutions))
    solutions.extend(solve_layer(case.layer, settings, store) for case in cases_counted)
    methods = Counter(part.method for solution in solutions for part in solution.parts)
    log.info(
        "%d layers of %d components: %s",
        len(cases),
        methods.total(),
        ", ".join(f"{count} by {name}" for name, count in sorted(methods.items())) or "nothing to choose",
    )
    rows = [
        _solve_row(case, solution, settings.formulation)
        for case, solution in zip(cases, solutions, strict=True)
    ]
    schedules = _schedule_frame(cases, solutions)
    taken = schedule_takes(schedules, operators, estimates, chosen)
    return pd.DataFrame(rows).join(taken, on=KEY).fillna(dict.fromkeys(taken, 0.0)), schedules


def _largest_gap(solutions: list[LayerSolution]) -> str:
    """Largest gap of the solutions so far, as text."""
    gap = max((solution.gap for solution in solutions), default=0.0)
    return f"largest gap {100 * gap:.2g} %" if gap else "no gap"


def _solve_row(case: Case, solution: LayerSolution, formulation: str) -> dict[str, object]:
    """Row of table `solves` for one pass of a layer on an architecture."""
    programs = solution.programs
    layer = case.layer
    working = layer.kinds != NONE
    return {
        **dict(zip(KEY, case.key, strict=True)),
        "status": solution.status,
        "objective_s": solution.objective_s,
        "bound_s": solution.bound_s,
        "gap": solution.gap,
        "method": "program" if programs else "bounds",
        "solver": programs[0].solver if programs else "none",
        "version": programs[0].version if programs else "none",
        "formulation": formulation if programs else "none",
        "operators": len(layer.core),
        "components": len(programs),
        "variables": sum(part.variables for part in programs),
        "constraints": sum(part.constraints for part in programs),
        "z_needed": any(part.z_needed for part in solution.parts),
        "all_cores_s": float(layer.latency_all_s[working].sum()),
    }


def _schedule_frame(cases: list[Case], solutions: list[LayerSolution]) -> pd.DataFrame:
    """Build table `schedules` from the solutions of all passes."""
    keys = pd.DataFrame([case.key for case in cases], columns=KEY)
    frame = keys.loc[np.repeat(np.arange(len(cases)), [len(case.operators) for case in cases])]
    return frame.reset_index(drop=True).assign(
        operator=np.concatenate([case.operators for case in cases]),
        resource=np.array(CORES)[np.concatenate([case.layer.kinds for case in cases])],
        core=np.concatenate([solution.schedule.core for solution in solutions]),
        start_s=np.concatenate([solution.schedule.start_s for solution in solutions]),
        end_s=np.concatenate([solution.schedule.end_s for solution in solutions]),
    )


def schedule_takes(
    schedules: pd.DataFrame, operators: pd.DataFrame, estimates: pd.DataFrame, architectures: pd.DataFrame
) -> pd.DataFrame:
    """Energy by part in J and traffic in bytes of each scheduled layer, indexed by KEY.

    No-ops are free.
    """
    work = _works(schedules, operators)
    busy, work = schedules[work >= 0], work[work >= 0]
    row = _rows_of(estimates)[work, _designs(busy, architectures)]
    every = (busy["core"] < 0).to_numpy()
    on_one, all_ = (estimates[list(columns)].to_numpy() for columns in (_ON_ALL, _ON_ALL.values()))
    chosen = np.where(every[:, None], all_[row], on_one[row])
    taken = busy[KEY].assign(**{column: chosen[:, c] for c, column in enumerate(_ON_ALL)})
    return taken.groupby(KEY)[list(_ON_ALL)].sum()


def _works(schedules: pd.DataFrame, operators: pd.DataFrame) -> Ints:
    """Workload index of each scheduled operator, as in the estimates; -1 for a no-op."""
    keys = [*PASS, "operator"]
    both = pd.concat([operators[keys], schedules[keys]], ignore_index=True)
    number = both.groupby(keys, sort=False).ngroup().to_numpy(np.int64)
    work = np.full(number.max(initial=0) + 1, -1)
    work[number[: len(operators)]] = operators["work"]
    works: Ints = work[number[len(operators) :]]
    return works


def _rows_of(estimates: pd.DataFrame) -> Ints:
    """Row index of each estimate, by workload and core design."""
    at = estimates["work"].to_numpy(np.int64), estimates["design"].to_numpy(np.int64)
    rows = np.full([int(index.max(initial=-1)) + 1 for index in at], -1)
    rows[at] = np.arange(len(estimates))
    return rows


def _designs(scheduled: pd.DataFrame, architectures: pd.DataFrame) -> Ints:
    """Id of the core design that each scheduled operator runs on."""
    row = pd.Index(architectures["architecture"]).get_indexer(pd.Index(scheduled["architecture"]))
    return np.select(
        [(scheduled["resource"] == core).to_numpy() for core in _DESIGN],
        [architectures[f"{of}_design"].to_numpy(np.int64)[row] for of in _DESIGN.values()],
    )
