"""Costs of a model's layers on one tensor-parallel rank: kernels, and collectives between them.

Tensor-parallel collectives overlap if the software stack supports it (`Stack.overlap`). One always overlaps:
with sequence parallelism the backward pass gathers a stored input again, during the product that computes the
gradient of that input (Korthikanti et al. 2023, Section 4.2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import cast

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.kernels import KERNEL_LIMITS, KernelTimes, kernels_of
from phaze.cost.network.dispatch import Routing, dispatch_by_level, dispatch_s, dispatched_bytes
from phaze.cost.network.network import Kind
from phaze.cost.products import cast_bytes
from phaze.layout import (
    RECOMPUTES,
    Axis,
    Group,
    Layout,
    Offloaded,
    Recompute,
    modules_of,
)
from phaze.plan.layers.activations import (
    KEPT,
    SCAN,
    LayerMemory,
    kept_by,
)
from phaze.plan.layers.experts import experts_of, run_alone
from phaze.plan.layers.kernels import (
    NO_ATTENTION,
    FusedPass,
    fused_attention,
    in_steps_of,
    moves_of,
    recomputed_in_scans,
    scan_products_s,
    unfused,
    without_fused_scans,
    without_sums,
)
from phaze.plan.layers.launches import Launched, casts_of, precisions_of
from phaze.plan.layers.scheduled import LayerSchedules, edges_of
from phaze.plan.machines import device_of, slowest_device
from phaze.plan.plan import Machine
from phaze.plan.terms.overlap import MOVED, exposed_s, hbm_share, moved_s
from phaze.spec.system import Device, Stack
from phaze.workload.lower.attention import kept_with_flash
from phaze.workload.operators import LayerPass, Operator, Part
from phaze.workload.primitives import Region
from phaze.workload.workload import DIRECTIONS, Layer, Workload

COMPUTE, VECTOR, HBM, NETWORK, START, HOST = map(
    KERNEL_LIMITS.index, ("compute", "vector", "hbm", "network", "kernel_start", "host")
)
MOST_DEVICES = 8
"""Maximum number of devices, at the speeds of a stack and a cluster size, whose kernel times are cached."""


@dataclass(frozen=True, eq=False)
class LayerCost(LayerMemory):
    """Costs of a layer for one microbatch; times are in seconds by limiting resource, (limits,)."""

    forward_s: Floats
    backward_s: Floats
    core_s: Floats
    """Part of the forward time that selective recomputation repeats."""
    weight_s: float
    """Backward time of the GEMMs that compute weight gradients, in seconds."""
    regions_s: Callable[[frozenset[Region]], Floats]
    """Function from model regions to the forward time of their operators, (limits,)."""
    links_s: Floats
    """Link time of collectives by network level, forward and backward, (2, levels)."""
    exchanges_s: Floats = field(default_factory=lambda: np.zeros((2, 2)))
    """Time of the first and the second all-to-all of token dispatch, forward and backward, (2, 2)."""
    experts_s: Floats = field(default_factory=lambda: np.zeros(2))
    """Compute time between the two all-to-alls, forward and backward, (2,)."""
    exchanges_hbm_s: Floats = field(default_factory=lambda: np.zeros((2, 2)))
    """HBM time of the bytes that the all-to-alls move, in seconds, (2, 2)."""
    unused_s: Floats = field(default_factory=lambda: np.zeros(len(KERNEL_LIMITS)))
    """Part of the forward time that full recomputation leaves out, (limits,)."""

    @property
    def hbm_share(self) -> float:
        """HBM-bound fraction of the time of both passes."""
        return hbm_share(self.forward_s + self.backward_s)

    def hidden_s(self, share: float, held_processors: float) -> Floats:
        """Forward and backward time, (2,), that overlaps with the passes of a paired microbatch.

        Layers are paired, the forward pass of one with the backward pass of another. Each all-to-all overlaps
        with one piece of the other pass: dispatch overlaps with the experts of the backward pass, and the
        combine with the rest of its compute. Gradient dispatch overlaps with the compute before the experts
        of the forward pass, and its combine with these experts (Megatron-Core,
        `TransformerLayerSchedulePlan.run`). The other pass is slowed by the processors that the all-to-all
        occupies and by the HBM bytes it moves. At most a fraction `share` of each all-to-all overlaps.
        """
        passes = np.array(
            [float(seconds.sum() - seconds[NETWORK]) for seconds in (self.forward_s, self.backward_s)]
        )
        other_s = passes - self.experts_s
        concurrent_s = np.array([[self.experts_s[1], other_s[1]], [other_s[0], self.experts_s[0]]])
        # What the collective takes from the other pass is no gain: its SMs, and waits for its HBM bytes.
        slowed_s = (1.0 - held_processors) * self.exchanges_s - self.hbm_share * self.exchanges_hbm_s
        overlapped_s: Floats = np.clip(share * slowed_s, 0.0, concurrent_s).sum(axis=1)
        return overlapped_s

    def again_s(self, recompute: Recompute) -> Floats:
        """Recompute time before the backward pass, in seconds by limiting resource, (limits,)."""
        if recompute == "none" or self.layer.name in KEPT:
            return np.zeros_like(self.core_s)
        if recompute in RECOMPUTES:
            return self.forward_s - self.unused_s if recompute == "full" else self.core_s
        return self.regions_s(modules_of(recompute))

    def all_links_s(self, recompute: Recompute) -> Floats:
        """Link time of collectives, including recomputed ones, in seconds, (2, levels)."""
        recomputed = recompute == "full" and self.layer.name not in KEPT
        links_s: Floats = self.links_s + recomputed * np.stack(
            [np.zeros_like(self.links_s[0]), self.links_s[0]]
        )
        return links_s

    def waited_s(
        self, recompute: Recompute, offloaded: Offloaded, blocks: int, bytes_per_s: float
    ) -> tuple[float, float]:
        """Exposed time of transfers to and from host memory, in the forward and backward pass.

        It is the part of a transfer that takes longer than the concurrent pass. If only some blocks are
        offloaded, their transfers are spread over all blocks (Transformer Engine,
        `AsyncDoubleBufferGroupOffloadHandler`).
        """
        waiting = self.waiting_bytes(recompute, offloaded) * offloaded.part(blocks)
        sent_s = waiting / bytes_per_s if waiting else 0.0
        # A transfer to the host overlaps with the forward pass, one back with the recomputing backward pass.
        again_s = float(self.again_s(recompute).sum())
        forward_s, backward_s = float(self.forward_s.sum()), again_s + float(self.backward_s.sum())
        return max(sent_s - forward_s, 0.0), max(sent_s - backward_s, 0.0)


def operator_times(machine: Machine, bytes_per_element: int) -> KernelTimes | LayerSchedules:
    """Time model of operators on a machine's device: kernels of its software stack, or a static schedule."""
    if machine.stack.scheduled:
        return LayerSchedules((slowest_device(machine),), machine.vector_cycles, bytes_per_element)
    return kernel_times(machine, bytes_per_element)


def kernel_times(machine: Machine, bytes_per_element: int) -> KernelTimes:
    """Kernel-time model for a machine's device and software stack.

    If the stack's products accumulate weight gradients, these are read and written in their own precision
    instead of being written in the precision of other results.
    """
    stack = machine.stack
    gradient = max(stack.gradient_bytes, bytes_per_element)
    # Read and write in the gradients' precision replace one write in the precision of results.
    added = 2.0 * gradient - bytes_per_element if stack.fused_gradients else 0.0
    cycles = tuple(machine.vector_cycles.items())
    times = _shared_times(slowest_device(machine), cycles, bytes_per_element, added)
    times.trim()
    return times


@lru_cache(maxsize=MOST_DEVICES)
def _shared_times(
    device: Device, cycles: tuple[tuple[tuple[str, str], float], ...], width: int, added_bytes: float
) -> KernelTimes:
    """Kernel times of a device, shared by all machines with it; independent of network and overlap."""
    return KernelTimes(device, dict(cycles), width, added_bytes)


def _operators_in(workload: Workload) -> list[Operator]:
    passes = (layer.pass_of(direction) for layer in workload.layers for direction in DIRECTIONS)
    return [operator for layer_pass in passes for operator in layer_pass.operators]


def time_together(workloads: Iterable[Workload], times: KernelTimes | LayerSchedules, stack: Stack) -> None:
    """Compute the times of the operators of several workloads at once, much faster than one by one."""
    if isinstance(times, LayerSchedules):
        times.prepare(
            (layer.pass_of(direction), workload.layout)
            for workload in workloads
            for layer in workload.layers
            for direction in DIRECTIONS
        )
        return
    operators = [operator for workload in workloads for operator in _operators_in(workload)]
    owned = [(operator, kernels_of(operator)) for operator in operators]
    kernels = [kernel for _, operator_kernels in owned for kernel in operator_kernels]
    moves = moves_of(owned, stack, times.device, in_steps=False)
    times.of(kernels, moves=moves, experts=experts_of(operators, stack))


def layer_costs(
    workload: Workload,
    machine: Machine,
    *,
    flash: bool = False,
    times: KernelTimes | LayerSchedules | None = None,
    routing: Routing | None = None,
) -> dict[str, LayerCost]:
    """Costs of a workload's distinct layers by name; `times` are known times of operators.

    `routing` gives the experts of a token; without it all experts receive the same number of tokens.
    """
    clocked = Clocked(
        machine, workload.layout, times or operator_times(machine, workload.layout.bytes_per_element), routing
    )
    # A static schedule has fused attention as one of its operators.
    cost = _with_flash_attention if flash and not machine.stack.scheduled else _plainly
    layers = [kept_by(machine.stack, layer, workload.layout) for layer in workload.layers]
    # Embedding and head are computed in half precision under every recipe of lower precision.
    half_precision = replace(clocked, layout=replace(workload.layout, compute="bf16"))
    costs = [
        _with_exchanges(cost(stored, half_precision if stored.name in KEPT else clocked), clocked)
        for stored in layers
    ]
    if machine.stack.stops_early:
        costs = [replace(stored, unused_s=_last_product_s(stored.layer, clocked)) for stored in costs]
    return {stored.layer.name: stored for stored in costs}


def _last_product_s(layer: Layer, clocked: Clocked) -> Floats:
    """Time of a dense layer's last forward GEMM, (limits,); 0 for the experts' ones."""
    products = [operator for operator in layer.forward.operators if operator.core == "tensor"]
    if layer.name in KEPT or not products or layer.groups.get("expert"):
        return np.zeros(len(KERNEL_LIMITS))
    return _seconds((products[-1],), clocked)[0]


@dataclass(frozen=True, eq=False)
class Clocked:
    """Machine, layout and kernel-time model that determine the times of kernels and collectives."""

    machine: Machine
    layout: Layout
    times: KernelTimes | LayerSchedules
    routing: Routing | None = None
    """Routing of tokens to experts, if known."""
    passes: tuple[LayerPass, ...] = ()
    """Passes of the layer whose operators are timed; static schedules follow their edges."""

    @property
    def kernels(self) -> KernelTimes:
        """Times of kernels, which a software stack launches one by one."""
        assert isinstance(self.times, KernelTimes)
        return self.times

    def sent_s(self, part: Part) -> float:
        """Time of a collective without contention; a ring is as slow as its longest hop."""
        network, group = self.machine.network, self.layout.group(cast(Axis, part.axis))
        if routing := self._once(part):
            return dispatch_s(network, part.network_bytes, group, routing)
        # The farthest hop of a ring decides, half-way around the group.
        if part.kind == "send":
            group = Group(2, group.stride * (group.ranks // 2))
        return network.seconds(cast(Kind, part.kind), part.network_bytes, group)

    def moved_s(self, part: Part) -> float:
        """HBM time of the bytes that a collective moves, in seconds."""
        machine, group = self.machine, self.layout.group(cast(Axis, part.axis))
        if routing := self._once(part):
            sent = dispatched_bytes(machine.network, part.network_bytes, group, routing)
            return machine.traffic * MOVED * sum(sent) / machine.hbm_bytes_per_s
        return moved_s(machine, cast(Kind, part.kind), part.network_bytes, group.ranks)

    def by_level_s(self, part: Part) -> Floats:
        """Time of a collective on the links of each network level, in seconds, (levels,)."""
        network, group = self.machine.network, self.layout.group(cast(Axis, part.axis))
        if routing := self._once(part):
            return np.array(dispatch_by_level(network, part.network_bytes, group, routing))
        return np.array(network.by_level(cast(Kind, part.kind), part.network_bytes, group))

    def by_axis(self, sent: Iterable[Part]) -> dict[str, Floats]:
        """Time of collectives by parallel axis, and HBM time of the bytes that they move, in seconds."""
        by_axis_s: dict[str, Floats] = defaultdict(lambda: np.zeros(2))
        for part, times in _counted(sent):
            by_axis_s[part.axis] += times * np.array([self.sent_s(part), self.moved_s(part)])
        return by_axis_s

    def _once(self, part: Part) -> Routing | None:
        """Routing of tokens if a collective sends each token only once to a rank; otherwise None."""
        tokens = part.axis == "ep" and self.machine.stack.dispatch == "tokens"
        return self.routing if tokens else None


def _plainly(layer: Layer, clocked: Clocked) -> LayerCost:
    """Cost of a layer without fused attention: kernels pass all intermediate results through memory."""
    clocked = replace(clocked, passes=(layer.forward, layer.backward))
    regions_s = _known_regions(layer, lambda operators: _seconds(operators, clocked)[0])
    passes = (layer.forward.operators, layer.backward.operators, layer.attention("forward"))
    (forward_s, _), (backward_s, weight_s), (core_s, _) = (
        _seconds(operators, clocked) for operators in passes
    )
    # Scans store nothing inside, so the backward pass runs them forward once more.
    backward_s += regions_s(SCAN)
    links_s = _links_s(layer, clocked)
    return LayerCost(
        layer, layer.attention_bytes, forward_s, backward_s, core_s, weight_s, regions_s, links_s
    )


def _links_s(layer: Layer, clocked: Clocked) -> Floats:
    """Time of a layer's collectives on the links of each network level, in seconds, (2, levels)."""
    network, layout = clocked.machine.network, clocked.layout
    links_s = np.zeros((2, len(network.by_level("send", 0.0, layout.group("tp")))))
    for row, direction in enumerate(DIRECTIONS):
        parts = (
            part for operator in layer.pass_of(direction).operators for part in operator.parts if part.axis
        )
        for part, times in _counted(parts):
            links_s[row] += times * clocked.by_level_s(part)
    return links_s


def _counted(parts: Iterable[Part]) -> list[tuple[Part, int]]:
    """Distinct consecutive parts, each with its number of repetitions, such as the steps of a ring."""
    return [(same_parts[0], len(same_parts)) for same_parts in (list(same) for _, same in groupby(parts, id))]


def _with_flash_attention(layer: Layer, clocked: Clocked) -> LayerCost:
    """Cost of a layer with fused attention, which keeps scores on chip (Dao et al., NeurIPS 2022).

    The core stores only one element per row of scores.
    """
    machine, layout, fused_layer = clocked.machine, clocked.layout, kept_with_flash(layer)
    core, core_backward = layer.attention("forward"), layer.attention("backward")
    fused = fused_attention(core, layout, machine.stack, clocked.kernels)
    (forward_s, _), (backward_s, weight_s) = (
        _seconds(tuple(o for o in operators if o not in core_operators), clocked, alone)
        for operators, core_operators, alone in (
            (layer.forward.operators, core, fused.forward),
            (layer.backward.operators, core_backward, fused.backward),
        )
    )

    def forward_again_s(operators: tuple[Operator, ...]) -> Floats:
        inside = fused.forward if set(core) & set(operators) else NO_ATTENTION
        return _seconds(tuple(o for o in operators if o not in core), clocked, inside)[0]

    regions_s = _known_regions(layer, forward_again_s)
    backward_s += forward_again_s(recomputed_in_scans(layer))
    again_s, again_bytes = np.zeros(len(KERNEL_LIMITS)), 0.0
    if machine.stack.selective == "products" and layer.name not in KEPT:
        # Stacks that store results of products recompute all else: every second product is stored.
        products = tuple(o for o in _outside_scans(layer) if o.core == "tensor" and o not in core)
        stored = {*map(id, (*core, *products[::2]))}
        again_s = _seconds(tuple(o for o in layer.forward.operators if id(o) not in stored), clocked)[0]
        results = [part for o in (*products[::2], *core[-1:]) for part in o.parts if part.kind == "matmul"]
        stays = layout.bytes_per_element * sum(part.batch * part.m * part.n for part in results)
        again_bytes = max(fused_layer.activation_bytes - layer.input_bytes - stays, 0.0)
    links_s = _links_s(layer, clocked)
    return LayerCost(fused_layer, again_bytes, forward_s, backward_s, again_s, weight_s, regions_s, links_s)


def _known_regions(
    layer: Layer, seconds: Callable[[tuple[Operator, ...]], Floats]
) -> Callable[[frozenset[Region]], Floats]:
    """Function that gives the forward time of regions; regions with the same operators share one result."""
    seconds_by_key: dict[tuple[int, ...], Floats] = {}

    def regions_s(regions: frozenset[Region]) -> Floats:
        operators = layer.forward_in(regions)
        key = tuple(map(id, operators))
        if key not in seconds_by_key:
            seconds_by_key[key] = seconds(operators)
        return seconds_by_key[key]

    return regions_s


def _outside_scans(layer: Layer) -> list[Operator]:
    return [operator for operator in layer.forward.operators if not operator.regions & SCAN]


def _seconds(
    operators: tuple[Operator, ...], clocked: Clocked, attention: FusedPass = NO_ATTENTION
) -> tuple[Floats, float]:
    """Time of consecutive operators by limiting resource, and time of their weight gradients, in seconds.

    `attention` is the fused attention among them.
    """
    if isinstance(clocked.times, LayerSchedules):
        return _scheduled_s(operators, clocked, clocked.times)
    stack, compute = clocked.machine.stack, clocked.layout.compute
    operators = without_sums(run_alone(without_fused_scans(operators), clocked.layout, stack), stack)
    kernels = [kernel for operator in operators for kernel in kernels_of(operator)]
    kernels_s = _kernels_s(operators, clocked)
    total, weight_s = attention.seconds + kernels_s.sum(axis=0), 0.0
    # Attention enters the time of products that tensor-parallel exchanges overlap with.
    products_s = attention.seconds.copy()
    if kernels:
        products = [kernel[0].kind == "matmul" for kernel in kernels]
        products_s[:START] += kernels_s[products, :START].sum(axis=0)
        weight_s = float(kernels_s[[kernel[0].role == "weight_gradient" for kernel in kernels]].sum())
    extra = unfused(operators, clocked.layout, stack)
    moved = sum(casts_of(operators, clocked.layout)) * cast_bytes(compute, device_of(clocked.machine))
    total[HBM] += (moved + extra.nbytes) / clocked.machine.hbm_bytes_per_s
    by_axis = clocked.by_axis(part for operator in operators for part in operator.parts if part.axis)
    total[NETWORK] += exposed_s(by_axis, clocked.layout, clocked.machine, products_s, attention.seconds)
    launches = Launched(operators, clocked.layout, stack, device_of(clocked.machine), attention, extra)
    total[HOST] = launches.waited_s(_device_s(operators, kernels_s, clocked), float(total.sum()))
    return total, weight_s


def _device_s(operators: Sequence[Operator], kernels_s: Floats, clocked: Clocked) -> Floats:
    """Time of each operator's kernels and token dispatch, in seconds, (O,).

    Other collectives may overlap with kernels, and then do not add to them.
    """
    owners = np.repeat(np.arange(len(operators)), [len(kernels_of(operator)) for operator in operators])
    seconds: Floats = np.bincount(owners, kernels_s.sum(axis=1), minlength=len(operators)).astype(float)
    for place, operator in enumerate(operators):
        sent = _counted(part for part in operator.parts if part.axis == "ep")
        seconds[place] += sum(times * clocked.sent_s(part) for part, times in sent)
    return seconds


def _kernels_s(operators: Sequence[Operator], clocked: Clocked) -> Floats:
    """Time of each kernel of the operators on the device by limiting resource, in seconds, (W, limits)."""
    stack, device = clocked.machine.stack, device_of(clocked.machine)
    owned = [(operator, kernels_of(operator)) for operator in operators]
    kernels = [kernel for _, operator_kernels in owned for kernel in operator_kernels]
    if not kernels:
        return np.zeros((0, len(KERNEL_LIMITS)))
    moves = moves_of(owned, stack, device, in_steps=in_steps_of(operators, stack))
    kernels_s = clocked.kernels.of(
        kernels, precisions_of(operators, clocked.layout), moves, experts_of(operators, stack)
    )
    if any(operator.regions & SCAN for operator in operators):
        lanes_s = [scan_products_s(operator, kernel, device) for operator, of in owned for kernel in of]
        # The lanes bound a product of a scan if nothing else takes longer.
        kernels_s[:, VECTOR] += np.maximum(lanes_s - kernels_s[:, :START].sum(axis=1), 0.0)
    return kernels_s


def _scheduled_s(
    operators: tuple[Operator, ...], clocked: Clocked, schedules: LayerSchedules
) -> tuple[Floats, float]:
    """Makespan of operators of one pass by limiting resource, and time of their weight gradients."""
    chosen = {*map(id, operators)}
    for layer_pass in clocked.passes:
        places = [place for place, operator in enumerate(layer_pass.operators) if id(operator) in chosen]
        if len(places) == len(operators):
            edges = edges_of(layer_pass, places)
            break
    else:
        assert len(operators) <= 1, "operators of several passes have no common schedule"
        edges = ()
    total = schedules.seconds(operators, edges, clocked.layout)
    by_axis = clocked.by_axis(part for operator in operators for part in operator.parts if part.axis)
    core = tuple(operator for operator in operators if operator.attention)
    core_s = schedules.seconds(core, (), clocked.layout)
    total[NETWORK] += exposed_s(by_axis, clocked.layout, clocked.machine, total, core_s)
    return total, schedules.weight_s(operators, clocked.layout)


def _with_exchanges(cost: LayerCost, clocked: Clocked) -> LayerCost:
    """Add token dispatch, and the compute between its all-to-alls, to a layer's cost."""
    exchanges_s, moved, experts_s = np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2)
    for row, direction in enumerate(DIRECTIONS):
        operators = cost.layer.pass_of(direction).operators
        ends = [
            place
            for place, operator in enumerate(operators)
            if any(part.axis == "ep" for part in operator.parts)
        ]
        if ends:
            parts = [part for place in ends for part in operators[place].parts if part.axis == "ep"]
            exchanges_s[row] = [clocked.sent_s(part) for part in parts]
            moved[row] = [clocked.moved_s(part) for part in parts]
            between, _ = _seconds(
                operators[ends[0] + 1 : ends[1]], replace(clocked, passes=(cost.layer.pass_of(direction),))
            )
            waited_s = between[HOST] if clocked.machine.stack.experts == "each" else 0.0
            experts_s[row] = between[COMPUTE] + between[HBM] + waited_s
    return replace(cost, exchanges_s=exchanges_s, experts_s=experts_s, exchanges_hbm_s=moved)
