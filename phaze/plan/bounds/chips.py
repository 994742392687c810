"""Lower bounds on the step time of many chips at once, whatever their layout, and groups with common bounds.

Each pipeline rank runs both passes of its layers for every microbatch, without overlap with one another. The
mean over the ranks of a layout with N devices, a global batch of B samples, and layers that take u seconds
for a microbatch of b samples is a lower bound on a step:

    T ≥ B / (dp b) · Σ u / pp = B · tp · cp / (N b) · Σ u

Here u is the lower bound of a layer's operators on the cores (`least_latencies`), so that no schedule is
needed: the bound holds for every schedule, the shortest one included. It includes the exchanges of a layer's
ranks, as far as no computation hides them. The pipeline, gradients, recomputation and memory are left out:
the bounds of a single chip (`bounds.layouts`) have them.

Chips that differ only in the fields of `GROWING` have a common bound: that of a chip with the largest value
of each, the envelope. More cores, a larger buffer and more HBM never make an operator slower
(`cost.mapper.loads`), so that no shortest schedule of a layer is longer. Every layout that fits one of the
chips fits the envelope. HBM traffic of concurrent collectives is left out, because it slows the operators
that HBM limits, and on a larger chip these are more of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.progress import counted
from phaze.plan.bounds.shard_work import ELEMENT_BYTES, microbatches_of, shard_work, shards_of
from phaze.plan.layers.costs import Clocked
from phaze.plan.layers.scheduled import LayerSchedules, WorkGraphs
from phaze.plan.plan import Machine
from phaze.plan.question import PlanQuestion
from phaze.plan.terms.overlap import least_exposed_s
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.system import Device

if TYPE_CHECKING:
    from scipy.sparse import csr_array

AT_ONCE = 1_000_000
"""Maximum number of pairs of a graph and a chip that are bounded in one batch, which limits memory use."""
GROWING = ("num_tc", "num_vc", "glb_mib", "hbm_gib")
"""Fields of which more never makes a step slower, in the order in which groups of chips are split."""


@dataclass(frozen=True)
class ChipGroup:
    """Chips that differ only in the fields of `GROWING`, with a common lower bound."""

    places: tuple[int, ...]
    """Indices of the chips."""
    envelope: Device
    """Chip with the largest value of each of these fields; a single chip is its own."""
    bound_s: float = 0.0
    """Lower bound on the step time on each of the chips, in seconds."""

    def envelope_machine(self, machine: Machine) -> Machine:
        """Machine with the envelope, on which no layout is slower than on any of the chips."""
        return replace(machine.with_device(self.envelope), traffic=False)

    def parts(self, devices: Sequence[Device]) -> list[ChipGroup]:
        """Smaller groups, one per value of the first field in which the chips differ, with the same bound."""
        for name in GROWING:
            by_value: dict[float, list[int]] = defaultdict(list)
            for place in self.places:
                by_value[getattr(devices[place], name)].append(place)
            if len(by_value) > 1:
                return [_group(devices, places, self.bound_s) for places in by_value.values()]
        # Chips that are equal in all but their names.
        return [ChipGroup((place,), devices[place], self.bound_s) for place in self.places]


def groups_of(devices: Sequence[Device]) -> list[ChipGroup]:
    """The fewest groups of chips, not yet bounded."""
    alike: dict[str, list[int]] = defaultdict(list)
    for place, device in enumerate(devices):
        alike[device.model_dump_json(exclude={"name", "area_mm2", *GROWING})].append(place)
    return [_group(devices, places) for places in alike.values()]


def _group(devices: Sequence[Device], places: Sequence[int], bound_s: float = 0.0) -> ChipGroup:
    first = devices[places[0]]
    largest = {name: max(getattr(devices[place], name) for place in places) for name in GROWING}
    name = first.name if len(places) == 1 else f"{len(places)} chips like {first.name}"
    return ChipGroup(tuple(places), first.model_copy(update={**largest, "name": name}), bound_s)


@dataclass(frozen=True)
class ShardBounds:
    """Lower bounds on the step time of a planning request on chips, over the layouts of a grid."""

    question: PlanQuestion
    """Request with the model, the batch and the stack; it may be on any device."""
    grid: LayoutGrid

    def of(self, devices: Sequence[Device]) -> Floats:
        """Lower bound on the step time on every device, over all layouts, in seconds, (D,)."""
        parts = -(-len(devices) * len(self._shards.graphs) // AT_ONCE)
        places = np.array_split(np.arange(len(devices)), min(parts, len(devices)))
        bounds_s = (
            self._shards_s([devices[place] for place in part]).min(axis=0)
            for part in counted(places, "chips")
        )
        return np.concatenate([*bounds_s])

    @property
    def graphs(self) -> int:
        """Number of distinct graphs of operators that every chip is bounded by."""
        return len(self._shards.graphs)

    def families_s(self, device: Device) -> Floats:
        """Lower bound on the step time of every layout of the grid on a device, in seconds, (F,)."""
        bounds_s: Floats = self._shards_s([device])[self._shards.where, 0]
        return bounds_s

    def _shards_s(self, devices: Sequence[Device]) -> Floats:
        """Lower bound on the step time of every shard on every device, in seconds, (S, D)."""
        shards = self._shards
        schedules = LayerSchedules(tuple(devices), self.question.machine.vector_cycles, ELEMENT_BYTES)
        bounds_s: Floats = shards.counts @ schedules.least_s(shards.graphs) + shards.sent_s[:, None]
        return bounds_s

    @cached_property
    def _shards(self) -> _Shards:
        """Operators of all shards, with how often each runs in a step."""
        from scipy.sparse import diags_array  # slow to import, and searches without chips need none

        task, machine = self.question.task, self.question.machine
        layouts, where = shards_of(self.grid)
        work, sent_s = shard_work(task.model, task.sequence, tuple(layouts)), np.zeros(len(layouts))
        # A microbatch of a layer occupies tp · cp of the devices, which share layers and batch.
        shares = np.array([microbatches_of(layout, task) / task.devices for layout in layouts])
        schedules = LayerSchedules((), {}, ELEMENT_BYTES)
        for shard, (layout, sent) in enumerate(zip(layouts, work.sent, strict=True)):
            clocked = Clocked(machine, layout, schedules, self.question.lowering(layout).training.routing)
            sent_s[shard] = shares[shard] * sum(
                number * least_exposed_s(clocked.by_axis([part]), layout, machine)
                for part, number in sent.items()
            )
        return _Shards(work.graphs, diags_array(shares) @ work.counts, sent_s, where)


class _Shards(NamedTuple):
    """Operators and exchanges of the layers of all shards in a step."""

    graphs: WorkGraphs
    counts: csr_array
    """How often each pipeline rank runs each graph in a step, in the mean, (S, G)."""
    sent_s: Floats
    """Exposed time of the exchanges of layers in a step, in seconds, (S,)."""
    where: Ints
    """Shard of every layout of the grid, (F,)."""
