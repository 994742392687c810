"""All layouts of so many devices that a runtime has words for, legal or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.base.errors import PhazeError
from phaze.runtimes.grid import COLUMNS, LayoutGrid
from phaze.runtimes.rules import ENDS, PIPELINED, Runtime, TrainingTask

LARGEST_MICROBATCH = 64
"""Samples of the largest microbatch in the space unless one is given, a limit of the search alone."""

Columns = dict[str, Ints]
Fixed = Mapping[str, int | str]


def space(runtime: Runtime, task: TrainingTask, fixed: Fixed | None = None) -> LayoutGrid:
    """Layouts with every choice of widths whose product is the number of devices, and of all else.

    Widths are divisors of the devices; vp goes up to one layer, the embedding or the head a virtual stage;
    microbatches are divisors of the global batch. Left out is what is another layout under a second name: a
    schedule other than 1f1b without pipeline, vp > 1 under another than interleaved, sequence parallelism of
    one slice, ZeRO of one rank. `fixed` gives values of columns, of schedule and recompute their words.
    Raises PhazeError for a column or a value that there is not, and where nothing is left.
    """
    given = {name: _place(runtime, name, value) for name, value in (fixed or {}).items()}
    columns = _widths(task.devices, given)
    columns = _times(columns, "microbatch", _microbatches(task.global_batch, given), given)
    columns = _with_schedules(columns, runtime, task.model.layers + ENDS, given)
    columns = _times(columns, "zero", runtime.zeros, given, alone=columns["dp"] * columns["cp"] == 1)
    cuts = [int(choice) for choice in runtime.sequence_parallel]
    columns = _times(columns, "sequence_parallel", cuts, given, alone=columns["tp"] == 1)
    columns = _times(columns, "recompute", range(len(runtime.recomputes)), given)
    if not len(columns["tp"]):
        said = ", ".join(f"{name}={value}" for name, value in (fixed or {}).items()) or "no value given"
        raise PhazeError(f"{runtime.name}: no layout of {task.devices} devices has {said}")
    cut = columns.pop("sequence_parallel").astype(np.bool_)
    return LayoutGrid(
        **columns, sequence_parallel=cut, schedules=runtime.schedules, recomputes=runtime.recomputes
    )


def _place(runtime: Runtime, name: str, value: int | str) -> int:
    """Value of a column that is fixed, a word by its place."""
    if name not in COLUMNS:
        raise PhazeError(f"{name}: is no field of a layout; there are {', '.join(COLUMNS)}")
    words: dict[str, Sequence[int | str]] = {
        "schedule": runtime.schedules,
        "recompute": runtime.recomputes,
        "zero": runtime.zeros,
        "sequence_parallel": runtime.sequence_parallel,
    }
    if name in words and value not in words[name]:
        allowed = ", ".join(str(word).lower() for word in words[name])
        raise PhazeError(f"{name}: must be one of {allowed} with {runtime.name}, got {value}")
    if name in ("schedule", "recompute"):
        return words[name].index(value)
    if not isinstance(value, int) or (name not in words and value < 1):
        raise PhazeError(f"{name}: must be a whole number >= 1, got {value}")
    return int(value)


def _widths(devices: int, given: Mapping[str, int]) -> Columns:
    """All tp, cp, pp and dp whose product is the number of devices."""
    divisors = _divisors(devices)
    columns: Columns = {"left": np.array([devices])}
    for name in ("tp", "cp", "pp"):
        columns = _times(columns, name, divisors, given)
        columns = _where(columns, columns["left"] % columns[name] == 0)
        columns["left"] = columns["left"] // columns[name]
    columns["dp"] = columns.pop("left")
    return _where(columns, columns["dp"] == given["dp"]) if "dp" in given else columns


def _microbatches(global_batch: int, given: Mapping[str, int]) -> Ints:
    divisors = _divisors(global_batch)
    return divisors if "microbatch" in given else divisors[divisors <= LARGEST_MICROBATCH]


def _with_schedules(columns: Columns, runtime: Runtime, entries: int, given: Mapping[str, int]) -> Columns:
    """Every schedule that a pipeline can have, under interleaved with every number of virtual stages."""
    ways = np.array(
        [
            (pp, place, vp)
            for pp in np.unique(columns["pp"])
            for place, name in enumerate(runtime.schedules)
            if pp > 1 or name not in PIPELINED
            for vp in (range(2, entries // pp + 1) if name == "interleaved" else [1])
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    for name, column in (("schedule", 1), ("vp", 2)):
        if name in given:
            ways = ways[ways[:, column] == given[name]]
    first, last = (np.searchsorted(ways[:, 0], columns["pp"], side) for side in ("left", "right"))
    rows = np.repeat(np.arange(len(columns["pp"])), last - first)
    way = np.arange(len(rows)) - np.repeat(np.cumsum(last - first) - last, last - first)
    found = {name: values[rows] for name, values in columns.items()}
    return {**found, "schedule": ways[way, 1], "vp": ways[way, 2]}


def _times(
    columns: Columns,
    name: str,
    values: Sequence[int] | Ints,
    given: Mapping[str, int],
    alone: Bools | None = None,
) -> Columns:
    """Every row with every value of one more column; where it is alone, with the first value only."""
    choices = np.asarray(values, np.int64)
    rows = np.repeat(np.arange(len(next(iter(columns.values())))), len(choices))
    column = np.tile(choices, len(rows) // max(len(choices), 1))
    kept = np.ones(len(rows), np.bool_) if name not in given else column == given[name]
    if alone is not None:
        kept &= ~alone[rows] | (column == choices[0])
    return {**{key: held[rows[kept]] for key, held in columns.items()}, name: column[kept]}


def _where(columns: Columns, kept: Bools) -> Columns:
    return {name: values[kept] for name, values in columns.items()}


def _divisors(number: int) -> Ints:
    low = np.arange(1, int(number**0.5) + 1)
    low = low[number % low == 0]
    return np.unique(np.concatenate([low, number // low]))
