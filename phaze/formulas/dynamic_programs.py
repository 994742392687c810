"""Plans found by the dynamic programs of Phaze and Piper for a planning request, priced like other plans.

Both get layers with the seconds and bytes of the question's machine, for every tensor-parallel width within a
node and a few microbatch sizes. Their network is flat, with the bandwidth of the outermost level. As in the
papers, replicas shard no states, and the working memory of a layer is not counted. Their plans may therefore
not fit, nor be the best under this price. The gap to the ranked table shows the effect of these
simplifications.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.network import Levels
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.flush import Placement, place_chain
from phaze.formulas.piper.chain import RECOMPUTE, read_layers
from phaze.formulas.piper.layers import FlatCluster, PiperPlan, ProfiledLayers
from phaze.formulas.piper.planner import plan as plan_piper
from phaze.layout import Group, Layout
from phaze.plan.layers.costs import LayerCost
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.plan import Plan
from phaze.plan.pricing.price import Price, price
from phaze.spec.planner_rows import PlannerRow, PlannerStage

MICROBATCHES = (1, 2, 4)
"""Microbatch sizes offered to both planners."""
UNEVEN = "no runtime runs it: two versions of the weights without a flush, and widths by stage"
NONE = "nothing fits where replicas share no states"


@dataclass(frozen=True, eq=False)
class DynamicPrograms:
    """Plans that the planners of the Phaze and Piper papers find for a planning request."""

    question: PlanQuestion

    def rows(self) -> Iterator[PlannerRow]:
        """Yield one table row per planner, with its plan or the reason why it has none."""
        chains = {layout: self.chain(layout) for layout in self.layouts()}
        yield self._phaze(chains)
        yield self._piper(chains)

    def layouts(self) -> Iterator[Layout]:
        """Yield one-stage layouts: all tensor-parallel widths within a node, with all microbatch sizes."""
        task, network = self.question.task, self.question.machine.network
        most = network.tiers[0].devices if isinstance(network, Levels) else task.devices
        for tp in range(1, min(most, task.devices) + 1):
            if task.devices % tp == 0 and task.model.divides(tp):
                for size in MICROBATCHES:
                    if task.global_batch % size == 0:
                        yield Layout(tp=tp, microbatch=size, compute=task.compute, load=task.load)

    def chain(self, layout: Layout) -> Chain:
        """Costs of the model's layers under a layout, as a chain from the embedding to the head."""
        workload, costs, _ = self.question.lowering(layout).layers(layout)
        each = [costs[name] for name in workload.order]
        stack = self.question.machine.stack
        size = parameter_bytes(self.question.optimizer, layout.precision, stack.gradient_bytes)
        parameters = np.array([cost.layer.parameters for cost in each], np.float64)
        starts = np.arange(len(each) - 1)
        return Chain(
            forward_s=_seconds(each, "forward_s"),
            backward_s=_seconds(each, "backward_s"),
            parameter_bytes=size.weights * parameters,
            static_bytes=size.static * parameters,
            activation_bytes=np.array([cost.kept_bytes("none")[0] for cost in each], np.float64),
            tensor_parallel=np.ones(len(each), np.bool_),
            edges=np.stack([starts, starts + 1], axis=1),
            edge_bytes=np.array([cost.layer.output_bytes for cost in each[:-1]], np.float64),
        )

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bandwidth of large messages between devices at opposite ends of the network."""
        apart = Group(2, max(self.question.task.devices // 2, 1))
        return GIB / self.question.machine.network.seconds("send", float(GIB), apart)

    def _phaze(self, chains: Mapping[Layout, Chain]) -> PlannerRow:
        best: tuple[float, Layout, Placement] | None = None
        for again in (False, True):
            for layout, chain in chains.items():
                found = place_chain(chain, layout, self._setting(layout, recompute=again), explain=False)
                if isinstance(found, Placement) and (best is None or found.time_s < best[0]):
                    best = found.time_s, replace(layout, recompute="full" if again else "none"), found
        if best is None:
            return PlannerRow(planner="phaze", reason=NONE)
        planned_s, layout, found = best
        whole = replace(layout, dp=found.data, pp=found.stages)
        last = found.stages - 1  # stores all activations, as its backward pass follows at once
        numbers = [0 if s == last and layout.recompute == "full" else None for s in range(found.stages)]
        lowering = self.question.lowering(layout)
        stages = [
            lowering.stage(range(cut[0], cut[-1] + 1), whole, number)
            for cut, number in zip(found.layers, numbers, strict=True)
        ]
        reason = self.question.runtime.why_not(self.question.task, whole, "1f1b")
        return self._row("phaze", lowering.plan(stages, "1f1b"), planned_s, reason)

    def _setting(self, layout: Layout, *, recompute: bool) -> Setting:
        task = self.question.task
        return Setting(
            devices=task.devices,
            microbatches=layout.microbatches(task.global_batch),
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            memory_bytes=self.question.usable_bytes,
            recompute=recompute,
        )

    def _piper(self, chains: Mapping[Layout, Chain]) -> PlannerRow:
        task = self.question.task
        best: tuple[float, int, ProfiledLayers, PiperPlan] | None = None
        for size in dict.fromkeys(layout.microbatch for layout in chains):
            own = {layout: chain for layout, chain in chains.items() if layout.microbatch == size}
            names = [str(k) for k in range(len(next(iter(own.values()))))]
            layers = read_layers(own, names, (False, True))
            cluster = FlatCluster(
                task.devices,
                self.question.usable_bytes,
                self.bandwidth_bytes_per_s,
                task.global_batch // size,
            )
            below_s = best[0] * size if best else np.inf
            found = plan_piper(layers, cluster, below_s=below_s)
            if found is not None and found.time_per_sample_s / size < (best[0] if best else np.inf):
                best = found.time_per_sample_s / size, size, layers, found
        if best is None:
            return PlannerRow(planner="piper", reason=NONE)
        sample_s, size, layers, found = best
        return self._row("piper", self._of_piper(size, layers, found), sample_s * task.global_batch, UNEVEN)

    def _of_piper(self, microbatch: int, layers: ProfiledLayers, found: PiperPlan) -> Plan:
        stages = []
        for one in found.stages:
            names = layers.options[one.layout.tp].names
            again = sum(names[c] == RECOMPUTE for c in one.configurations)
            layout = replace(
                one.layout, microbatch=microbatch, compute=self.question.task.compute,
                recompute="full" if again else "none",
            )  # fmt: skip
            cut = range(one.layers[0], one.layers[-1] + 1)
            stage = self.question.lowering(layout).stage(cut, layout, again if again else None)
            # There are two versions of the weights.
            stages.append(replace(stage, fixed_bytes=stage.fixed_bytes + stage.weight_bytes))
        return self.question.lowering(stages[0].layout).plan(stages, "2bw")

    def _row(self, planner: str, plan: Plan, planned_s: float, reason: str | None) -> PlannerRow:
        found: Price = price(plan, self.question.machine)
        task, fullest = self.question.task, float(found.peak_bytes.max())
        return PlannerRow(
            planner=planner,
            time_s=found.time_s,
            planned_s=planned_s,
            tokens_per_s_per_device=task.global_batch * task.sequence / found.time_s / task.devices,
            fullest_gib=fullest / GIB,
            fits=fullest <= self.question.limit_bytes(plan.layout),
            schedule=plan.schedule,
            microbatch=plan.layout.microbatch,
            stages=tuple(
                PlannerStage(
                    first_layer=one.first_layer, layers=one.layers, tp=one.layout.tp, dp=one.layout.dp,
                    recompute=one.recompute_s > 0,
                )
                for one in plan.stages
            ),
            reason=reason,
        )  # fmt: skip


def _seconds(each: list[LayerCost], name: str) -> Floats:
    return np.array([float(getattr(cost, name).sum()) for cost in each])
