"""The stage: tables of operators, estimates and kept architectures in, tables of solves and schedules out."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from phaze import tables
from phaze.base.progress import counted
from phaze.schedule.decomposition import LayerSolution, solve_layer
from phaze.schedule.energy import schedule_takes
from phaze.schedule.graphs import CORES, NONE
from phaze.schedule.layer import KEY, Case, read_cases
from phaze.schedule.proof import Proof
from phaze.schedule.store import SolutionStore
from phaze.solver import Limits, solver_versions
from phaze.spec.settings import ScheduleSettings

log = logging.getLogger(__name__)


def schedule_layers(
    operators: pd.DataFrame,
    edges: pd.DataFrame,
    estimates: pd.DataFrame,
    architectures: pd.DataFrame,
    screens: pd.DataFrame,
    settings: ScheduleSettings,
    store: SolutionStore,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables solves and schedules of every pass of every layer on the architectures that are kept.

    Of `screens` only the columns architecture and kept are read. Equal components are solved once.
    """
    proof = Proof(
        solver=settings.solver,
        formulation=settings.formulation,
        limits=Limits(nodes=settings.node_limit, wall_s=settings.wall_limit_s),
        programs=settings.programs,
    )
    log.info("solvers: %s", solver_versions(proof.solver) or "none is installed")
    kept = screens.loc[screens["kept"], "architecture"].unique()
    chosen = architectures[architectures["architecture"].isin(kept)]
    cases = list(
        read_cases(operators, edges, estimates, chosen, overlap_communication=settings.overlap_communication)
    )
    if not cases:
        return tables.Solves.empty(), tables.Schedules.empty()
    solutions: list[LayerSolution] = []
    told = counted(cases, "layer", lambda: _largest_gap(solutions))
    solutions.extend(solve_layer(case.layer, proof, store) for case in told)
    log.info(
        "%d layers of %d different components: %s",
        len(cases),
        store.tally.total(),
        ", ".join(f"{count} by {name}" for name, count in sorted(store.tally.items())) or "nothing to choose",
    )
    rows = [_solve_row(case, solution, proof) for case, solution in zip(cases, solutions, strict=True)]
    schedules = _schedule_frame(cases, solutions)
    taken = schedule_takes(schedules, operators, estimates, chosen)
    return pd.DataFrame(rows).join(taken, on=KEY).fillna(dict.fromkeys(taken, 0.0)), schedules


def _largest_gap(solutions: list[LayerSolution]) -> str:
    """Return what is open among the solutions so far, for a reader."""
    gap = max((solution.gap for solution in solutions), default=0.0)
    return f"largest gap {100 * gap:.2g} %" if gap else "no gap"


def _solve_row(case: Case, solution: LayerSolution, proof: Proof) -> dict[str, object]:
    """Return a row of table solves."""
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
        "formulation": proof.formulation if programs else "none",
        "operators": len(layer.core),
        "components": len(programs),
        "variables": sum(part.variables for part in programs),
        "constraints": sum(part.constraints for part in programs),
        "z_needed": any(part.z_needed for part in solution.parts),
        "all_cores_s": float(layer.latency_all_s[working].sum()),
    }


def _schedule_frame(cases: list[Case], solutions: list[LayerSolution]) -> pd.DataFrame:
    """Return table schedules."""
    keys = pd.DataFrame([case.key for case in cases], columns=KEY)
    frame = keys.loc[np.repeat(np.arange(len(cases)), [len(case.operators) for case in cases])]
    return frame.reset_index(drop=True).assign(
        operator=np.concatenate([case.operators for case in cases]),
        resource=np.array(CORES)[np.concatenate([case.layer.kinds for case in cases])],
        core=np.concatenate([solution.schedule.core for solution in solutions]),
        start_s=np.concatenate([solution.schedule.start_s for solution in solutions]),
        end_s=np.concatenate([solution.schedule.end_s for solution in solutions]),
    )
