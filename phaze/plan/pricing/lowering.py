"""Build plans from given stages: lower a model with the layers and layout of each stage.

Ranks are numbered as in Megatron-LM: tensor-parallel ones are adjacent, then data-parallel ones, then stages.
An activation goes to the next stage in t shards and is gathered there (Narayanan et al., SC 2021, Section
4.1); neither stage does anything else during that time. Further properties of the simulated pipeline:

    recompute   full: every block from its input, one after the other; selective: the attention core;
                embedding and head are not recomputed
    gradients   accumulated in memory after every microbatch; synchronised after the last one, or during its
                backward pass (overlap: dp); 2 (d − 1)/d of them per direction, on each network level the
                part that the inner level leaves (the planners count 4 (d − 1)/d); those of the two copies
                of the word embedding are then summed
    update      `update_bytes` per parameter from and to HBM
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.kernels import KernelTimes
from phaze.cost.network.dispatch import Routing
from phaze.layout import ON_DEVICE, Layout, Recompute
from phaze.pipeline.stages import Transfers
from phaze.plan.layers.activations import KEPT, WorkingBytes, copied_bytes, working_bytes
from phaze.plan.layers.costs import HBM, HOST, NETWORK, LayerCost, layer_costs, operator_times, time_together
from phaze.plan.layers.scheduled import LayerSchedules
from phaze.plan.machines import device_of, host_bytes_per_s
from phaze.plan.plan import Execution, Machine, Plan, Stage
from phaze.plan.terms.memory import Room, tensor_limit_bytes
from phaze.plan.terms.overlap import (
    kept_apart,
    lost_share,
    paired_share,
    queues_conflict,
    takes_many_queues,
)
from phaze.plan.terms.state import StateTerms
from phaze.plan.time_limit import Work
from phaze.runtimes.rules import TrainingTask, pairs_passes
from phaze.spec.model import Model
from phaze.spec.models import AnyModel
from phaze.spec.system import Stack
from phaze.workload.models import chip_workload, library_workload
from phaze.workload.workload import Workload

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this number times the tensor-parallel width."""
SECOND_ROUND = 0.5
"""Fraction of speed that kernels lose if some thread blocks run in a second wave (`fixed_shares`)."""


def padded_vocabulary(vocabulary: int, layout: Layout) -> int:
    """Vocabulary size, padded to a multiple of 128 × tp."""
    multiple = VOCABULARY_MULTIPLE * layout.tp
    return -(-vocabulary // multiple) * multiple


@dataclass(frozen=True)
class ModelTraining:
    """Training settings of a model, independent of its layout."""

    model: AnyModel
    sequence: int
    """Tokens per sample."""
    global_batch: int
    flash_attention: bool = False
    """True if attention is one kernel that keeps scores on chip and recomputes them in the backward pass."""
    schedule: str = "1f1b"

    def padded(self, layout: Layout) -> Self:
        """Training with a transformer's vocabulary padded for a layout; other models stay unchanged."""
        if not isinstance(self.model, Model):
            return self
        words = padded_vocabulary(self.model.vocabulary, layout)
        return replace(self, model=self.model.model_copy(update={"vocabulary": words}))

    @property
    def routing(self) -> Routing | None:
        """Expert routing, None for a dense model."""
        experts = self.model.experts if isinstance(self.model, Model) else None
        if experts is None:
            return None
        return Routing(experts.count, experts.per_token, experts.groups, experts.top_groups)


class LoweredLayers(NamedTuple):
    """Model lowered by a layout, with the costs of its layers."""

    workload: Workload
    costs: dict[str, LayerCost]
    """Costs of the distinct layers, by name."""
    stack: Stack
    """Software stack, with the overlap that the number of hardware queues allows."""


class QueueOptions(NamedTuple):
    """Model lowered by a layout for one and, if overlap conflicts, for many hardware queues."""

    one: LoweredLayers
    many: LoweredLayers | None = None
    """None if one number of queues allows all overlap (`queues_conflict`)."""
    longer_s: float = 0.0
    """Time that many queues add to both passes of all layers, in seconds per microbatch."""
    hidden_s: float = 0.0
    """Time of both passes of all layers that many queues overlap with a paired microbatch, in seconds."""


@dataclass(frozen=True, eq=False)
class Lowering:
    """Builder of stages and plans of a model on a machine, with cached layer costs."""

    training: ModelTraining
    machine: Machine
    schedules: dict[int, LayerSchedules] = field(default_factory=dict)
    """Schedules of operators by bytes per element, if the machine's stack schedules them."""
    work: Work = field(default_factory=Work)
    """Work of the search that asks, whose time limit also ends a lowering."""
    _known: dict[tuple[str, bool], QueueOptions] = field(default_factory=dict)
    _working: dict[tuple[Layout, frozenset[tuple[str, Recompute]]], WorkingBytes] = field(
        default_factory=dict
    )

    def layers(self, layout: Layout, *, many: bool | None = None) -> LoweredLayers:
        """Workload of the model under a layout, the costs of its layers, and the software that they use.

        They depend only on `layout.key`, on whether FSDP takes many hardware queues, and on the number of
        queues: `many`, or else those with which a layout is faster.
        """
        options = self.options(layout)
        if options.many is None:
            return options.one
        if many is None:
            hidden_s = self._paired_share(layout) * options.hidden_s
            many = self._may_pair(layout) and hidden_s > options.longer_s
        return options.many if many else options.one

    def options(self, layout: Layout) -> QueueOptions:
        """Workload and layer costs under a layout, for every number of hardware queues that makes sense."""
        key = self._key(layout)
        if key not in self._known:
            self.prepare([layout])
        return self._known[key]

    def pairs(self, layout: Layout) -> bool:
        """True if token dispatch overlaps with the passes of a paired microbatch."""
        return "ep" in self.layers(layout).stack.overlap and self._may_pair(layout)

    def _may_pair(self, layout: Layout) -> bool:
        model = self.training.model
        return isinstance(model, Model) and pairs_passes(layout, model)

    def _paired_share(self, layout: Layout) -> float:
        """Share of a batch's microbatches that are paired with the opposite pass of another one."""
        microbatches = layout.microbatches(self.training.global_batch)
        return float(paired_share(layout.pp, microbatches)) if self._may_pair(layout) else 0.0

    @property
    def known(self) -> int:
        """Number of workloads whose costs are cached."""
        return len(self._known)

    def forget(self) -> None:
        """Free the costs of all workloads; they are recomputed on demand."""
        self._known.clear()

    def _key(self, layout: Layout) -> tuple[str, bool]:
        return layout.key, takes_many_queues(layout, self.machine)

    def prepare(self, layouts: Iterable[Layout]) -> None:
        """Compute the layer costs of several layouts together, which is much faster than one by one."""
        machine = self.machine
        new = {key: layout for layout in layouts if (key := self._key(layout)) not in self._known}
        workloads = {}
        for key, layout in new.items():
            self.work.check()
            workloads[key] = self.workload(layout)
        for width in {layout.bytes_per_element for layout in new.values()}:
            times = self.schedules.get(width) or operator_times(machine, width)
            if isinstance(times, LayerSchedules):
                self.schedules[width] = times
            of_width = {
                key: workload for key, workload in workloads.items() if new[key].bytes_per_element == width
            }
            time_together(of_width.values(), times, machine.stack)
            for key, workload in of_width.items():
                self._known[key] = self._in_queues(workload, new[key], times)

    def workload(self, layout: Layout) -> Workload:
        """Model lowered by a layout: to kernels of a library, or to operators of a static schedule."""
        lower = chip_workload if self.machine.stack.scheduled else library_workload
        return lower(self.training.model, self.training.sequence, layout)

    def _in_queues(
        self, workload: Workload, layout: Layout, times: KernelTimes | LayerSchedules
    ) -> QueueOptions:
        """Layers with their costs in one hardware queue, and in many if some overlap needs them."""
        stack = self.machine.stack
        # Costs without an overlap that this layout cannot have.
        if layout.tp > 1 and kept_apart(layout, self.machine):
            stack = stack.without("tp")
        if layout.ep == 1 or not queues_conflict(layout, self.machine):
            return QueueOptions(self._lowered(workload, stack, times))
        # One queue serves tensor-parallel overlap, several serve token dispatch: price both.
        single = self._lowered(workload, stack.without("ep"), times)
        many = self._lowered(workload, stack.in_many_queues(), times)
        hidden = {
            name: cost.hidden_s(self.overlap_share, self.lost_processors).sum()
            for name, cost in many.costs.items()
        }
        longer_s = sum(_passes_s(many.costs[name]) - _passes_s(single.costs[name]) for name in workload.order)
        return QueueOptions(single, many, longer_s, float(sum(hidden[name] for name in workload.order)))

    def _lowered(
        self, workload: Workload, stack: Stack, times: KernelTimes | LayerSchedules
    ) -> LoweredLayers:
        training, machine = self.training, replace(self.machine, stack=stack)
        costs = layer_costs(
            workload, machine, flash=training.flash_attention, times=times, routing=training.routing
        )
        return LoweredLayers(workload, costs, stack)

    def placed(self, cuts: Sequence[range], layouts: Sequence[Layout]) -> Plan:
        """Plan of a placement, from the layers and the layout of each stage.

        The last stage stores all activations even if the others recompute: its backward pass follows at once.
        """
        recomputed = [None] * (len(cuts) - 1)
        return self.plan_of(cuts, layouts, [*recomputed, 0 if layouts[-1].recompute == "full" else None])

    def plan_of(
        self, cuts: Sequence[range], layouts: Sequence[Layout], recomputed: Sequence[int | None] | None = None
    ) -> Plan:
        """Plan with the given layers and layout for each stage, under the training's schedule.

        Cuts start with the embedding. Layouts may differ by stage in tp and dp. `recomputed` gives the number
        of recomputed blocks of each stage, None or by default all.
        """
        counts = [None] * len(cuts) if recomputed is None else recomputed
        return self.plan(self.stages(zip(cuts, layouts, counts, strict=True)), self.training.schedule)

    def plan(self, stages: Sequence[Stage], schedule: str) -> Plan:
        """Build a plan from these stages, executed as in Megatron-LM."""
        count = self.training.global_batch // stages[0].layout.microbatch
        return Plan(tuple(stages), schedule, count, self.execution(stages[0].layout))

    def execution(self, layout: Layout) -> Execution:
        """Execution settings of a layout's plans, following Megatron-LM."""
        stack = self.machine.stack
        transfers: Transfers = "overlapped" if "pp" in stack.overlap else "occupying"
        # An all-reduce of whole buffers under ZeRO 1 starts only after the last backward pass.
        late = layout.zero == 1 and stack.zero_1 == "all_reduce"
        overlap_sync = 0.0 if late else stack.overlap_share("dp")
        exposed = 1.0 - stack.overlap_share("pp")
        return Execution(transfers, exposed, scattered=True, early_recompute=False, overlap_sync=overlap_sync)

    def hidden_s(self, counts: Sequence[tuple[int, LayerCost]], layout: Layout) -> Floats:
        """Forward and backward seconds per microbatch that overlap with its paired microbatch, (2,).

        The result is a mean over the microbatches of a batch and the ranks of a pipeline.
        """
        hidden: Floats = np.sum(
            [number * cost.hidden_s(self.overlap_share, self.lost_processors) for number, cost in counts],
            axis=0,
        )
        return self._paired_share(layout) * hidden

    @property
    def overlap_share(self) -> float:
        """Fraction of token dispatch that can overlap with compute."""
        return self.machine.stack.overlap_share("ep")

    @property
    def lost_processors(self) -> float:
        """Fraction of SMs that compute loses to concurrent token dispatch."""
        lost = lost_share(self.machine)
        # Blocks that find no free SM run after all others, however few SMs are taken.
        return max(lost, SECOND_ROUND) if lost and device_of(self.machine).fixed_shares else lost

    def state(self, layout: Layout) -> StateTerms:
        """Terms of the model state of a layout's stages."""
        machine, offloaded = self.machine, layout.offloaded.optimizer
        return StateTerms(
            layout.optimizer, layout.precision, machine.stack, machine.hbm_bytes_per_s, offloaded
        )

    def working(self, layers: Sequence[tuple[LayerCost, Recompute]], layout: Layout) -> WorkingBytes:
        """Working memory of a stage in bytes, including framework overhead."""
        # The set of layers decides the peak: equal layers reuse the same memory one after another.
        key = layout, frozenset((cost.layer.name, recompute) for cost, recompute in layers)
        if key not in self._working:
            stack = self.layers(layout).stack
            peak = working_bytes(layers, layout, stack, flash=self.training.flash_attention)
            buffers = self.machine.stack.reserved_gib * GIB
            self._working[key] = replace(peak, work=peak.work + buffers)
        return self._working[key]

    def beside_bytes(self, cost: LayerCost, layout: Layout) -> float:
        """Working memory of a stage with a single layer in bytes, without the layer's own temporaries."""
        activations = cost.kept_bytes("none", layout.offloaded)[1]
        return self.working([(cost, "none")], layout).work - activations

    def limit_bytes(self, layout: Layout, *, room: Room) -> float:
        """Memory limit for a layout's tensors in bytes, with other memory at its upper end or as expected.

        The limit allows for any temporary copies next to the tensors of a stage.
        """
        copied = 0.0
        if room != "expected":
            _, costs, stack = self.layers(layout)
            copied = copied_bytes([cost.layer for cost in costs.values()], layout, stack)
        return tensor_limit_bytes(self.machine, layout, copied, room=room)

    def states_s(self, states_bytes: float, passes_s: float, layout: Layout) -> float:
        """Time per step in which devices wait for optimizer state from the host, in seconds.

        The state returns before the update and leaves during the passes of the next batch (Megatron-Core,
        `OptimizerStateOffloader`).
        """
        if not states_bytes:
            return 0.0
        way_s = states_bytes / host_bytes_per_s(self.machine)
        # Both directions: back before the update, away during the next batch as far as passes cover it.
        return way_s + max(way_s - passes_s * layout.microbatches(self.training.global_batch), 0.0)

    def stages(self, contents: Iterable[tuple[range, Layout, int | None]]) -> list[Stage]:
        """Build stages from their layers, layout and number of recomputed blocks; see `stage`."""
        # Most stages of a pipeline have the same layers, and differ only by their places.
        by_layers: dict[tuple[tuple[str, ...], bool, Layout, int | None], Stage] = {}
        stages = []
        for cut, layout, recomputed in contents:
            order = self.layers(layout).workload.order
            at_end = cut.start == 0 or cut.stop == len(order)
            key = (*order[cut.start : cut.stop],), at_end, layout, recomputed
            if key not in by_layers:
                by_layers[key] = self.stage(cut, layout, recomputed)
            stages.append(replace(by_layers[key], first_layer=cut.start, last_layer=cut.stop - 1))
        return stages

    def stage(self, cut: range, layout: Layout, recomputed: int | None = None) -> Stage:
        """Build the stage with the layers of `cut` under a layout.

        Its first `recomputed` blocks follow the layout's recompute option, by default all blocks.
        """
        return StageLayers.of(self, cut, layout, recomputed).stage()


@dataclass(frozen=True, eq=False)
class StageLayers:
    """Layers of a stage under a layout, with the terms of a stage's price that are sums over them."""

    lowering: Lowering
    layout: Layout
    cut: range
    workload: Workload
    costs: Mapping[str, LayerCost]
    """Costs of the distinct layers of the model, by name."""
    counts: Sequence[tuple[int, LayerCost]]
    """Number and cost of each distinct layer of the stage."""
    options: Sequence[tuple[int, LayerCost, Recompute]]
    """The same with the recompute option of each, which may differ among equal layers."""
    blocks: int
    """Number of layers of the stage without embedding and head."""

    @classmethod
    def of(cls, lowering: Lowering, cut: range, layout: Layout, recomputed: int | None) -> Self:
        """Layers of `cut` under a layout; the first `recomputed` blocks follow its recompute option."""
        workload, costs, _ = lowering.layers(layout)
        names = workload.order[cut.start : cut.stop]
        counts = [(count, costs[name]) for name, count in Counter(names).items()]
        options = list(_recompute_options(names, costs, layout.recompute, recomputed))
        blocks = sum(name not in KEPT for name in names)
        return cls(lowering, layout, cut, workload, costs, counts, options, blocks)

    def stage(self) -> Stage:
        """Stage with these layers, as an input of the pipeline simulation."""
        forward_s, again_s, backward_s, weight_s = self._seconds()
        spent_s = forward_s + again_s + backward_s
        order, cut, state = self.workload.order, self.cut, self._state
        links_s = sum(count * cost.all_links_s(recompute) for count, cost, recompute in self.options)
        sends_s = self.lowering.states_s(self._states_bytes, float(spent_s.sum()), self.layout)
        arriving_bytes = self.costs[order[cut.start]].layer.input_bytes
        departing_bytes = self.costs[order[cut.stop - 1]].layer.output_bytes
        return Stage(
            **self._memory(),
            **self._parameter_bytes(),
            forward_s=float(forward_s.sum()),
            recompute_s=float(again_s.sum()),
            backward_s=float(backward_s.sum()),
            weight_s=weight_s,
            spent_s=tuple(spent_s.tolist()),
            links_s=tuple(map(tuple, np.asarray(links_s).tolist())),
            hbm_shares=_hbm_shares(self.counts, self.costs, self.workload),
            idle_s=_idle_s(self.counts),
            arriving_bytes=arriving_bytes,
            departing_bytes=departing_bytes,
            update_bytes=sum(state.update_bytes(*part) for part in self._trained),
            states_s=sends_s,
            layout=self.layout,
            first_layer=cut.start,
            last_layer=cut.stop - 1,
            pieces=max(self.blocks, 1),
        )

    def _seconds(self) -> tuple[Floats, Floats, Floats, float]:
        """Forward, recompute and backward time by limiting resource, (limits,), and weight-gradient time."""
        lowering, layout, offloaded = self.lowering, self.layout, self.layout.offloaded
        forward_s: Floats = np.sum([count * cost.forward_s for count, cost in self.counts], axis=0)
        backward_s: Floats = np.sum([count * cost.backward_s for count, cost in self.counts], axis=0)
        again_s: Floats = np.sum(
            [count * cost.again_s(recompute) for count, cost, recompute in self.options], axis=0
        )
        weight_s = sum(count * cost.weight_s for count, cost in self.counts)
        if offloaded != ON_DEVICE:
            rate = host_bytes_per_s(lowering.machine)
            waits = [
                (count, cost.waited_s(recompute, offloaded, self.blocks, rate))
                for count, cost, recompute in self.options
            ]
            # Offloaded activations that come late make the device wait for its host.
            forward_s[HOST] += sum(count * wait_s[0] for count, wait_s in waits)
            backward_s[HOST] += sum(count * wait_s[1] for count, wait_s in waits)
        if lowering.pairs(layout):
            hidden_s = lowering.hidden_s(self.counts, layout)
            # The overlapped part of token dispatch leaves the network time that layers were charged.
            forward_s[NETWORK] -= hidden_s[0]
            backward_s[NETWORK] -= hidden_s[1]
        microbatches = layout.microbatches(lowering.training.global_batch)
        added_s = sum(self._state.accumulation_s(*part, microbatches) for part in self._trained)
        # Gradients of a microbatch are added to those of earlier ones in the backward pass.
        backward_s[HBM] += added_s
        return forward_s, again_s, backward_s, weight_s + added_s

    def _memory(self) -> dict[str, float]:
        """Bytes by field of a stage: fixed, per microbatch in flight, and while it is at work."""
        lowering, layout, state = self.lowering, self.layout, self._state
        frozen = sum(count * cost.layer.frozen for count, cost in self.counts)
        stored = [
            (count, cost, cost.kept_bytes(recompute, layout.offloaded, self.blocks)[0])
            for count, cost, recompute in self.options
        ]
        # The microbatch of a concurrent pass has activations of its own.
        blocks = (nbytes for _, cost, nbytes in stored if cost.layer.name not in KEPT)
        paired_bytes = max(blocks, default=0.0) if lowering.pairs(layout) else 0.0
        work = lowering.working([(cost, recompute) for _, cost, recompute in self.options], layout)
        states = [state.device_bytes(*part, pipelined=layout.pp > 1) for part in self._trained]
        return {
            "fixed_bytes": sum(states) + state.frozen_bytes(frozen, layout.zero, layout.shards),
            "stash_bytes": sum(count * nbytes for count, _, nbytes in stored),
            "work_bytes": work.work + paired_bytes,
            "made_bytes": work.made + paired_bytes,
            "copies_bytes": work.copies,
            "states_bytes": self._states_bytes,
        }

    def _parameter_bytes(self) -> dict[str, float]:
        """Bytes of weights and gradients by field of a stage, and the share of experts in them."""
        size = self._state.size
        parameters = sum(count * cost.layer.parameters for count, cost in self.counts)
        trained, experts = self._trained_parameters
        at_end = self.cut.start == 0 or self.cut.stop == len(self.workload.order)
        tied = self.workload.parameters("tied") * (trained == parameters) * at_end
        return {
            "weight_bytes": size.weights * parameters,
            "gradient_bytes": size.gradients * trained,
            "frozen_bytes": size.weights * (parameters - trained),
            "tied_bytes": size.gradients * tied,
            "expert_share": experts / parameters if experts else 0.0,
        }

    @cached_property
    def _state(self) -> StateTerms:
        return self.lowering.state(self.layout)

    @cached_property
    def _trained_parameters(self) -> tuple[int, int]:
        """Number of trained parameters: all, and those of experts."""
        trained = sum(count * cost.layer.trained for count, cost in self.counts)
        return trained, sum(count * cost.layer.groups.get("expert", 0) for count, cost in self.counts)

    @cached_property
    def _trained(self) -> tuple[tuple[int, int, int], ...]:
        """Trained parameters, ZeRO stage, and ranks that shard the states, for dense layers and experts."""
        layout = self.layout
        trained, experts = self._trained_parameters
        return (trained - experts, layout.zero, layout.shards), (experts, layout.zero, layout.expert_shards)

    @cached_property
    def _states_bytes(self) -> float:
        return sum(self._state.host_bytes(*part) for part in self._trained)


@dataclass(frozen=True, eq=False)
class Lowerings:
    """Lowerings of a model on a machine, with the vocabulary padded for each tensor-parallel width."""

    task: TrainingTask
    machine: Machine
    flash: bool = True
    """True if attention keeps its scores on chip."""
    schedules: dict[int, LayerSchedules] = field(default_factory=dict)
    """Schedules of operators by bytes per element, shared by all lowerings."""
    work: Work = field(default_factory=Work)
    """Work of the search that asks."""
    _known: dict[int, Lowering] = field(default_factory=dict)

    def of(self, layout: Layout) -> Lowering:
        """Lowering for the tensor-parallel width of a layout."""
        if layout.tp not in self._known:
            task = self.task
            training = ModelTraining(task.model, task.sequence, task.global_batch, flash_attention=self.flash)
            self._known[layout.tp] = Lowering(
                training.padded(layout), self.machine, self.schedules, self.work
            )
        return self._known[layout.tp]

    def forget(self, most: int) -> None:
        """Clear all cached costs if there are more than `most` workloads."""
        if sum(lowering.known for lowering in self._known.values()) > most:
            for lowering in self._known.values():
                lowering.forget()


def _passes_s(cost: LayerCost) -> float:
    return float(cost.forward_s.sum() + cost.backward_s.sum())


def _hbm_shares(
    counts: Sequence[tuple[int, LayerCost]], costs: Mapping[str, LayerCost], workload: Workload
) -> tuple[float, ...]:
    """HBM-bound fraction of the layers' time: the mean over dense parameters, and over expert parameters.

    Weights and gradients of embedding and head are exchanged next to the neighbouring block.
    """
    # Embedding and head move mostly HBM bytes, but their exchange overlaps with a block.
    neighbours = dict(zip(KEPT, (workload.order[1], workload.order[-2]), strict=True))
    shares = np.array(
        [costs[neighbours.get(cost.layer.name, cost.layer.name)].hbm_share for _, cost in counts]
    )
    experts = np.array([count * cost.layer.groups.get("expert", 0) for count, cost in counts], float)
    trained = np.array([count * cost.layer.trained for count, cost in counts], float)
    return tuple(
        float(parameters @ shares / max(parameters.sum(), 1.0)) for parameters in (trained - experts, experts)
    )


def _idle_s(counts: Sequence[tuple[int, LayerCost]]) -> tuple[float, float]:
    """Time that the device waits for the host in the forward and backward passes of blocks, in seconds.

    Those of embedding and head do not count, because exchanges overlap with blocks.
    """
    blocks = [(count, cost) for count, cost in counts if cost.layer.name not in KEPT]
    forward_s = sum(count * float(cost.forward_s[HOST]) for count, cost in blocks)
    return forward_s, sum(count * float(cost.backward_s[HOST]) for count, cost in blocks)


def _recompute_options(
    names: Sequence[str], costs: Mapping[str, LayerCost], recompute: Recompute, recomputed: int | None
) -> Iterator[tuple[int, LayerCost, Recompute]]:
    """Yield count, cost and recompute option of identical layers; the first blocks use `recompute`."""
    recomputed_by_name = Counter([name for name in names if name not in KEPT][:recomputed])
    for name, count in Counter(names).items():
        for number, option in (
            (recomputed_by_name[name], recompute),
            (count - recomputed_by_name[name], "none"),
        ):
            if number:
                yield number, costs[name], option
