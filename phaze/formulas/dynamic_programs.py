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
from functools import cached_property
from itertools import product

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.memory import parameter_bytes
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.flush import Placement, place_chain
from phaze.formulas.piper.requests import MICROBATCHES, PiperRequest
from phaze.layout import Layout
from phaze.plan.layers.costs import LayerCost
from phaze.plan.plan import Plan
from phaze.plan.pricing.price import price
from phaze.plan.question import PlanQuestion
from phaze.spec.planner_rows import PlannerRow, PlannerStage

UNEVEN = "no runtime runs it: two versions of the weights without a flush, and widths by stage"
NONE = "nothing fits where replicas share no states"


@dataclass(frozen=True, eq=False)
class DynamicPrograms:
    """Plans that the planners of the Phaze and Piper papers find for a planning request."""

    question: PlanQuestion
    request: PiperRequest | None = None
    """The same request as input of Piper's planner; None for the cost model's layers."""

    @cached_property
    def piper(self) -> PiperRequest:
        """The same request as input of Piper's planner."""
        return self.request or PiperRequest(self.question)

    def rows(self) -> Iterator[PlannerRow]:
        """Yield one table row per planner, with its plan or the reason why it has none."""
        yield self._phaze_row({layout: self.chain(layout) for layout in self.layouts()})
        yield self._piper_row()

    def layouts(self) -> Iterator[Layout]:
        """Yield one-stage layouts: all tensor-parallel widths within a node, with all microbatch sizes."""
        task = self.question.task
        for tp, size in product(self.piper.widths(), MICROBATCHES):
            if task.global_batch % size == 0:
                yield Layout(tp=tp, microbatch=size, compute=task.compute, load=task.load)

    def chain(self, layout: Layout) -> Chain:
        """Costs of the model's layers under a layout, as a chain from the embedding to the head."""
        workload, costs, _ = self.question.lowering(layout).layers(layout)
        layers = [costs[name] for name in workload.order]
        stack = self.question.machine.stack
        size = parameter_bytes(layout.optimizer, layout.precision, stack.gradient_bytes)
        parameters = np.array([cost.layer.parameters for cost in layers], np.float64)
        starts = np.arange(len(layers) - 1)
        return Chain(
            forward_s=_seconds(layers, "forward_s"),
            backward_s=_seconds(layers, "backward_s"),
            parameter_bytes=size.weights * parameters,
            static_bytes=size.static * parameters,
            activation_bytes=np.array([cost.kept_bytes("none")[0] for cost in layers], np.float64),
            tensor_parallel=np.ones(len(layers), np.bool_),
            edges=np.stack([starts, starts + 1], axis=1),
            edge_bytes=np.array([cost.layer.output_bytes for cost in layers[:-1]], np.float64),
        )

    def _phaze_row(self, chains: Mapping[Layout, Chain]) -> PlannerRow:
        best: tuple[float, Layout, Placement] | None = None
        for recompute in (False, True):
            for layout, chain in chains.items():
                setting = self._setting(layout, recompute=recompute)
                placement = place_chain(chain, layout, setting, explain=False)
                if isinstance(placement, Placement) and (best is None or placement.time_s < best[0]):
                    placed = replace(layout, recompute="full" if recompute else "none")
                    best = placement.time_s, placed, placement
        if best is None:
            return PlannerRow(planner="phaze", reason=NONE)
        planned_s, layout, placement = best
        placed_layout = replace(layout, dp=placement.data, pp=placement.stages)
        cuts = [range(cut[0], cut[-1] + 1) for cut in placement.layers]
        plan = self.question.lowering(layout).placed(cuts, [placed_layout] * len(cuts))
        reason = self.question.runtime.why_not(self.question.task, placed_layout, "1f1b")
        return self._row("phaze", plan, planned_s, reason)

    def _setting(self, layout: Layout, *, recompute: bool) -> Setting:
        task = self.question.task
        return Setting(
            devices=task.devices,
            microbatches=layout.microbatches(task.global_batch),
            bandwidth_bytes_per_s=self.piper.bandwidth_bytes_per_s,
            memory_bytes=self.question.usable_bytes,
            recompute=recompute,
        )

    def _piper_row(self) -> PlannerRow:
        piper, run = self.piper, self.piper.best
        if run is None:
            return PlannerRow(planner="piper", reason=NONE)
        row = self._row("piper", piper.plan(run), run.sample_s * self.question.task.global_batch, UNEVEN)
        configured = zip(row.stages, piper.configurations(run), strict=True)
        stages = tuple(stage.model_copy(update={"configurations": text}) for stage, text in configured)
        count = sum(len(piper.rounds(size)) for size in piper.microbatches)
        return row.model_copy(update={"runs": count, "stages": stages})

    def _row(self, planner: str, plan: Plan, planned_s: float, reason: str | None) -> PlannerRow:
        plan_price = price(plan, self.question.machine)
        task, fullest = self.question.task, float(plan_price.peak_bytes.max())
        stages = [
            {"first_layer": stage.first_layer, "layers": stage.layers, "recompute": stage.recompute_s > 0}
            | {"tp": stage.layout.tp, "dp": stage.layout.dp}
            for stage in plan.stages
        ]
        return PlannerRow(
            planner=planner,
            time_s=plan_price.time_s,
            planned_s=planned_s,
            tokens_per_s_per_device=task.global_batch * task.sequence / plan_price.time_s / task.devices,
            fullest_gib=fullest / GIB,
            fits=fullest <= self.question.limit_bytes(plan.layout),
            schedule=plan.schedule,
            microbatch=plan.layout.microbatch,
            stages=tuple(PlannerStage.model_validate(stage) for stage in stages),
            reason=reason,
        )


def _seconds(layers: list[LayerCost], name: str) -> Floats:
    return np.array([float(getattr(cost, name).sum()) for cost in layers])
