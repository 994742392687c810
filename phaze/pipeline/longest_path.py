"""Exact times of a pipeline whose order of work is fixed: the longest path through its event graph.

A job starts when the job before it on its resource is over and all its predecessors are, each with its delay.
One sweep visits every job once: each resource goes through its jobs until one has to wait for a job that has
no time yet; that job wakes the resource when it gets one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.base.errors import PhazeError
from phaze.pipeline.graph import event_graph
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline

ADVICE = "replicas that wait for each other need data that divide their suffix sums, or overlap_sync"
"""Without a flush they may keep from other stages the microbatches on which these wait."""


LOADING = 50_000
"""Jobs whose sweep in Python takes less time than to load its machine code, two thirds of a second."""

Sweep = Callable[[Ints, Floats, Ints, Ints, Floats], tuple[Floats, Floats, Ints, int]]

_swept: Counter[str] = Counter()


def simulate(pipeline: Pipeline) -> Timeline:
    """Return when every event of a pipeline happens, without contention.

    Raises `PhazeError` where the order cannot be executed because jobs wait for each other.
    """
    graph = event_graph(pipeline)
    sweep = _sweep_for(len(graph.jobs))
    start, arrival, binding, done = sweep(
        graph.jobs.first, graph.duration_s, graph.preceded, graph.predecessor, graph.delay_s
    )
    if done < len(start):
        raise PhazeError(
            f"pipeline: under {pipeline.schedule} with data {pipeline.data} only {done} of {len(start)} jobs "
            f"can run, the others wait for each other; {ADVICE}"
        )
    return Timeline(pipeline, graph.jobs, start, graph.duration_s, arrival, binding)


def _sweep_for(jobs: int) -> Sweep:
    """Return the sweep in Python for the first jobs of a process, then compiled; times are the same."""
    _swept["jobs"] += jobs
    if _swept["jobs"] <= LOADING:
        return cast(Sweep, longest_path.py_func)  # type: ignore[attr-defined]
    return longest_path


@njit
def longest_path(
    first: Ints, duration: Floats, preceded: Ints, predecessor: Ints, delay: Floats
) -> tuple[Floats, Floats, Ints, int]:
    """Return start and latest arrival of every job, the predecessor that arrives last, and the jobs done.

    `first` (R + 1,) says where each resource's jobs begin; arrivals without predecessors are at 0.
    """
    n, resources = len(duration), len(first) - 1
    start, arrival = np.full(n, -1.0), np.zeros(n)
    binding = np.full(n, -1, np.int64)
    waiting, next_waiting = np.full(n, -1, np.int32), np.full(resources, -1, np.int32)
    position, free = first[:-1].copy(), np.zeros(resources)
    stack = np.arange(resources).astype(np.int32)
    height, done = resources, 0
    while height > 0:
        height -= 1
        resource = stack[height]
        while position[resource] < first[resource + 1]:
            i = position[resource]
            missing = -1
            for e in range(preceded[i], preceded[i + 1]):
                before = predecessor[e]
                if start[before] < 0:
                    missing = before
                    break
                there = start[before] + duration[before] + delay[e]
                if binding[i] < 0 or there > arrival[i]:
                    arrival[i], binding[i] = there, before
            if missing >= 0:
                arrival[i], binding[i] = 0.0, -1
                next_waiting[resource] = waiting[missing]
                waiting[missing] = resource
                break
            start[i] = max(free[resource], arrival[i])
            free[resource] = start[i] + duration[i]
            position[resource] = i + 1
            done += 1
            woken = waiting[i]
            while woken >= 0:
                stack[height] = woken
                height += 1
                woken = next_waiting[woken]
    return start, arrival, binding, done
