"""Best time per batch of many architectures at once, for models that are sequences of layers of any kinds.

The same optimum as the dynamic program of `plan.phaze.flush`, for every architecture that gives the layers
other latencies. What fits the memory does not depend on the architecture, nor how many devices a cut takes:
both are worked out once, for the search of `plan.phaze.sequences`. For the chain embedding, L equal blocks,
head an optimum has a simple form, which `plan.phaze.blocks` searches in less time. With s stages and a bound
on the load of the stages in the middle, every middle stage takes as many blocks as that bound and its memory
allow, and what is left is shared between the first and the last stage:

    first stage   embedding and c blocks; alone (c = 0) it makes the next stage start at the first block
    middle stages at most x blocks each, fewer where the memory of their position allows fewer
    last stage    what is left, and the head
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.cost.memory import ParameterBytes
from phaze.layout import Layout
from phaze.pipeline.cuts import Shape, possible_cuts, shape_of
from phaze.pipeline.flushing import Chain, Footprints, Room, Setting, room, useful_widths
from phaze.plan.phaze import blocks, sequences
from phaze.spec.settings import Training
from phaze.spec.system import Scenario

MANY = 100
"""Of how many architectures at least it pays to ask first whether anything fits."""


@dataclass(frozen=True)
class Runs:
    """A model as runs of equal layers, in any order; arrays have one value a kind of layer.

    Bytes are those of one slice.
    """

    counts: tuple[int, ...]
    """Layers of every run."""
    weight_bytes: Floats
    static_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    """Tensor that a layer passes to the next."""
    tensor_parallel: Bools
    kinds: tuple[int, ...] = ()
    """Kind of every run; left out, each is of its own kind."""

    @cached_property
    def layers(self) -> Ints:
        """Return the kind of every layer, in order."""
        return np.repeat(np.array(self.kinds or range(len(self.counts)), np.int64), self.counts)

    def chain(self, forward_s: Floats, backward_s: Floats) -> Chain:
        """Return the chain with the given latencies, one value a kind."""
        starts = np.arange(len(self.layers) - 1)
        return Chain(
            forward_s=forward_s[self.layers],
            backward_s=backward_s[self.layers],
            parameter_bytes=self.weight_bytes[self.layers],
            static_bytes=self.static_bytes[self.layers],
            activation_bytes=self.activation_bytes[self.layers],
            tensor_parallel=self.tensor_parallel[self.layers],
            edges=np.stack([starts, starts + 1], axis=1),
            edge_bytes=self.output_bytes[self.layers][:-1],
        )

    @property
    def is_embedding_blocks_head(self) -> bool:
        """Return whether these are a layer, equal layers of another kind, and a layer of a third."""
        return len(self.counts) == 3 and self.kinds in ((), (0, 1, 2)) and self.counts[::2] == (1, 1)

    def untimed(self) -> Chain:
        """Return the chain without latencies."""
        return self.chain(np.zeros_like(self.weight_bytes), np.zeros_like(self.weight_bytes))


def read_runs(layers: pd.DataFrame, graph: pd.DataFrame, each: ParameterBytes) -> tuple[Runs, list[str]]:
    """Return a model as runs, with the name of every kind of layer; `each` is what a parameter takes."""
    graph = graph.sort_values("position")
    kinds, names = pd.factorize(graph["layer"])
    rows = layers.set_index("layer").loc[names]
    parameters = rows["parameters"].to_numpy(np.float64)
    runs = Runs(
        counts=tuple(int(count) for count in graph["count"]),
        weight_bytes=each.weights * parameters,
        static_bytes=each.static * parameters,
        activation_bytes=rows["activation_bytes"].to_numpy(np.float64),
        output_bytes=rows["output_bytes"].to_numpy(np.float64),
        tensor_parallel=rows["tensor_parallel"].to_numpy(np.bool_),
        kinds=tuple(kinds.tolist()),
    )
    return runs, list(names)


def read_settings(scenario: Scenario, training: Training, layout: Layout) -> list[Setting]:
    """Return what placements have to respect, in the order of `Training.memory_grid`."""
    return [
        Setting.of(scenario, training, layout, hbm_gib, recompute=recompute)
        for hbm_gib, recompute in training.memory_grid
    ]


def best_times(
    runs: Runs,
    forward_s: Floats,
    backward_s: Floats,
    layout: Layout,
    settings: Sequence[Setting],
    at_most_s: float = np.inf,
) -> Floats:
    """Return the best time per batch for all settings and architectures, `at_most_s` where none is better.

    The result is (settings, A), the latencies (A, kinds) are of one layer of each kind. Settings in which the
    same stages fit are worked out once. A limit spares the search for what is not of interest.
    """
    chain = runs.untimed()
    forward, backward = np.ascontiguousarray(forward_s, float), np.ascontiguousarray(backward_s, float)
    known: dict[tuple[object, ...], Floats] = {}
    times = []
    for setting in settings:
        groups = _groups(chain.footprints, setting)
        cluster = (setting.devices, setting.bandwidth_bytes_per_s, setting.recompute)
        key = (*cluster, *(group.key() for group in groups))
        if (
            key not in known
            and len(forward) >= MANY
            and not possible_depths(runs, layout, setting).devices.any()
        ):
            known[key] = np.full(len(forward), at_most_s)
        if key not in known:
            known[key] = np.full(len(forward), at_most_s)
            for group in groups:
                _improve(runs, chain, forward, backward, layout, setting, group, known[key])
        times.append(known[key])
    return np.array(times).reshape(len(settings), len(forward))


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


def possible_depths(runs: Runs, layout: Layout, setting: Setting) -> Depths:
    """Return the depths with a cut that fits, under GPipe with as few microbatches in flight as can be."""
    chain = runs.untimed()
    footprints, shape = chain.footprints, shape_of(chain, layout, setting.devices)
    fitting = room(footprints, setting, int(useful_widths(setting.microbatches, setting.devices)[0].min()))
    fits, taken = possible_cuts(footprints, fitting, shape)
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


def _improve(
    runs: Runs,
    chain: Chain,
    forward: Floats,
    backward: Floats,
    layout: Layout,
    setting: Setting,
    group: _Group,
    times: Floats,
) -> None:
    """Improve the times of all architectures by the best cuts with data widths of the group."""
    order = np.argsort(
        (forward + backward) @ np.bincount(runs.layers, minlength=forward.shape[1]), kind="stable"
    )
    if runs.is_embedding_blocks_head:
        order = np.argsort(forward[:, 1] + backward[:, 1], kind="stable")
    ranked, latencies = times[order], (forward[order], backward[order])
    if runs.is_embedding_blocks_head:
        options = _widths_of_ends(runs, layout, setting.devices, group)
        model = _model(runs, setting, int(np.count_nonzero(options.top.max(axis=1) >= 0)))
        blocks.search(*latencies, model, _memory(group.room, runs.counts[1]), options, ranked)
    else:
        shape = shape_of(chain, layout, setting.devices)
        sequence = _sequence(runs, chain, shape, setting, group.room)
        sequences.search(*latencies, sequence, _options(chain, shape, setting, group), ranked)
    times[order] = ranked


def _model(runs: Runs, setting: Setting, stages: int) -> blocks.Model:
    """Return what the search over blocks needs to know of the model in up to that many stages."""
    transfer, weights = (
        runs.output_bytes / setting.bandwidth_bytes_per_s,
        setting.exchange_s(runs.weight_bytes),
    )
    return blocks.Model(
        blocks=runs.counts[1],
        stages=stages,
        recompute=setting.recompute,
        from_embedding_s=transfer[0],
        between_blocks_s=transfer[1],
        embedding_s=weights[0],
        block_s=weights[1],
        head_s=weights[2],
        every_stage=setting.gradients == "every-stage",
    )


def _memory(fitting: Room, count: int) -> blocks.Memory:
    """Return how many blocks fit each stage of a chain of embedding (position 0), blocks and head."""
    position = np.arange(count + 3)[:, None]
    most = fitting.most_stages
    middle = np.sum(most[2, 3 : count + 2] >= position, axis=1) if count > 1 else np.zeros(len(position), int)
    taken = np.minimum(np.arange(count + 1)[:, None], middle[None, :])
    taken[:, :2] = 0
    return blocks.Memory(
        whole=bool(fitting.last_fits[0]),
        first=np.sum(most[0, 1 : count + 2] >= position, axis=1) - 1,
        second=np.sum(most[1, 2 : count + 2] >= position, axis=1),
        middle=middle,
        last=int(np.count_nonzero(fitting.last_fits[1:])) - 1,
        reach=np.cumsum(taken, axis=1),
    )


def _widths_of_ends(runs: Runs, layout: Layout, devices: int, group: _Group) -> blocks.Options:
    """Return the widest data parallelism for every number of stages and way to end them."""
    embedding, block, head = (bool(flag) for flag in runs.tensor_parallel)
    stages = np.arange(runs.counts[1] + 3)
    top = np.full((len(stages), 4), -1, np.int64)
    for variant in range(4):
        first = embedding or (block and not variant & 1)
        last = head or (block and not variant & 2)
        wide = np.array([layout.tp if flag else 1 for flag in (first, block, last)])
        used = wide[0] + np.maximum(stages - 2, 0) * wide[1] + wide[2]
        used[1] = layout.tp if embedding or block or head else 1
        top[1:, variant] = np.searchsorted(group.widths, devices // used[1:], side="right") - 1
    widest = top.max(axis=1)
    least = np.where(widest >= 0, group.counts[widest] + stages - 1.0, np.inf)
    return blocks.Options(group.counts, group.widths, top, least)


def _options(chain: Chain, shape: Shape, setting: Setting, group: _Group) -> sequences.Options:
    """Return the widest data parallelism of every depth and number of stages on a single device."""
    fits, used = possible_cuts(chain.footprints, group.room, shape)
    widest = np.searchsorted(group.widths, setting.devices // np.maximum(used, 1), side="right") - 1
    widest = np.where(fits & (used <= setting.devices), widest, -1)
    most = widest.max(axis=1)
    least = np.where(most >= 0, group.counts[most] + np.arange(len(most)) - 1.0, np.inf)
    exchange = setting.exchange_s(chain.parameter_bytes)
    wait = np.full(len(most), exchange[0])
    if setting.gradients == "every-stage":
        wait = np.maximum(exchange.max(), exchange.sum() / np.maximum(np.arange(len(most)), 1))
    wait *= 1.0 - sequences.SLACK
    return sequences.Options(group.counts, group.widths, widest, least, most, wait)


def _sequence(runs: Runs, chain: Chain, shape: Shape, setting: Setting, fitting: Room) -> sequences.Sequence:
    """Return what the search needs to know of the layers, their memory and the network."""
    between = runs.output_bytes[runs.layers][:-1] / setting.bandwidth_bytes_per_s
    split = np.append(np.flatnonzero(chain.tensor_parallel), len(chain))
    reach = _reach(fitting.most_stages, shape.stages)
    return sequences.Sequence(
        kinds=runs.layers,
        transfer_s=np.concatenate([[0.0], between, [0.0]]),
        shortest_s=float(min(between, default=0.0)),
        longest_s=float(max(between, default=0.0)),
        exchange_s=setting.exchange_s(np.concatenate([[0.0], np.cumsum(chain.parameter_bytes)])),
        every_stage=setting.gradients == "every-stage",
        recompute=setting.recompute,
        alone=split[np.searchsorted(split, np.arange(len(chain)))],
        singles=np.minimum(np.cumsum(~chain.tensor_parallel[::-1])[::-1], shape.singles),
        reach=reach,
        farthest=np.maximum.accumulate(reach, axis=1),
        last_start=int(np.argmax(fitting.last_fits)) if fitting.last_fits.any() else len(chain),
    )


@njit
def _reach(most_stages: Ints, stages: int) -> Ints:
    """Return the end (s, n) of the longest stage from i on that fits as the s-th from the end."""
    n = len(most_stages)
    reach = np.zeros((stages + 1, n), np.int64)
    for i in range(n):
        end = i
        for s in range(stages, 1, -1):
            while end < n and most_stages[i, end + 1] >= s:
                end += 1
            reach[s, i] = end
    return reach
