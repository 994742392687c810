"""Enumerate all layouts for a device count and a runtime's options, and select those it can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.base.errors import PhazeError
from phaze.base.nearest import choices
from phaze.layout import SHARED_OPTIONS, Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.runtimes.grid import COLUMNS, FIXABLE, WORDS, LayoutGrid
from phaze.runtimes.rules import PIPELINED, Rule, Runtime, TrainingTask, most_stages

MOST = 2**31 - 1
"""Maximum value of an integer field."""
ROW, BECOMES = "row", "becomes"
"""Extra columns of partial layouts: index of their row of widths, and number of layouts they expand to."""

Columns = dict[str, Ints]
Fixed = Mapping[str, int | str]
Options = Mapping[str, str | int]
"""Options with one value for all layouts, by name; missing options have their default."""


@dataclass(frozen=True, eq=False)
class Space:
    """Layouts that the runtime can run, grouped by family, and counts of the invalid ones.

    A family has all layouts that differ only in their recompute option.
    """

    families: LayoutGrid
    """One layout per family, with the first of its recompute options."""
    options: Bools
    """Mask of the recompute options that the runtime can run, (families, options)."""
    layouts: int
    """Number of all layouts, valid or not."""
    illegal: dict[str, int]
    """Number of invalid layouts by the first rule that they break, so that each counts once.

    Rules for widths come first, then rules for other choices, and rules for recompute last.
    """

    @property
    def grid(self) -> LayoutGrid:
        """Grid of all layouts that the runtime can run."""
        return self.families.recomputing(self.options)


def legal_space(runtime: Runtime, task: TrainingTask, fixed: Fixed | None = None) -> Space:
    """Enumerate the layouts of `space` that a runtime can run, and count the others."""
    return _enumerated(runtime, task, fixed or {}, runtime.rules)


def space(runtime: Runtime, task: TrainingTask, fixed: Fixed | None = None) -> LayoutGrid:
    """Enumerate all layouts: every tp, cp, pp and dp that use all devices, with every other option.

    Widths are divisors of the device count. vp is at most the number that leaves each virtual stage one
    layer, embedding or head. Microbatch sizes are divisors of the global batch. Experts fold into tp · cp ·
    dp, with etp by `is_searched_etp` unless it is fixed.

    Layouts equivalent to another one are left out: a schedule other than 1f1b without pipeline, a vp that the
    schedule does not allow, sequence parallelism with tp 1, ZeRO of one rank, and another exchange kind with
    cp 1. `fixed` sets values of columns, by name for schedules, recompute options and exchange kinds. Raises
    PhazeError for an unknown column or value, and if no layout is left.
    """
    return _enumerated(runtime, task, fixed or {}, ()).grid


def is_searched(runtime: Runtime, task: TrainingTask, layout: Layout, fixed: Fixed) -> bool:
    """True if the search with these fixed values covers a layout, which must be valid for the runtime."""
    asked = given_values(runtime, task, fixed)[0]
    return (
        ("etp" in fixed or is_searched_etp(layout.tp, layout.ep, layout.etp, task.experts))
        and layout.recompute in asked.recomputes(task.model)
        and layout.cp_kind in asked.cp_kinds
        and all(getattr(layout, name) == fixed.get(name, getattr(Layout(), name)) for name in SHARED_OPTIONS)
    )


def is_searched_etp(tp: int, ep: int, etp: int, experts: int) -> bool:
    """True if the space includes this etp: a divisor of tp, or any if each rank has a single expert.

    Megatron-Core accepts any etp whose product with ep divides tp · cp · dp (`parallel_state`).
    """
    return tp % etp == 0 or ep == experts


@dataclass(frozen=True, eq=False)
class _Choice:
    """Candidate values of some columns; each row of widths uses a contiguous range of them."""

    columns: Columns
    first: Ints
    count: Ints


def _enumerated(runtime: Runtime, task: TrainingTask, fixed: Fixed, rules: Sequence[Rule]) -> Space:
    """Enumerate the layouts that break none of the given rules.

    Each rule is applied as soon as a row has its columns, which drops the row with all its expansions.
    """
    runtime, given, shared = given_values(runtime, task, fixed)
    words = np.arange(len(runtime.recomputes(task.model)))
    words = words[words == given.get("recompute", words)]
    widths = _widths(task.devices, given)
    choices = _choices(widths, runtime, task, given)
    becomes = np.prod([choice.count for choice in choices], axis=0) * len(words)
    columns = {**widths, ROW: np.arange(len(becomes)), BECOMES: becomes}
    illegal = {rule.name: 0 for rule in rules}
    for choice in (None, *choices):
        known = columns.keys()
        columns = columns if choice is None else _chosen(columns, choice)
        for rule in rules:
            if columns.keys() >= set(rule.columns) and (choice is None or not known >= set(rule.columns)):
                broken = rule.broken(task, _grid(columns, runtime, task, shared))
                illegal[rule.name] = int(columns[BECOMES][broken].sum())
                columns = _where(columns, ~broken)
    if not becomes.sum():
        said = ", ".join(f"{name}={value}" for name, value in fixed.items()) or "no value given"
        raise PhazeError(f"{runtime.name}: no layout of {task.devices} devices has {said}")
    grid = _grid(columns, runtime, task, shared)
    options = np.ones((len(grid), len(words)), np.bool_)
    for rule in rules:
        if "recompute" in rule.columns:
            for option, word in enumerate(words.tolist()):
                broken = rule.broken(task, replace(grid, recompute=np.full(len(grid), word)))
                illegal[rule.name] += int((broken & options[:, option]).sum())
                options[:, option] &= ~broken
    legal: Bools = np.asarray(options.any(axis=1))
    recomputes = tuple(grid.recomputes[word] for word in words.tolist())
    return Space(
        replace(grid.take(legal), recomputes=recomputes), options[legal], int(becomes.sum()), illegal
    )


def given_values(
    runtime: Runtime, task: TrainingTask, fixed: Fixed
) -> tuple[Runtime, dict[str, int], Options]:
    """Runtime with the requested options, fixed values by column, and options shared by all layouts.

    Raises PhazeError for an unknown field or value.
    """
    asked = runtime.recompute_of(task.model, str(fixed.get("recompute", "none")))
    kinds = runtime.exchanges(str(fixed.get("cp_kind", "")))
    runtime = replace(runtime, cp_kinds=kinds, asked_recomputes=(asked,))
    given = {name: _place(runtime, task, name, fixed[name]) for name in fixed if name not in SHARED_OPTIONS}
    shared = {name: runtime.option_of(name, str(fixed[name])) for name in SHARED_OPTIONS if name in fixed}
    return runtime, given, shared


def _place(runtime: Runtime, task: TrainingTask, name: str, value: int | str) -> int:
    """Numeric value of a fixed column; for named options, the index of the option."""
    if name not in COLUMNS:
        near = choices(name, FIXABLE, "config/commands.md")
        raise PhazeError(f"{name}: is not a field of a layout; known are {near}")
    words: dict[str, Sequence[int | str]] = {
        "schedule": runtime.schedules,
        "recompute": runtime.recomputes(task.model),
        "cp_kind": runtime.cp_kinds,
        "zero": runtime.zeros,
        "sequence_parallel": runtime.sequence_parallel,
    }
    if name in words and value not in words[name]:
        allowed = ", ".join(str(word).lower() for word in words[name])
        raise PhazeError(f"{name}: must be one of {allowed} with {runtime.name}, got {value}")
    if name in WORDS:
        return words[name].index(value)
    if not isinstance(value, int) or (name not in words and not 1 <= value <= MOST):
        raise PhazeError(f"{name}: must be a whole number from 1 to {MOST}, got {value}")
    return int(value)


def _widths(devices: int, given: Mapping[str, int]) -> Columns:
    """Widths tp, cp, pp and dp, one row for every combination whose product is the device count."""
    divisors = _divisors(devices)
    tp, cp, pp = (
        each.ravel()
        for each in np.meshgrid(
            *(divisors if name not in given else np.array([given[name]]) for name in ("tp", "cp", "pp")),
            indexing="ij",
        )
    )
    columns = _where({"tp": tp, "cp": cp, "pp": pp}, devices % (tp * cp * pp) == 0)
    columns["dp"] = devices // (columns["tp"] * columns["cp"] * columns["pp"])
    return _where(columns, columns["dp"] == given["dp"]) if "dp" in given else columns


def _choices(
    widths: Columns, runtime: Runtime, task: TrainingTask, given: Mapping[str, int]
) -> list[_Choice]:
    """Candidate values of all other columns for every row of widths; columns that rules read come first."""
    every = np.ones(len(widths["tp"]), np.bool_)
    cuts = np.array(runtime.sequence_parallel, np.int64)
    return [
        _experts(widths, task, given),
        _free("microbatch", _divisors(task.global_batch), every, given),
        _schedules(widths["pp"], runtime, most_stages(task.model, task.devices), given),
        _free("zero", np.array(runtime.zeros), widths["dp"] * widths["cp"] > 1, given),
        _free("sequence_parallel", cuts, widths["tp"] > 1, given),
        _free("cp_kind", np.arange(len(runtime.cp_kinds)), widths["cp"] > 1, given),
    ]


def _free(name: str, values: Ints, free: Bools, given: Mapping[str, int]) -> _Choice:
    """Choice among all values in rows where the column is free; in other rows only the first value."""
    kept = values == given.get(name, values)
    zeros = np.zeros(len(free), np.int64)
    return _Choice({name: values[kept]}, zeros, np.where(free, kept.sum(), int(kept[0])))


def _experts(widths: Columns, task: TrainingTask, given: Mapping[str, int]) -> _Choice:
    """Choice among all ep and etp that fit into the ranks of a stage."""
    most = task.experts
    keys = np.stack([widths["tp"] * widths["cp"] * widths["dp"], widths["tp"]], axis=1)
    distinct, where = np.unique(keys, axis=0, return_inverse=True)
    ways = np.array(
        [
            (key, ep, etp)
            for key, (ranks, tp) in enumerate(distinct.tolist())
            for etp in (_divisors(ranks).tolist() if most else [1])
            for ep in (_divisors(ranks // etp).tolist() if most else [1])
            if ep <= max(most, 1) and ("etp" in given or is_searched_etp(tp, ep, etp, most))
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    for name, column in (("ep", 1), ("etp", 2)):
        ways = ways[ways[:, column] == given[name]] if name in given else ways
    first, last = (np.searchsorted(ways[:, 0], where, side) for side in ("left", "right"))
    return _Choice({"ep": ways[:, 1], "etp": ways[:, 2]}, first, last - first)


def _schedules(pp: Ints, runtime: Runtime, entries: int, given: Mapping[str, int]) -> _Choice:
    """Choice among all schedules that the pipeline allows, with every valid number of virtual stages."""
    ways = np.array(
        [
            (depth, place, vp)
            for depth in np.unique(pp)
            for place, name in enumerate(runtime.schedules)
            if depth > 1 or name not in PIPELINED
            for vp in _virtual_stages(name, entries // depth)
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    for name, column in (("schedule", 1), ("vp", 2)):
        ways = ways[ways[:, column] == given[name]] if name in given else ways
    first, last = (np.searchsorted(ways[:, 0], pp, side) for side in ("left", "right"))
    return _Choice({"schedule": ways[:, 1], "vp": ways[:, 2]}, first, last - first)


def _virtual_stages(schedule: str, most: int) -> range:
    """Numbers of virtual stages per rank that a schedule allows: its minimum, or more up to `most`."""
    least, allowed = SCHEDULES[schedule].chunks
    return range(least, min(allowed, max(most, 1)) + 1)


def _chosen(columns: Columns, choice: _Choice) -> Columns:
    """Expand every partial layout into one row per value that a choice allows for it."""
    count = choice.count[columns[ROW]]
    source = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(source)) - (np.cumsum(count) - count)[source]
    way = choice.first[columns[ROW]][source] + number
    found = {name: values[source] for name, values in columns.items()}
    found[BECOMES] = found[BECOMES] // count[source]
    return found | {name: values[way] for name, values in choice.columns.items()}


def _where(columns: Columns, kept: Bools) -> Columns:
    return {name: values[kept] for name, values in columns.items()}


def _grid(columns: Columns, runtime: Runtime, task: TrainingTask, shared: Options) -> LayoutGrid:
    """Build a grid from columns; columns that are not known yet are zero."""
    unknown = np.broadcast_to(np.int64(0), len(columns[ROW]))
    found: dict[str, Any] = {**shared, **{name: columns.get(name, unknown) for name in COLUMNS}}
    found["sequence_parallel"] = found["sequence_parallel"].astype(np.bool_)
    return LayoutGrid(
        **found,
        compute=runtime.compute_of(task.compute),
        load=task.load,
        schedules=runtime.schedules,
        recomputes=runtime.recomputes(task.model),
        cp_kinds=runtime.cp_kinds,
    )


def _divisors(number: int) -> Ints:
    low = np.arange(1, int(number**0.5) + 1)
    low = low[number % low == 0]
    return np.unique(np.concatenate([low, number // low]))
