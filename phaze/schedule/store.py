"""Solutions of components, kept by their content: what was solved once is not solved again.

The name of a file is a digest of all that its solution depends on: core types, latencies, order, usable
cores, how programs are solved with the versions of the solvers, and the code. A file is written in one step
and carries a checksum; what is read is checked again as a schedule. A file that fails any check counts as
absent and is written anew. Solves that ran into the limit on wall time, or in which a solver failed, are
not kept: they might do better next time.
"""

import hashlib
import json
import logging
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from phaze.base.files import write_text
from phaze.base.provenance import source_digest
from phaze.schedule.bounds import Task, layer_of, overlaps
from phaze.schedule.graphs import CORES, Schedule
from phaze.schedule.proof import Proof, Solution
from phaze.schedule.verify import find_faults
from phaze.solver import solver_versions

log = logging.getLogger(__name__)

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"


class SolutionStore:
    """A folder of solutions; without a folder they are kept as long as the store lives."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[str, Solution] = {}
        self.tally: Counter[str] = Counter()
        """Different components by what decided them: bounds, a program, or the store itself."""

    def load(self, digest: str, task: Task) -> Solution | None:
        """Return the solution with a digest, or None if there is none that stands all checks."""
        if digest not in self._known and self._folder is not None:
            solution = _read(self._folder / digest[:2] / f"{digest}.json", task)
            if solution is not None:
                self._known[digest] = solution
                self.tally["store"] += 1
        return self._known.get(digest)

    def save(self, digest: str, solution: Solution) -> None:
        """Keep a solution; in the folder only what took a program, and never what may do better next time."""
        self.tally[solution.method] += 1
        if solution.status == "timed_out" or not solution.repeatable:
            return
        self._known[digest] = solution
        if self._folder is not None and solution.method == "program":
            _write(self._folder / digest[:2] / f"{digest}.json", solution)


def digest_task(task: Task, proof: Proof) -> str:
    """Return the digest of all that the solution of a component depends on."""
    component = task.component
    content: dict[str, Plain] = {
        "core": [CORES[kind] for kind in component.kinds],
        "edges": [list(edge) for edge in component.edges],
        "latency": [value.hex() for value in task.one_s.tolist()],
        "latency_all": [value.hex() for value in task.every_s.tolist()],
        "cores": [task.num_tc, task.num_vc],
        "overlap": overlaps(component.kinds, task.one_s),
        "formulation": proof.formulation,
        "programs": proof.programs,
        "limits": asdict(proof.limits),
        "solvers": [[name, version] for name, version in solver_versions(proof.solver).items()],
        "code": _code(),
    }
    return _checksum(content)


@cache
def _code() -> str:
    return source_digest("phaze.schedule")


def _checksum(content: dict[str, Plain]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _write(path: Path, solution: Solution) -> None:
    """Write a solution in one step, so that no reader ever sees half of it."""
    content: dict[str, Plain] = {name: value for name, value in vars(solution).items() if name != "schedule"}
    content["schedule"] = {name: values.tolist() for name, values in vars(solution.schedule).items()}
    document = {"solution": content, "checksum": _checksum(content)}
    write_text(path, json.dumps(document, sort_keys=True))


def _read(path: Path, task: Task) -> Solution | None:
    """Return the solution in a file, or None if the file is absent or fails a check."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        content = document["solution"]
        if document["checksum"] != _checksum(content):
            raise ValueError("its checksum is wrong")
        schedule = Schedule(**{name: np.array(values) for name, values in content.pop("schedule").items()})
        solution = Solution(schedule=schedule, **content)
        if faults := find_faults(layer_of(task), schedule):
            raise ValueError(f"its schedule cannot be executed: {faults[0]}")
        if not solution.bound_s <= schedule.latency_s:
            raise ValueError(f"its bound {solution.bound_s} s is above its latency {schedule.latency_s} s")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: %s; it is solved again", path, error)
        return None
    return solution
