"""Best time per batch of many architectures at once, for models that are chains of repeated layers.

The same optimum as the dynamic program of `partition`, for every architecture that gives the layers other
latencies. What fits the memory does not depend on the architecture, and neither does which cuts can be the
best; so both are worked out once. For the chain embedding, L equal blocks, head (three runs, the outer ones
of one layer) an optimum has a simple form. With s stages and a bound on the load of the stages in the middle,
every middle stage takes as many blocks as that bound and its memory allow, and what is left is shared between
the first and the last stage:

    first stage   embedding and c blocks; alone (c = 0) it makes the next stage start at the first block
    middle stages at most x blocks each, fewer where the memory of their position allows fewer
    last stage    what is left, and the head

So it is enough to try every s, x and c whose loads can still beat the best time found, each with its best
data width. Chains of other shapes go through the dynamic program, one architecture after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.layout import Layout
from phaze.pipeline.cuts import best_cut, least_worst, shape_of
from phaze.pipeline.flushing import (
    Chain,
    Footprints,
    Room,
    Setting,
    edge_arrays,
    latencies,
    room,
    stage_footprints,
    useful_widths,
)
from phaze.plan.phaze.blocks import PLAN, Memory, Model, Options, search

MANY = 100
"""Of how many architectures at least it pays to ask first whether anything fits."""


@dataclass(frozen=True)
class Runs:
    """A chain of runs of equal layers; arrays have one value a run, bytes are those of one slice."""

    counts: tuple[int, ...]
    weight_bytes: Floats
    static_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    """Tensor that a layer passes to the next."""
    tensor_parallel: Bools

    def chain(self, forward_s: Floats, backward_s: Floats) -> Chain:
        """Return the chain with the given latencies, one value a run."""
        sizes = np.repeat(self.output_bytes, self.counts)[:-1]
        return Chain(
            forward_s=np.repeat(forward_s, self.counts),
            backward_s=np.repeat(backward_s, self.counts),
            weight_bytes=np.repeat(self.weight_bytes, self.counts),
            static_bytes=np.repeat(self.static_bytes, self.counts),
            activation_bytes=np.repeat(self.activation_bytes, self.counts),
            tensor_parallel=np.repeat(self.tensor_parallel, self.counts),
            edges=tuple((i, i + 1, float(size)) for i, size in enumerate(sizes)),
        )


@dataclass(frozen=True)
class Optima:
    """The best placement of every architecture."""

    time_s: Floats
    """Time per batch (A,), infinite where nothing fits."""
    stages: Ints
    data: Ints
    first_layers: Ints
    """Layers of the first stage."""


def best_times(
    runs: Runs,
    forward_s: Floats,
    backward_s: Floats,
    tensor: int,
    settings: Sequence[Setting],
    at_most_s: float = np.inf,
) -> Floats:
    """Return the best time per batch for all settings and architectures, `at_most_s` where none is better.

    The result is (settings, A), the latencies (A, runs) are of one layer of each run. Settings in which the
    same stages fit are worked out once, and for many architectures nothing is searched where nothing fits. A
    limit spares the search for what is not of interest.
    """
    footprints = stage_footprints(runs.chain(np.zeros(len(runs.counts)), np.zeros(len(runs.counts))))
    known: dict[tuple[object, ...], Floats] = {}
    times = []
    for setting in settings:
        groups = _groups(footprints, setting)
        cluster = (setting.devices, setting.bandwidth_bytes_per_s, setting.recompute)
        key = (*cluster, *(group.key() for group in groups))
        if key not in known and len(forward_s) >= MANY and not _fits(runs, tensor, setting):
            known[key] = np.full(len(forward_s), at_most_s)
        if key not in known:
            known[key] = _solve(runs, forward_s, backward_s, tensor, setting, groups, at_most_s).time_s
        times.append(known[key])
    return np.array(times).reshape(len(settings), len(forward_s))


def _fits(runs: Runs, tensor: int, setting: Setting) -> bool:
    return bool(possible_depths(runs, tensor, setting).devices.any())


def best_placements(
    runs: Runs, forward_s: Floats, backward_s: Floats, tensor: int, setting: Setting
) -> Optima:
    """Return the best placement for every architecture; latencies are (A, runs), of one layer of each run."""
    footprints = stage_footprints(runs.chain(np.zeros(len(runs.counts)), np.zeros(len(runs.counts))))
    return _solve(runs, forward_s, backward_s, tensor, setting, _groups(footprints, setting), np.inf)


@dataclass(frozen=True)
class Depths:
    """What fits the memory, whatever the latencies."""

    devices: Ints
    """(s,): fewest devices of a pipeline with s stages, 0 where none fits."""
    last_start: int
    """First layer of the longest last stage that fits."""

    def key(self) -> bytes:
        """Return what tells depths apart."""
        return self.devices.tobytes() + bytes(str(self.last_start), "ascii")


def possible_depths(runs: Runs, tensor: int, setting: Setting) -> Depths:
    """Return the depths with a cut that fits, under GPipe with as few microbatches in flight as can be."""
    chain = runs.chain(np.zeros(len(runs.counts)), np.zeros(len(runs.counts)))
    footprints, shape = chain.footprints, shape_of(chain, Layout(tp=tensor), setting.devices)
    fitting = room(footprints, setting, int(useful_widths(setting.microbatches, setting.devices)[0].min()))
    last, free = np.where(fitting.last_fits, 0.0, np.inf), np.zeros_like(footprints.constant_bytes)
    dp = least_worst(last, free, free, fitting.most_stages, footprints.single, shape.stages, shape.singles)
    fits = np.isfinite(dp[:, :, 0])
    depth, single = np.indices(fits.shape)
    taken = depth * shape.tensor - single * (shape.tensor - 1)
    devices = np.where(fits, taken, setting.devices + 1).min(axis=1)
    fewest = np.where(devices <= setting.devices, devices, 0).astype(np.int64)
    return Depths(fewest, int(np.argmax(fitting.last_fits)) if fitting.last_fits.any() else len(chain))


@dataclass(frozen=True)
class _Group:
    """Data widths for which the same stages fit."""

    room: Room
    counts: Ints
    widths: Ints

    def key(self) -> tuple[bytes, ...]:
        """Return what tells groups apart."""
        arrays = (self.room.most_stages, self.room.last_fits, self.counts, self.widths)
        return tuple(array.tobytes() for array in arrays)


def _groups(footprints: Footprints, setting: Setting) -> list[_Group]:
    """Return the useful data widths, together where the same stages fit: all of them under 1F1B."""
    counts, widths = useful_widths(setting.microbatches, setting.devices)
    if setting.schedule == "1f1b":
        return [_Group(room(footprints, setting, setting.microbatches), counts, widths)]
    groups: dict[bytes, list[int]] = {}
    rooms = [room(footprints, setting, int(count)) for count in counts]
    for w, fitting in enumerate(rooms):
        groups.setdefault(fitting.most_stages.tobytes() + fitting.last_fits.tobytes(), []).append(w)
    return [_Group(rooms[ws[0]], counts[ws], widths[ws]) for ws in groups.values()]


def _solve(
    runs: Runs,
    forward_s: Floats,
    backward_s: Floats,
    tensor: int,
    setting: Setting,
    groups: list[_Group],
    at_most_s: float,
) -> Optima:
    forward, backward = np.ascontiguousarray(forward_s, float), np.ascontiguousarray(backward_s, float)
    times, plans = np.full(len(forward), at_most_s), np.zeros((len(forward), PLAN), np.int64)
    solve = _solve_blocks if _is_embedding_blocks_head(runs) else _solve_chain
    for group in groups:
        solve(runs, forward, backward, tensor, setting, group, times, plans)
    return Optima(times, plans[:, 0], plans[:, 1], plans[:, 2])


def _is_embedding_blocks_head(runs: Runs) -> bool:
    return len(runs.counts) == 3 and runs.counts[0] == runs.counts[2] == 1


def _solve_blocks(
    runs: Runs,
    forward: Floats,
    backward: Floats,
    tensor: int,
    setting: Setting,
    group: _Group,
    times: Floats,
    plans: Ints,
) -> None:
    """Improve times and plans by the search over cuts of embedding, blocks and head."""
    blocks, bandwidth = runs.counts[1], setting.bandwidth_bytes_per_s
    options = _options(runs, tensor, setting.devices, group)
    stages = int(np.count_nonzero(options.top.max(axis=1) >= 0))
    weights = setting.exchange_s(runs.weight_bytes)
    model = Model(
        blocks, stages, setting.recompute,
        runs.output_bytes[0] / bandwidth, runs.output_bytes[1] / bandwidth,
        weights[0], weights[1], weights[2], setting.gradients == "every-stage",
    )  # fmt: skip
    found = np.zeros_like(plans)
    order = np.argsort(forward[:, 1] + backward[:, 1], kind="stable")
    bests = times[order]
    search(forward[order], backward[order], model, _memory(group.room, blocks), options, bests, found)
    times[order], found[order] = bests, found.copy()
    better = found[:, 0] > 0
    plans[better, :2] = found[better, :2]
    plans[better, 2] = np.where(found[better, 0] > 1, 1 + found[better, 2], blocks + 2)


def _memory(fitting: Room, blocks: int) -> Memory:
    """Return how many blocks fit each stage of a chain of embedding (position 0), blocks and head."""
    position = np.arange(blocks + 3)[:, None]
    most = fitting.most_stages
    middle = (
        np.sum(most[2, 3 : blocks + 2] >= position, axis=1) if blocks > 1 else np.zeros(len(position), int)
    )
    taken = np.minimum(np.arange(blocks + 1)[:, None], middle[None, :])
    taken[:, :2] = 0
    return Memory(
        whole=bool(fitting.last_fits[0]),
        first=np.sum(most[0, 1 : blocks + 2] >= position, axis=1) - 1,
        second=np.sum(most[1, 2 : blocks + 2] >= position, axis=1),
        middle=middle,
        last=int(np.count_nonzero(fitting.last_fits[1:])) - 1,
        reach=np.cumsum(taken, axis=1),
    )


def _options(runs: Runs, tensor: int, devices: int, group: _Group) -> Options:
    """Return the widest data parallelism for every number of stages and way to end them."""
    embedding, block, head = (bool(flag) for flag in runs.tensor_parallel)
    stages = np.arange(runs.counts[1] + 3)
    top = np.full((len(stages), 4), -1, np.int64)
    for variant in range(4):
        first = embedding or (block and not variant & 1)
        last = head or (block and not variant & 2)
        wide = np.array([tensor if flag else 1 for flag in (first, block, last)])
        used = wide[0] + np.maximum(stages - 2, 0) * wide[1] + wide[2]
        used[1] = tensor if embedding or block or head else 1
        top[1:, variant] = np.searchsorted(group.widths, devices // used[1:], side="right") - 1
    widest = top.max(axis=1)
    least = np.where(widest >= 0, group.counts[widest] + stages - 1.0, np.inf)
    return Options(group.counts, group.widths, top, least)


def _solve_chain(
    runs: Runs,
    forward: Floats,
    backward: Floats,
    tensor: int,
    setting: Setting,
    group: _Group,
    times: Floats,
    plans: Ints,
) -> None:
    """Improve times and plans by the dynamic program."""
    chain = runs.chain(forward[0], backward[0])
    footprints, shape = stage_footprints(chain), shape_of(chain, Layout(tp=tensor), setting.devices)
    sources, targets, sizes = edge_arrays(chain.edges)
    _dynamic_program(
        np.repeat(forward, runs.counts, axis=1), np.repeat(backward, runs.counts, axis=1),
        sources, targets, sizes / setting.bandwidth_bytes_per_s, setting.recompute,
        group.room.most_stages, group.room.last_fits, footprints.single,
        setting.exchange_s(footprints.weight_bytes), setting.gradients == "every-stage",
        shape.tensor, setting.devices, group.counts, group.widths, shape.stages, shape.singles, times, plans,
    )  # fmt: skip


@njit
def _dynamic_program(
    forward: Floats,
    backward: Floats,
    sources: Ints,
    targets: Ints,
    transfers: Floats,
    recompute: bool,
    most_stages: Ints,
    last_fits: Bools,
    single: Bools,
    exchange: Floats,
    every_stage: bool,
    tensor: int,
    devices: int,
    counts: Ints,
    widths: Ints,
    stages: int,
    singles: int,
    times: Floats,
    plans: Ints,
) -> None:
    for a in range(len(times)):
        plain, recomputed = latencies(forward[a], backward[a], sources, targets, transfers)
        load = recomputed if recompute else plain
        last = np.where(last_fits, plain[:, -1], np.inf)
        time, d, s, _, j, _ = best_cut(
            last, load, most_stages, single, exchange, every_stage, tensor, devices, counts, widths,
            1, stages, singles, times[a],
        )  # fmt: skip
        if time < times[a]:
            times[a] = time
            plans[a, 0], plans[a, 1], plans[a, 2] = s, d, j
