"""All layouts of so many devices that a runtime has words for, legal or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.base.errors import PhazeError
from phaze.base.nearest import choices
from phaze.layout import Layout, Offload
from phaze.pipeline.schedules import SCHEDULES
from phaze.runtimes.grid import COLUMNS, WORDS, LayoutGrid
from phaze.runtimes.rules import ENDS, PIPELINED, Rule, Runtime, TrainingTask

MOST = 2**31 - 1
"""Largest value of a field."""
ROW, BECOMES = "row", "becomes"
"""Columns of rows that are still to be chosen from: their row of widths, and how many layouts they are."""

Columns = dict[str, Ints]
Fixed = Mapping[str, int | str]


@dataclass(frozen=True, eq=False)
class Space:
    """Legal layouts by family, and how many others there are.

    A family has all layouts that differ in recomputation alone.
    """

    families: LayoutGrid
    """One layout of each, with the first recompute option."""
    options: Bools
    """Recompute options that the runtime can run, (families, options)."""
    layouts: int
    """Layouts in all, legal or not."""
    illegal: dict[str, int]
    """Layouts that are not, each counted once, by the name of the first rule that it breaks; rules for widths
    come before those for what is chosen within widths, and those for recomputation last."""

    @property
    def grid(self) -> LayoutGrid:
        """Every legal layout."""
        return self.families.recomputing(self.options)


def legal_space(runtime: Runtime, task: TrainingTask, fixed: Fixed | None = None) -> Space:
    """Layouts of `space` that a runtime can run; the others are counted without being listed."""
    return _enumerated(runtime, task, fixed or {}, runtime.rules)


def space(runtime: Runtime, task: TrainingTask, fixed: Fixed | None = None) -> LayoutGrid:
    """Layouts with every choice of widths whose product is the number of devices, and of all else.

    Widths are divisors of the devices; vp goes up to one layer, the embedding or the head a virtual stage;
    microbatches are divisors of the global batch; experts fold into tp · cp · dp, etp as `is_searched_etp`
    says unless it is given. Left out is what is another layout under a second name: a schedule other than
    1f1b without pipeline, vp that the schedule does not allow, sequence parallelism of one slice, ZeRO of one
    rank, another exchange of one context-parallel rank. `fixed` gives values of columns, of those with words
    these.
    Raises PhazeError for a column or a value that there is not, and where nothing is left.
    """
    return _enumerated(runtime, task, fixed or {}, ()).grid


def is_searched(runtime: Runtime, task: TrainingTask, layout: Layout, fixed: Fixed) -> bool:
    """Whether `space` lists a layout that the runtime can run, with these fixed values."""
    asked = given_values(runtime, task, fixed)[0]
    return (
        ("etp" in fixed or is_searched_etp(layout.tp, layout.ep, layout.etp, task.experts))
        and layout.recompute in asked.recomputes(task.model)
        and layout.cp_kind in asked.cp_kinds
        and layout.offload == fixed.get("offload", "none")
    )


def is_searched_etp(tp: int, ep: int, etp: int, experts: int) -> bool:
    """Whether the space has slices of experts: those that divide tp, and more where no rank has two experts.

    Megatron-Core takes any etp whose product with ep divides tp · cp · dp (`parallel_state`).
    """
    return tp % etp == 0 or ep == experts


@dataclass(frozen=True, eq=False)
class _Choice:
    """Values of columns, from which every row of widths takes those of a range."""

    columns: Columns
    first: Ints
    count: Ints


def _enumerated(runtime: Runtime, task: TrainingTask, fixed: Fixed, rules: Sequence[Rule]) -> Space:
    """Layouts that break none of these rules.

    A row is looked at as soon as it has the columns of a rule, and dropped with all that it would become.
    """
    runtime, given, offload = given_values(runtime, task, fixed)
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
                broken = rule.broken(task, _grid(columns, runtime, task, offload))
                illegal[rule.name] = int(columns[BECOMES][broken].sum())
                columns = _where(columns, ~broken)
    if not becomes.sum():
        said = ", ".join(f"{name}={value}" for name, value in fixed.items()) or "no value given"
        raise PhazeError(f"{runtime.name}: no layout of {task.devices} devices has {said}")
    grid = _grid(columns, runtime, task, offload)
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
) -> tuple[Runtime, dict[str, int], Offload]:
    """Values of columns that are fixed, and what waits in the host's memory, of a runtime that also has what
    is asked for by name; PhazeError for a field or a value that there is not.
    """
    asked = runtime.recompute_of(task.model, str(fixed.get("recompute", "none")))
    kinds = runtime.exchanges(str(fixed.get("cp_kind", "")))
    runtime = replace(runtime, cp_kinds=kinds, asked_recomputes=(asked,))
    given = {name: _place(runtime, task, name, fixed[name]) for name in fixed if name != "offload"}
    return runtime, given, runtime.offload_of(str(fixed.get("offload", "none")))


def _place(runtime: Runtime, task: TrainingTask, name: str, value: int | str) -> int:
    """Value of a column that is fixed, a word by its place."""
    if name not in COLUMNS:
        near = choices(name, (*COLUMNS, "offload"), "config/commands.md")
        raise PhazeError(f"{name}: is no field of a layout; there are {near}")
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
    """All tp, cp, pp and dp whose product is the number of devices."""
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
    """Choices within widths, those first that rules look at."""
    every = np.ones(len(widths["tp"]), np.bool_)
    cuts = np.array(runtime.sequence_parallel, np.int64)
    return [
        _experts(widths, task, given),
        _free("microbatch", _divisors(task.global_batch), every, given),
        _schedules(widths["pp"], runtime, task.model.layers + task.model.mtp + ENDS, given),
        _free("zero", np.array(runtime.zeros), widths["dp"] * widths["cp"] > 1, given),
        _free("sequence_parallel", cuts, widths["tp"] > 1, given),
        _free("cp_kind", np.arange(len(runtime.cp_kinds)), widths["cp"] > 1, given),
    ]


def _free(name: str, values: Ints, free: Bools, given: Mapping[str, int]) -> _Choice:
    """Any of the values where a row is free, else the first of them."""
    kept = values == given.get(name, values)
    zeros = np.zeros(len(free), np.int64)
    return _Choice({name: values[kept]}, zeros, np.where(free, kept.sum(), int(kept[0])))


def _experts(widths: Columns, task: TrainingTask, given: Mapping[str, int]) -> _Choice:
    """Ranks that experts are dealt to, and slices of an expert: what folds into the ranks of a stage."""
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
    """Schedules that a pipeline can have, each with every number of virtual stages that it allows."""
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
    """Virtual stages of a rank that a schedule allows, of which those of several are at most so many."""
    least, allowed = SCHEDULES[schedule].chunks
    return range(least, min(allowed, max(most, 1)) + 1)


def _chosen(columns: Columns, choice: _Choice) -> Columns:
    """Every row with each of the values that it may take."""
    count = choice.count[columns[ROW]]
    source = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(source)) - (np.cumsum(count) - count)[source]
    way = choice.first[columns[ROW]][source] + number
    found = {name: values[source] for name, values in columns.items()}
    found[BECOMES] = found[BECOMES] // count[source]
    return found | {name: values[way] for name, values in choice.columns.items()}


def _where(columns: Columns, kept: Bools) -> Columns:
    return {name: values[kept] for name, values in columns.items()}


def _grid(columns: Columns, runtime: Runtime, task: TrainingTask, offload: Offload) -> LayoutGrid:
    """Grid of columns, zeros for those that are not known yet."""
    unknown = np.broadcast_to(np.int64(0), len(columns[ROW]))
    found = {name: columns.get(name, unknown) for name in COLUMNS}
    cut = found.pop("sequence_parallel").astype(np.bool_)
    return LayoutGrid(
        **found,
        offload=offload,
        compute=runtime.compute_of(task.compute),
        load=task.load,
        sequence_parallel=cut,
        schedules=runtime.schedules,
        recomputes=runtime.recomputes(task.model),
        cp_kinds=runtime.cp_kinds,
    )


def _divisors(number: int) -> Ints:
    low = np.arange(1, int(number**0.5) + 1)
    low = low[number % low == 0]
    return np.unique(np.concatenate([low, number // low]))
