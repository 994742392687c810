"""Solutions kept by content: found again, never trusted blindly, never different from fresh ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phaze.schedule import store as store_module
from phaze.schedule.bounds import Task, bound_task, tasks_of
from phaze.schedule.graphs import Layer, Schedule
from phaze.schedule.program import solve_program
from phaze.schedule.proof import Proof, Solution
from phaze.schedule.store import SolutionStore, digest_task
from phaze.solver import Limits
from tests.unit.schedule.random_layers import random_layer

PROOF = Proof(("highs",), "sparse", Limits(nodes=1000, wall_s=60.0))


def make_task(**changes: object) -> Task:
    """Return a component of three operators on one architecture, with some fields of its layer changed."""
    fields = {
        "core": ("tensor", "vector", "fused"),
        "latency_s": np.array([1.5, 2.0, 4.0]),
        "latency_all_s": np.array([1.0, 1.9, 2.0]),
        "edges": (),
        "num_tc": 2,
        "num_vc": 1,
    }
    return max(tasks_of(Layer(**{**fields, **changes})), key=lambda task: len(task.component.operators))


def solution_of(task: Task) -> Solution:
    """Return a solution that took a program."""
    return solve_program(task, bound_task(task), PROOF)


def same(a: Solution, b: Solution) -> bool:
    """Return whether two solutions are equal to the last digit."""
    plain = [{name: value for name, value in vars(one).items() if name != "schedule"} for one in (a, b)]
    arrays = [[values.tolist() for values in vars(one.schedule).values()] for one in (a, b)]
    return plain[0] == plain[1] and arrays[0] == arrays[1]


@pytest.fixture
def task() -> Task:
    """Return a component."""
    return make_task()


def test_a_solution_from_the_store_is_identical_to_a_fresh_one(tmp_path: Path, task: Task) -> None:
    """Every digit survives the file."""
    fresh, digest = solution_of(task), digest_task(task, PROOF)
    SolutionStore(tmp_path).save(digest, fresh)
    found = SolutionStore(tmp_path).load(digest, task)
    assert found is not None
    assert same(found, fresh)
    assert found.schedule.core.dtype == fresh.schedule.core.dtype


def test_equal_solutions_are_equal_files(tmp_path: Path, task: Task) -> None:
    """Nothing in a file depends on when or by whom it was written."""
    digest = digest_task(task, PROOF)
    for folder in ("a", "b"):
        SolutionStore(tmp_path / folder).save(digest, solution_of(task))
    files = [next((tmp_path / folder).rglob("*.json")) for folder in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not list(tmp_path.rglob(".*"))


def test_without_a_folder_solutions_live_as_long_as_the_store(task: Task) -> None:
    """Within one job equal components are still solved once."""
    kept, digest = SolutionStore(), digest_task(task, PROOF)
    kept.save(digest, solution_of(task))
    assert kept.load(digest, task) is not None
    assert SolutionStore().load(digest, task) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"core": ("tensor", "vector", "vector")},
        {"latency_s": np.array([1.5, 2.0, np.nextafter(4.0, 5.0)])},
        {"latency_all_s": np.array([1.0, 1.9, np.nextafter(2.0, 3.0)])},
        {"num_tc": 1},
        {"num_vc": 2},
    ],
    ids=["core type", "latency", "latency on all cores", "tensor cores", "vector cores"],
)
def test_the_digest_depends_on_all_that_matters(changes: dict[str, object], task: Task) -> None:
    """One bit of a latency is a difference."""
    assert digest_task(make_task(**changes), PROOF) != digest_task(task, PROOF)


def test_the_digest_depends_on_the_order() -> None:
    """The same operators side by side and partly one after the other are two components."""
    core, latency = ("tensor", "tensor", "vector"), np.array([2.0, 2.0, 2.0])
    digests = {
        digest_task(make_task(core=core, latency_s=latency, latency_all_s=latency, edges=edges), PROOF)
        for edges in ((), ((0, 1),), ((0, 2),))
    }
    assert len(digests) == 3


def test_the_digest_depends_on_whether_communication_overlaps() -> None:
    """The same collective may run beside others or not."""
    core = ("tensor", "vector", "network")
    digests = {digest_task(make_task(core=core, overlap_communication=flag), PROOF) for flag in (True, False)}
    assert len(digests) == 2


@pytest.mark.parametrize(
    "proof",
    [
        replace(PROOF, formulation="paper"),
        replace(PROOF, limits=Limits(nodes=1001, wall_s=60.0)),
        replace(PROOF, limits=Limits(nodes=1000, wall_s=61.0)),
        replace(PROOF, solver=("glpk", "highs")),
    ],
    ids=["formulation", "nodes", "wall time", "solvers"],
)
def test_the_digest_depends_on_how_programs_are_solved(
    proof: Proof, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another setting may give another result."""
    monkeypatch.setattr(store_module, "solver_versions", lambda names: dict.fromkeys(names, "1.0"))
    assert digest_task(task, proof) != digest_task(task, PROOF)


def test_the_digest_depends_on_versions_of_solvers_and_on_the_code(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older solver or older code found is not taken for the new."""
    digests = {digest_task(task, PROOF)}
    monkeypatch.setattr(store_module, "solver_versions", lambda _: {"highs": "999.0"})
    digests.add(digest_task(task, PROOF))
    monkeypatch.setattr(store_module, "_code", lambda: "other")
    digests.add(digest_task(task, PROOF))
    assert len(digests) == 3


def test_cores_beyond_the_operators_that_could_use_them_do_not_matter() -> None:
    """A thousand vector cores are as good as one for each operator."""
    assert digest_task(make_task(num_vc=2), PROOF) == digest_task(make_task(num_vc=1000), PROOF)


def test_equal_components_of_different_layers_share_a_solution() -> None:
    """What comes before and after a component does not matter."""
    core, one, every = ("vector", "tensor", "tensor"), np.array([1.0, 2.0, 2.0]), np.array([1.0, 1.5, 1.5])
    first = Layer(core, one, every, ((0, 1), (0, 2)), 1, 1)
    second = Layer(
        (*core, "fused"), np.append(one, 9.0), np.append(every, 8.0), ((0, 1), (0, 2), (1, 3), (2, 3)), 1, 1
    )
    digests = {digest_task(tasks_of(layer)[1], PROOF) for layer in (first, second)}
    assert len(digests) == 1


@pytest.mark.parametrize("damage", ["cut", "bit", "checksum", "schedule", "bound", "empty", "other"])
def test_a_damaged_file_counts_as_absent(
    damage: str, tmp_path: Path, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """The solution is found again, the file written anew, and the log says why."""
    digest = digest_task(task, PROOF)
    SolutionStore(tmp_path).save(digest, solution_of(task))
    file = next(tmp_path.rglob("*.json"))
    file.write_text(damaged(file.read_text(), damage))
    assert SolutionStore(tmp_path).load(digest, task) is None
    assert str(file) in caplog.text
    SolutionStore(tmp_path).save(digest, solution_of(task))
    assert SolutionStore(tmp_path).load(digest, task) is not None


def damaged(text: str, damage: str) -> str:
    """Return a file with some damage; where its checksum is right, its content is wrong."""
    document = json.loads(text)
    if damage == "cut":
        return text[: len(text) // 2]
    if damage == "bit":
        return text.replace("optimal", "optimol")
    if damage == "empty":
        return ""
    if damage == "other":
        return "[1, 2]"
    if damage == "checksum":
        document["checksum"] = "0" * 64
        return json.dumps(document)
    if damage == "schedule":
        document["solution"]["schedule"]["start_s"] = [0.0, 0.0, 0.0]
        document["solution"]["schedule"]["end_s"] = [1.5, 2.0, 4.0]
        document["solution"]["schedule"]["core"] = [0, 0, 0]
    if damage == "bound":
        document["solution"]["bound_s"] = 1e9
    document["checksum"] = store_module._checksum(document["solution"])
    return json.dumps(document)


def test_only_programs_that_ended_by_themselves_are_written(tmp_path: Path, task: Task) -> None:
    """Bounds are quicker than files, and what ran out of time might do better next time."""
    fresh = solution_of(task)
    kept = SolutionStore(tmp_path)
    kept.save("bounds", replace(fresh, method="bounds"))
    kept.save("late", replace(fresh, status="timed_out"))
    assert list(tmp_path.iterdir()) == []
    assert kept.load("bounds", task) is not None
    assert kept.load("late", task) is None


def test_a_schedule_of_another_component_is_not_accepted(tmp_path: Path, task: Task) -> None:
    """A file under a wrong name is noticed because its schedule does not fit."""
    other = make_task(latency_s=np.array([1.0, 1.0, 1.0]))
    digest = digest_task(task, PROOF)
    SolutionStore(tmp_path).save(digest, solution_of(other))
    assert SolutionStore(tmp_path).load(digest, task) is None


@pytest.mark.parametrize("seed", range(6))
def test_any_solution_survives_its_file(seed: int, tmp_path: Path) -> None:
    """Random components, with and without a proof."""
    layer = random_layer(seed, 6)
    for k, task in enumerate(tasks_of(layer)):
        bounded = bound_task(task)
        schedule = Schedule(bounded.schedule.start_s, bounded.schedule.end_s, bounded.schedule.core)
        fresh = Solution("feasible", schedule, bounded.lower_s / 3, "program", "highs", "1.15", 7, 9, True)
        SolutionStore(tmp_path).save(f"{k:02}", fresh)
        found = SolutionStore(tmp_path).load(f"{k:02}", task)
        assert found is not None
        assert same(found, fresh)
