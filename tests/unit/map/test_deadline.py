"""Searches end soon after their deadline, and slicing their work does not change results."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from phaze.base.deadline import Deadline, OutOfTimeError, slices
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.map.annealing import Cooling, anneal, new_state, step_task
from phaze.map.ensemble import Mapped, MapSettings, map_stages
from phaze.map.heuristics import compact_maps
from phaze.map.networks import read_topology
from phaze.map.objective import MappingProblem, lower_bound_s
from phaze.map.schemes import near_devices
from phaze.map.search import SearchLimits, search
from phaze.map.symmetry import device_symmetry
from tests.commands import invoke
from tests.unit.map.cases import drawn_network, drawn_stages

BIG = drawn_stages(2, 4, 5), drawn_network(2, 24, "directed", latency=True)


def test_slices_follow_each_other_and_are_all_steps() -> None:
    for steps in (0, 1, 255, 256, 257, 10_000):
        ends = list(slices(steps, Deadline()))
        assert [step for begin, end in ends for step in range(begin, end)] == list(range(steps))


def test_how_work_is_sliced_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mapped(SearchLimits(tries=3000))

    def of_seven(steps: int, _: Deadline) -> Iterator[tuple[int, int]]:
        yield from ((begin, min(begin + 7, steps)) for begin in range(0, steps, 7))

    for module in ("annealing", "search"):
        monkeypatch.setattr(f"phaze.map.{module}.slices", of_seven)
    sliced = mapped(SearchLimits(tries=3000))
    assert [one.mapping.tolist() for one in sliced.candidates] == [
        one.mapping.tolist() for one in whole.candidates
    ]
    assert [one.search.tries for one in sliced.candidates if one.search] == [
        one.search.tries for one in whole.candidates if one.search
    ]


def test_without_time_there_is_still_an_answer() -> None:
    found = mapped(SearchLimits(time_s=0.0))
    (first, *rest) = found.candidates
    assert first.search is not None
    assert first.search.timed_out
    assert first.search.tries == 0
    assert [one.method for one in rest] == ["cs-map", "p2p-map"], "no other search, and no local one"
    assert found.best.step_s == min(one.step_s for one in found.candidates)


def test_a_chain_ends_soon_after_what_waits_for_it_is_interrupted() -> None:
    until = Deadline()
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (endless_chain(until), ended.set()))
    thread.start()
    assert not ended.wait(0.5)
    with pytest.raises(KeyboardInterrupt), until.for_threads():
        raise KeyboardInterrupt
    told_s = time.monotonic()
    thread.join(timeout=60)
    assert ended.is_set()
    assert time.monotonic() - told_s < 10, "a slice is a fraction of a second; the rest is a busy machine"


def test_a_search_ends_at_its_limit_in_the_middle_of_a_target() -> None:
    problem = MappingProblem(drawn_stages(1, 6, 6), drawn_network(1, 40, "directed", latency=True), "exact")
    began_s = time.monotonic()
    found = search(problem, SearchLimits(tries=10**12, time_s=0.5), 0)
    assert found.timed_out
    assert not found.proven
    assert time.monotonic() - began_s < 30, "most of it may be the compiler"


def test_symmetries_found_until_the_deadline_are_fewer_and_none_is_wrong() -> None:
    problem = MappingProblem(drawn_stages(1, 2, 3), drawn_network(1, 6, "nodes"), "exact")
    every, none = device_symmetry(problem, Deadline()), device_symmetry(problem, Deadline(0.0))
    assert (every.before >= 0).any() or len(every.group)
    assert (none.before == -1).all()
    assert none.first.all()
    assert not len(none.group)


def test_bounds_at_the_deadline_are_coarser_and_hold() -> None:
    problem = MappingProblem(*BIG, "exact")
    coarse = lower_bound_s(problem, Deadline(0.0))
    assert coarse == problem.stages.compute_s.max()
    assert coarse < lower_bound_s(problem)
    assert compact_maps(problem, Deadline(0.0)) == []
    with pytest.raises(OutOfTimeError):
        near_devices(problem, 0, Deadline(0.0))


def test_the_time_limit_of_the_command_begins_before_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that takes longer to read than the limit leaves no time to search."""
    stages, network = tmp_path / "stages.json", tmp_path / "network.yaml"
    one = {"forward_s": 1.0, "backward_s": 2.0, "parameter_bytes": 1e9}
    content = {"format": "phaze-stages", "version": 1, "model": "m", "replicas": 3, "microbatches": 4}
    edges = [{"source": 0, "target": 1, "bytes": 1e9}]
    stages.write_text(json.dumps({**content, "recompute": False, "stages": [one, one], "edges": edges}))
    network.write_text("kind: uniform-dist\ndevices: 8\nseed: 1\n")

    def slowly(path: Path) -> DeviceNetwork:
        time.sleep(0.3)
        return read_topology(path)

    monkeypatch.setattr("phaze.map.networks.read_topology", slowly)
    given = ("map", str(stages), "--topology", str(network), "--time-limit", "0.2", "--json")
    found = json.loads(invoke(*given).stdout)
    assert found["ways"][0]["timed_out"]
    assert found["ways"][0]["tries"] == 0


def endless_chain(until: Deadline) -> None:
    """Run a chain of the local search that would take hours."""
    task, near = step_task(*BIG, np.inf), near_devices(MappingProblem(*BIG, "exact"), 0)
    state = new_state(task, np.arange(len(near)))
    anneal(task, state, near, np.random.default_rng(0), Cooling(10**11, 0.05, 1e-4), until)


def mapped(limits: SearchLimits) -> Mapped:
    """Return the mappings of an example."""
    return map_stages(*BIG, MapSettings(limits=limits, steps=2000))
