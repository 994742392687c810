"""For any fault of a solver, a layer is solved by the next one, or ends with its bound and its gap."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from phaze.base.store import Store
from phaze.schedule.decomposition import LayerSolution, solve_layer
from phaze.schedule.verify import find_faults
from phaze.solver import _printed_version
from phaze.spec.settings import ScheduleSettings
from tests.unit.schedule.random_layers import random_layer

LAYER = random_layer(165, 10)
PROOF = ScheduleSettings(wall_limit_s=5.0)
"""Five seconds: the time limit of a glpsol that never ends."""
VERSION = 'case "$1" in --version) echo "GLPSOL 5.0"; exit;; esac\n'
TAMPER = """real "$@" >"$TMPDIR"/out; status=$?
while [ "$1" != --write ]; do shift; done
awk '%s' "$2" >"$2".new && mv "$2".new "$2"
cat "$TMPDIR"/out; exit $status
"""

FAULTS = {
    "prints no version": "exit 3\n",
    "is no program": None,
    "crashes": VERSION + "exit 3\n",
    "breaks memory": VERSION + "kill -SEGV $$\n",
    "is killed every time": VERSION + "kill -KILL $$\n",
    "never ends": VERSION + "exec sleep 60\n",
    "says nothing": VERSION + "exit 0\n",
    "writes rubbish": VERSION
    + 'for file in "$@"; do case $file in *.raw|*.glp) echo x >$file;; esac; done\n',
    "calls it infeasible": VERSION + "echo PROBLEM HAS NO PRIMAL FEASIBLE SOLUTION\n",
    "loses its point": VERSION + TAMPER % '$1 != "j"',
    "breaks constraints": VERSION + TAMPER % '$1 == "j" {$3 = 0} {print}',
    "breaks integrality": VERSION + TAMPER % '$1 == "j" && $3 == 1 {$3 = 0.7} {print}',
    "claims another status": VERSION + TAMPER % '$1 == "s" {$5 = "n"} {print}',
}
"""Faulty glpsol programs: shell scripts, in which `real` is the real one."""


@pytest.fixture(params=FAULTS.values(), ids=FAULTS)
def fault(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    require_program: Callable[[str], str],
) -> None:
    """Put a faulty glpsol on the path."""
    real = require_program("glpsol")
    program = tmp_path / "bin" / "glpsol"
    program.parent.mkdir()
    text = request.param
    if text is None:
        program.write_bytes(b"\x7fELF no program")
    else:
        program.write_text(f'#!/bin/bash\nreal() {{ {real} "$@"; }}\n{text}')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert shutil.which("glpsol") == str(program)
    _printed_version.cache_clear()


@pytest.fixture(scope="module")
def best() -> LayerSolution:
    """Return the solution by HiGHS alone."""
    found = solve_layer(LAYER, PROOF.model_copy(update={"solver": ("highs",)}), Store())
    assert found.status == "optimal"
    return found


def stored(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.json"))


@pytest.mark.slow
@pytest.mark.solver
@pytest.mark.usefixtures("fault")
def test_the_next_solver_solves_the_layer(best: LayerSolution, tmp_path: Path) -> None:
    found = solve_layer(LAYER, PROOF, Store(tmp_path / "solutions"))
    assert (found.status, {part.solver for part in found.programs}) == ("optimal", {"highs"})
    assert found.objective_s == pytest.approx(best.objective_s, rel=1e-12)
    assert find_faults(LAYER, found.schedule) == ()


@pytest.mark.solver
@pytest.mark.usefixtures("fault")
def test_without_another_solver_the_layer_ends_with_its_bound_and_gap(
    best: LayerSolution, tmp_path: Path
) -> None:
    folder = tmp_path / "solutions"
    found = solve_layer(LAYER, PROOF.model_copy(update={"solver": ("glpk",)}), Store(folder))
    assert found.status in ("feasible", "timed_out")
    assert found.bound_s <= best.objective_s * (1 + 1e-9)
    assert found.objective_s >= best.objective_s * (1 - 1e-9)
    assert found.gap > 0
    assert find_faults(LAYER, found.schedule) == ()
    assert {part.solver for part in found.programs} == {"none"}
    installed = _printed_version(shutil.which("glpsol")) is not None
    assert stored(folder) == 0 or not installed, "what a solver failed at may do better next time"
