"""Exact times of a pipeline with a fixed order of work: longest path through its event graph.

A job starts when the preceding job on its resource and all its predecessors are over, each with its delay.
One sweep visits every job once. Each resource advances through its jobs until one waits for a job without a
time; that job wakes the resource when it gets one.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.base.errors import PhazeError
from phaze.pipeline.graph import EventGraph, event_graph
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline

ADVICE = "replicas that wait for each other need data that divide their suffix sums, or overlap_sync"
"""Advice on deadlocks: without a flush, replicas may withhold microbatches that other stages wait for."""


def simulate(pipeline: Pipeline, graph: EventGraph | None = None) -> Timeline:
    """Event times of a pipeline without contention; `graph` is its event graph if already known.

    Raises `PhazeError` if the order cannot be executed because jobs wait for each other.
    """
    graph = event_graph(pipeline) if graph is None else graph
    start, arrival, binding, done = longest_path(
        graph.jobs.first, graph.duration_s, graph.preceded, graph.predecessor, graph.delay_s
    )
    if done < len(start):
        raise PhazeError(
            f"pipeline: under {pipeline.schedule} with data {pipeline.data} only {done} of {len(start)} jobs "
            f"can run, the others wait for each other; {ADVICE}"
        )
    return Timeline(pipeline, graph.jobs, start, graph.duration_s, arrival, binding)


def longest_path(
    first: Ints, duration: Floats, preceded: Ints, predecessor: Ints, delay: Floats
) -> tuple[Floats, Floats, Ints, int]:
    """Start of each job, its latest input arrival and binding predecessor, and the number of runnable jobs.

    The binding predecessor arrives last; -1 for none. `first` (R + 1,) are the offsets of each resource's
    jobs; arrivals without predecessors are at 0.
    """
    n, resources = len(duration), len(first) - 1
    times = np.full(n, -1.0), np.zeros(n), np.full(n, -1)
    # Compiled functions that allocate take three times as long to compile, so buffers are made here.
    waits = np.full(n, -1), np.full(resources, -1)
    runnable = np.arange(resources), first[:-1].copy(), np.zeros(resources)
    return *times, _sweep((first, duration, preceded, predecessor, delay), times, waits, runnable)


@njit
def _sweep(
    graph: tuple[Ints, Floats, Ints, Ints, Floats],
    times: tuple[Floats, Floats, Ints],
    waits: tuple[Ints, Ints],
    runnable: tuple[Ints, Ints, Floats],
) -> int:
    """Compute the arrays of `longest_path` in place, and return the number of runnable jobs.

    `waits` are the first resource that waits for each job, (n,), and the next one of each resource, (R,), -1
    for none. `runnable` are the stack of runnable resources, their next jobs, and when they are free, (R,).
    """
    first, duration, preceded, predecessor, delay = graph
    (start, arrival, binding), (waiting, next_waiting), (stack, position, free) = times, waits, runnable
    # A resource is running, on the stack or in one waiting list, so the stack holds at most R of them.
    height, done = len(stack), 0
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
                ready = start[before] + duration[before] + delay[e]
                if binding[i] < 0 or ready > arrival[i]:
                    arrival[i], binding[i] = ready, before
            if missing >= 0:
                # The job is looked at again from its first predecessor when the resource wakes.
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
    return done
