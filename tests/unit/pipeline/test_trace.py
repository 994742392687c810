"""Trace files: requirements of the Trace Event Format and of viewers."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline
from phaze.pipeline.trace import Event, trace_events, write_trace
from tests.oracles.pipelines import picture
from tests.unit.pipeline.examples import NAMES, ideal, random_pipeline

FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
}
"""Fields that the Trace Event Format requires of metadata, complete, flow and counter events."""


def of_phase(timeline: Timeline, phase: str) -> list[Event]:
    """Return the events of one phase."""
    return [event for event in trace_events(timeline) if event["ph"] == phase]


@pytest.mark.parametrize("schedule", NAMES)
def test_every_event_has_the_fields_of_its_phase(schedule: str) -> None:
    events = trace_events(simulate(random_pipeline(np.random.default_rng(1), schedule)))
    for event in events:
        assert set(event) == FIELDS[str(event["ph"])]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert float(event.get("ts", 0.0)) >= 0  # type: ignore[arg-type]
        assert float(event.get("dur", 0.0)) >= 0  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", NAMES)
def test_slices_of_a_thread_do_not_overlap_and_threads_have_names(schedule: str) -> None:
    timeline = simulate(random_pipeline(np.random.default_rng(2), schedule))
    threads = defaultdict(list)
    for event in of_phase(timeline, "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    named = {(e["pid"], e["tid"]) for e in of_phase(timeline, "M") if e["name"] == "thread_name"}
    assert set(threads) <= named
    for spans in threads.values():
        starts, lengths = np.array(sorted(spans)).T
        assert (starts[:-1] + lengths[:-1] <= starts[1:] + 1e-6).all()


def test_there_is_an_arrow_for_every_tensor() -> None:
    """Three stages, five microbatches: two borders, in both directions; each arrow has a beginning and an
    end.
    """
    timeline = simulate(ideal(3, 5, "1f1b"))
    begin, end = of_phase(timeline, "s"), of_phase(timeline, "f")
    assert Counter(e["name"] for e in begin) == {"activation": 10, "gradient": 10}
    assert sorted(str(e["id"]) for e in begin) == sorted(str(e["id"]) for e in end)
    assert len({e["id"] for e in begin}) == 20


def test_the_file_is_json_with_times_in_microseconds(tmp_path: Path) -> None:
    timeline = simulate(Pipeline((StageCost(1.5, 2.0, stash_bytes=7.0),), 1))
    write_trace(timeline, tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text())
    slices = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in slices[:2]] == [
        ("forward 0", 0.0, 1.5e6),
        ("backward 0", 1.5e6, 2e6),
    ]
    assert max(e["args"]["bytes"] for e in content["traceEvents"] if e["ph"] == "C") == 7.0


def test_a_picture_shows_who_does_what_when() -> None:
    stages = (StageCost(1.0, 1.0, recompute_s=1.0), StageCost(1.0, 2.0))
    assert picture(simulate(Pipeline(stages, 1)), 1.0) == [" 1  .  .  . +1 -1", " .  1 -1 -1  .  ."]
