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
ROW, EXPANSIONS = "row", "becomes"
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
    return _enumerate(runtime, task, fixed or {}, runtime.rules)


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
    return _enumerate(runtime, task, fixed or {}, ()).grid


def is_searched(runtime: Runtime, task: TrainingTask, layout: Layout, fixed: Fixed) -> bool:
    """True if the search with these fixed values covers a layout, which must be valid for the runtime."""
    requested = given_values(runtime, task, fixed)[0]
    return (
        ("etp" in fixed or is_searched_etp(layout.tp, layout.ep, layout.etp, task.experts))
        and layout.recompute in requested.recomputes(task.model)
        and layout.cp_kind in requested.cp_kinds
        and all(getattr(layout, name) == fixed.get(name, getattr(Layout(), name)) for name in SHARED_OPTIONS)
    )


def is_searched_etp(tp: int, ep: int, etp: int, experts: int) -> bool:
    """True if the space includes this etp: a divisor of tp, or any if each rank has a single expert.

    Megatron-Core accepts any etp whose product with ep divides tp · cp · dp (`parallel_state`).
    """
    # Other values would be most layouts of a model with many experts, and are not worth their search.
    return tp % etp == 0 or ep == experts


@dataclass(frozen=True, eq=False)
class _Choice:
    """Candidate values of some columns; each row of widths uses a contiguous range of them."""

    columns: Columns
    first: Ints
    count: Ints


def _enumerate(runtime: Runtime, task: TrainingTask, fixed: Fixed, rules: Sequence[Rule]) -> Space:
    """Enumerate the layouts that break none of the given rules.

    Each rule is applied as soon as a row has its columns, which drops the row with all its expansions.
    """
    runtime, pinned, shared = given_values(runtime, task, fixed)
    words = np.arange(len(runtime.recomputes(task.model)))
    words = words[words == pinned.get("recompute", words)]
    widths = _widths(task.devices, pinned)
    choices = _choices(widths, runtime, task, pinned)
    expansions = np.prod([choice.count for choice in choices], axis=0) * len(words)
    columns = {**widths, ROW: np.arange(len(expansions)), EXPANSIONS: expansions}
    illegal = {rule.name: 0 for rule in rules}
    for choice in (None, *choices):
        earlier = columns.keys()
        columns = columns if choice is None else _expand(columns, choice)
        for rule in rules:
            if columns.keys() >= set(rule.columns) and (choice is None or not earlier >= set(rule.columns)):
                broken = rule.broken(task, _grid(columns, runtime, task, shared))
                # A partial layout stands for all layouts that it would be expanded to.
                illegal[rule.name] = int(columns[EXPANSIONS][broken].sum())
                columns = _select(columns, ~broken)
    if not expansions.sum():
        values = ", ".join(f"{name}={value}" for name, value in fixed.items()) or "no value given"
        raise PhazeError(f"{runtime.name}: no layout of {task.devices} devices has {values}")
    grid = _grid(columns, runtime, task, shared)
    # Recompute options come last and stay a mask: a family shares all other columns.
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
        replace(grid.take(legal), recomputes=recomputes), options[legal], int(expansions.sum()), illegal
    )


def given_values(
    runtime: Runtime, task: TrainingTask, fixed: Fixed
) -> tuple[Runtime, dict[str, int], Options]:
    """Runtime with the requested options, fixed values by column, and options shared by all layouts.

    Raises PhazeError for an unknown field or value.
    """
    recompute = runtime.recompute_of(task.model, str(fixed.get("recompute", "none")))
    kinds = runtime.exchanges(str(fixed.get("cp_kind", "")))
    runtime = replace(runtime, cp_kinds=kinds, requested_recomputes=(recompute,))
    pinned = {name: _place(runtime, task, name, fixed[name]) for name in fixed if name not in SHARED_OPTIONS}
    shared = {name: runtime.option_of(name, str(fixed[name])) for name in SHARED_OPTIONS if name in fixed}
    return runtime, pinned, shared


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


def _widths(devices: int, pinned: Mapping[str, int]) -> Columns:
    """Widths tp, cp, pp and dp, one row for every combination whose product is the device count."""
    divisors = _divisors(devices)
    tp, cp, pp = (
        width.ravel()
        for width in np.meshgrid(
            *(divisors if name not in pinned else np.array([pinned[name]]) for name in ("tp", "cp", "pp")),
            indexing="ij",
        )
    )
    columns = _select({"tp": tp, "cp": cp, "pp": pp}, devices % (tp * cp * pp) == 0)
    columns["dp"] = devices // (columns["tp"] * columns["cp"] * columns["pp"])
    return _select(columns, columns["dp"] == pinned["dp"]) if "dp" in pinned else columns


def _choices(
    widths: Columns, runtime: Runtime, task: TrainingTask, pinned: Mapping[str, int]
) -> list[_Choice]:
    """Candidate values of all other columns for every row of widths; columns that rules read come first."""
    every = np.ones(len(widths["tp"]), np.bool_)
    cuts = np.array(runtime.sequence_parallel, np.int64)
    return [
        _experts(widths, task, pinned),
        _free("microbatch", _divisors(task.global_batch), every, pinned),
        _schedules(widths["pp"], runtime, most_stages(task.model, task.devices), pinned),
        _free("zero", np.array(runtime.zeros), widths["dp"] * widths["cp"] > 1, pinned),
        _free("sequence_parallel", cuts, widths["tp"] > 1, pinned),
        _free("cp_kind", np.arange(len(runtime.cp_kinds)), widths["cp"] > 1, pinned),
    ]


def _free(name: str, values: Ints, free: Bools, pinned: Mapping[str, int]) -> _Choice:
    """Choice among all values in rows where the column is free; in other rows only the first value."""
    allowed = values == pinned.get(name, values)
    # Where the column is not free, a fixed value other than the first one leaves no layout.
    zeros = np.zeros(len(free), np.int64)
    return _Choice({name: values[allowed]}, zeros, np.where(free, allowed.sum(), int(allowed[0])))


def _experts(widths: Columns, task: TrainingTask, pinned: Mapping[str, int]) -> _Choice:
    """Choice among all ep and etp that fit into the ranks of a stage."""
    most = task.experts
    keys = np.stack([widths["tp"] * widths["cp"] * widths["dp"], widths["tp"]], axis=1)
    # Many rows have the same numbers of ranks, for which the divisors are listed once.
    distinct, where = np.unique(keys, axis=0, return_inverse=True)
    rows = [
        (key, ep, etp)
        for key, (ranks, tp) in enumerate(distinct.tolist())
        for etp in (_divisors(ranks).tolist() if most else [1])
        for ep in (_divisors(ranks // etp).tolist() if most else [1])
        if ep <= max(most, 1) and ("etp" in pinned or is_searched_etp(tp, ep, etp, most))
    ]
    return _choice_by_key(where, rows, ("ep", "etp"), pinned)


def _schedules(pp: Ints, runtime: Runtime, entries: int, pinned: Mapping[str, int]) -> _Choice:
    """Choice among all schedules that the pipeline allows, with every valid number of virtual stages."""
    rows = [
        (depth, place, vp)
        for depth in np.unique(pp).tolist()
        for place, name in enumerate(runtime.schedules)
        if depth > 1 or name not in PIPELINED
        for vp in _virtual_stages(name, entries // depth)
    ]
    return _choice_by_key(pp, rows, ("schedule", "vp"), pinned)


def _choice_by_key(
    keys: Ints, rows: Sequence[tuple[int, ...]], names: tuple[str, str], pinned: Mapping[str, int]
) -> _Choice:
    """Choice for every key among the rows that begin with it, which have values for the columns `names`."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    for column, name in enumerate(names, 1):
        table = table[table[:, column] == pinned.get(name, table[:, column])]
    first, last = (np.searchsorted(table[:, 0], keys, side) for side in ("left", "right"))
    return _Choice(dict(zip(names, table.T[1:], strict=True)), first, last - first)


def _virtual_stages(schedule: str, most: int) -> range:
    """Numbers of virtual stages per rank that a schedule allows: its minimum, or more up to `most`."""
    least, allowed = SCHEDULES[schedule].chunks
    return range(least, min(allowed, max(most, 1)) + 1)


def _expand(columns: Columns, choice: _Choice) -> Columns:
    """Expand every partial layout into one row per value that a choice allows for it."""
    count = choice.count[columns[ROW]]
    source = np.repeat(np.arange(len(count)), count)
    # Number of each copy within its row, to which the first index of the row's range is added.
    number = np.arange(len(source)) - (np.cumsum(count) - count)[source]
    index = choice.first[columns[ROW]][source] + number
    rows = {name: values[source] for name, values in columns.items()}
    rows[EXPANSIONS] = rows[EXPANSIONS] // count[source]
    return rows | {name: values[index] for name, values in choice.columns.items()}


def _select(columns: Columns, mask: Bools) -> Columns:
    return {name: values[mask] for name, values in columns.items()}


def _grid(columns: Columns, runtime: Runtime, task: TrainingTask, shared: Options) -> LayoutGrid:
    """Build a grid from columns; columns that are not known yet are zero."""
    unknown = np.broadcast_to(np.int64(0), len(columns[ROW]))
    fields: dict[str, Any] = {**shared, **{name: columns.get(name, unknown) for name in COLUMNS}}
    fields["sequence_parallel"] = fields["sequence_parallel"].astype(np.bool_)
    return LayoutGrid(
        **fields,
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
