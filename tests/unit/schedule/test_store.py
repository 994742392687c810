"""Solutions cached by content: found again, verified, and never different from fresh ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phaze.base.store import Store, digest_of
from phaze.schedule import decomposition
from phaze.schedule.bounds import Bounded, ComponentTask, bound_task, tasks_of
from phaze.schedule.decomposition import solve_task, task_content
from phaze.schedule.graphs import ScheduledLayer, Solution
from phaze.spec.settings import ScheduleSettings
from tests.unit.schedule.random_layers import random_layer

SETTINGS = ScheduleSettings(solver=("highs",), node_limit=1000, programs="all")


def make_task(**changes: object) -> ComponentTask:
    """Return a component of three operators on one architecture, with some fields of its layer changed."""
    fields = {
        "core": ("tensor", "vector", "fused"),
        "latency_s": np.array([1.5, 2.0, 4.0]),
        "latency_all_s": np.array([1.0, 1.9, 2.0]),
        "edges": (),
        "num_tc": 2,
        "num_vc": 1,
    }
    return max(
        tasks_of(ScheduledLayer(**{**fields, **changes})), key=lambda task: len(task.component.operators)
    )


def digest_task(task: ComponentTask, settings: ScheduleSettings = SETTINGS) -> str:
    return digest_of(task_content(task, settings))


def values(solution: Solution) -> dict[str, object]:
    """Return every digit of a solution."""
    times = {name: array.tolist() for name, array in vars(solution.schedule).items()}
    return {**vars(solution), "schedule": times, "core": solution.schedule.core.dtype}


@pytest.fixture
def task() -> ComponentTask:
    """Return a component."""
    return make_task()


@pytest.mark.solver
def test_a_solution_from_the_store_is_identical_to_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every digit survives the file, also for solutions without a proof."""

    def decide(_task: ComponentTask, bounded: Bounded, _: object) -> Solution:
        return Solution(
            "highs", "1.15", 7, 9,
            status="feasible", schedule=bounded.schedule, bound_s=bounded.lower_s / 3, method="program",
            z_needed=True,
        )  # fmt: skip

    tasks = [task for seed in range(3) for task in tasks_of(random_layer(seed, 6))]
    for number, task in enumerate([make_task(), *tasks]):
        fresh = solve_task(task, SETTINGS, Store(tmp_path))
        assert values(solve_task(task, SETTINGS, Store(tmp_path))) == values(fresh)
        if number == 0:
            assert fresh.method == "program"
            monkeypatch.setattr(decomposition, "_decide", decide)


def test_the_digest_depends_on_all_that_matters(task: ComponentTask) -> None:
    """One bit of a latency matters, and so do overlapping communication and the order."""
    wide = ("tensor", "vector", "network")
    alike = {
        "core": ("tensor", "tensor", "vector"),
        "latency_s": np.full(3, 2.0),
        "latency_all_s": np.full(3, 2.0),
    }
    tasks = [
        task,
        make_task(core=("tensor", "vector", "vector")),
        make_task(latency_s=np.array([1.5, 2.0, np.nextafter(4.0, 5.0)])),
        make_task(latency_all_s=np.array([1.0, 1.9, np.nextafter(2.0, 3.0)])),
        make_task(num_tc=1),
        make_task(num_vc=2),
        *(make_task(core=wide, overlap_communication=flag) for flag in (True, False)),
        *(make_task(**alike, edges=edges) for edges in ((), ((0, 1),), ((0, 2),))),
    ]
    assert len({digest_task(one) for one in tasks}) == len(tasks)


def test_the_digest_depends_on_how_programs_are_solved_by_which_solvers_and_code(
    task: ComponentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another setting may give another result, and results of an older solver are not reused."""
    changes = {"formulation": "paper", "node_limit": 1001, "wall_limit_s": 61.0, "solver": ("glpk", "highs")}
    settings = [SETTINGS, *(SETTINGS.model_copy(update={key: value}) for key, value in changes.items())]
    monkeypatch.setattr(decomposition, "solver_versions", lambda names: dict.fromkeys(names, "1.0"))
    digests = {digest_task(task, one) for one in settings}
    monkeypatch.setattr(decomposition, "solver_versions", lambda _: {"highs": "999.0"})
    digests.add(digest_task(task))
    monkeypatch.setattr(decomposition, "_code", lambda: "other")
    digests.add(digest_task(task))
    assert len(digests) == 7


def test_what_does_not_matter_does_not_change_the_digest() -> None:
    """Cores beyond the operators that could use them, and the components before and after."""
    assert digest_task(make_task(num_vc=2)) == digest_task(make_task(num_vc=1000))
    core, one, every = ("vector", "tensor", "tensor"), np.array([1.0, 2.0, 2.0]), np.array([1.0, 1.5, 1.5])
    first = ScheduledLayer(core, one, every, ((0, 1), (0, 2)), 1, 1)
    second = ScheduledLayer(
        (*core, "fused"), np.append(one, 9.0), np.append(every, 8.0), ((0, 1), (0, 2), (1, 3), (2, 3)), 1, 1
    )
    assert len({digest_task(tasks_of(layer)[1]) for layer in (first, second)}) == 1


@pytest.mark.solver
@pytest.mark.parametrize("damage", ["schedule", "bound", "cores"])
def test_a_solution_that_cannot_be_right_is_not_believed(
    damage: str, tmp_path: Path, task: ComponentTask, caplog: pytest.LogCaptureFixture
) -> None:
    """With a correct checksum and wrong content: it is solved again, and the file rewritten."""
    fresh = solve_task(task, SETTINGS, Store(tmp_path))
    (path,) = tmp_path.rglob("*.json")
    answers = json.loads(path.read_text())["answers"]
    (solution,) = answers.values()
    if damage == "schedule":
        solution["schedule"].update(start_s=[0.0] * 3, end_s=[1.5, 2.0, 4.0], core=[0] * 3)
    elif damage == "bound":
        solution["bound_s"] = 1e9
    else:
        solution["schedule"]["core"] = [7] * 3
    path.write_text(json.dumps({"checksum": digest_of(answers), "answers": answers}))
    assert values(solve_task(task, SETTINGS, Store(tmp_path))) == values(fresh)
    assert "solved again" in caplog.text
    caplog.clear()
    assert values(solve_task(task, SETTINGS, Store(tmp_path))) == values(fresh)
    assert not caplog.text


def test_only_programs_that_ended_by_themselves_are_written(
    tmp_path: Path, task: ComponentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds are faster than files, and timed-out or failed solves might do better next time."""
    proven = Solution(status="optimal", schedule=bound_task(task).schedule, bound_s=0.0, method="program")
    ends = (
        replace(proven, method="bounds"),
        replace(proven, status="timed_out"),
        replace(proven, repeatable=False),
        proven,
    )
    for solution in ends:
        monkeypatch.setattr(decomposition, "_decide", lambda *_, made=solution: made)
        assert list(tmp_path.iterdir()) == []
        assert values(solve_task(task, SETTINGS, Store(tmp_path))) == values(solution)
    assert len(list(tmp_path.rglob("*.json"))) == 1
