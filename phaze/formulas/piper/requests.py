"""Plan any model with Piper: configurations of its layers, and one run for each microbatch size (Appendix A).

A layer on t devices has a configuration for each kind of split and each recompute option of the runtime:

    whole      the layer on one device
    tensor     its products split over t devices; activations between layers are copies on each device
    sequence   the same, with activations between layers split along the sequence
    expert     as sequence, and the experts are sharded across the t devices

Times and stored activations of configurations are `LayerTiming` rows: the cost model's own, or measured ones
from a CSV file. All else follows from the model: weights, states, and tensors between layers. Memory is that
of PipeDream-2BW (`chain`). A layer that splits along the sequence needs a 1/t share of its inputs on each
device, so c_fw = c_bw = 0 (Appendix B); other layers on t > 1 devices need whole copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.network import Levels
from phaze.formulas.piper.layers import Configurations, FlatCluster, PlannedStage, ProfiledLayers
from phaze.formulas.piper.planner import PiperRun, fastest_run
from phaze.layout import Group, Layout, Recompute
from phaze.plan.layers.activations import KEPT
from phaze.plan.layers.costs import LayerCost
from phaze.plan.plan import Plan, Stage
from phaze.plan.pricing.lowering import StageLayers
from phaze.plan.question import PlanQuestion
from phaze.spec.planner_rows import LayerTiming, SplitKind

MICROBATCHES = (1, 2, 4)
"""Microbatch sizes b' of the cost model's layers; measured layers bring their own."""


class Choice(NamedTuple):
    """Layout of a layer on t devices, and its recompute option."""

    layout: Layout
    recompute: Recompute


@dataclass(frozen=True)
class LayerConfiguration:
    """Configuration of a layer (TMPC), without the tensors on its edges."""

    name: str
    choice: Choice
    time_s: float
    weight_bytes: float
    stash_bytes: float
    fixed_bytes: float
    copies: bool
    """True if each of several devices needs whole copies of the tensors that enter its stage."""

    def surpasses(self, other: LayerConfiguration) -> bool:
        """True if this configuration is nowhere worse than another one."""
        return all(cost <= other_cost for cost, other_cost in zip(self._costs(), other._costs(), strict=True))

    def _costs(self) -> tuple[float, ...]:
        return self.time_s, self.weight_bytes, self.stash_bytes, self.fixed_bytes, self.copies


@dataclass(frozen=True, eq=False)
class ConfiguredLayers(ProfiledLayers):
    """Piper's layers of a model, with the split and the recompute option of each configuration."""

    choices: dict[int, tuple[Choice, ...]]
    """Choices of the configurations by width t, in the order of `options`."""


@dataclass(frozen=True, eq=False)
class PiperRequest:
    """Planning request as input of Piper's planner."""

    question: PlanQuestion
    measured: tuple[LayerTiming, ...] = ()
    """Measured layers; without any, the cost model gives all of them."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bandwidth of large messages between devices at opposite ends of the network."""
        # Two devices half the cluster apart: their message crosses the outermost level.
        apart = Group(2, max(self.question.task.devices // 2, 1))
        return GIB / self.question.machine.network.seconds("send", float(GIB), apart)

    @cached_property
    def microbatches(self) -> tuple[int, ...]:
        """Microbatch sizes that divide the batch, ascending."""
        sizes = sorted({row.microbatch for row in self.measured}) if self.measured else MICROBATCHES
        return tuple(size for size in sizes if self.question.task.global_batch % size == 0)

    def widths(self) -> list[int]:
        """Tensor-parallel widths within a node that divide the model and the devices, ascending."""
        task, network = self.question.task, self.question.machine.network
        most = network.tiers[0].devices if isinstance(network, Levels) else task.devices
        widths = range(1, min(most, task.devices) + 1)
        return [tp for tp in widths if task.devices % tp == 0 and task.model.divides(tp)]

    def splits(self, microbatch: int) -> dict[tuple[int, SplitKind], Layout]:
        """Layout of a layer by width t and kind of split."""
        task, layouts = self.question.task, dict[tuple[int, SplitKind], Layout]()
        model = task.model
        for tp in self.widths():
            layout = Layout(tp=tp, microbatch=microbatch, compute=task.compute, load=task.load)
            layouts[tp, "tensor" if tp > 1 else "whole"] = layout
            if tp > 1 and task.sequence % tp == 0:
                sequence = replace(layout, sequence_parallel=True, etp=tp if model.experts else 1)
                layouts[tp, "sequence"] = sequence
                if model.experts and model.experts.count % tp == 0:
                    layouts[tp, "expert"] = replace(sequence, ep=tp, etp=1)
        return layouts

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the model's distinct layers, in the order of the data flow."""
        layout = self.splits(1)[1, "whole"]
        return tuple(dict.fromkeys(self.question.lowering(layout).layers(layout).workload.order))

    @cached_property
    def timings(self) -> tuple[LayerTiming, ...]:
        """Timings of every configuration of every distinct layer: the measured or the cost model's ones."""
        return self.measured or tuple(self._priced_layers())

    def _priced_layers(self) -> Iterator[LayerTiming]:
        question = self.question
        for size in self.microbatches:
            for (tp, kind), layout in self.splits(size).items():
                costs = question.lowering(layout).layers(layout).costs
                for name, cost in costs.items():
                    for recompute in question.runtime.recomputes(question.task.model):
                        yield LayerTiming(
                            layer=name,
                            microbatch=size,
                            t=tp,
                            recompute=recompute,
                            kind=kind,
                            forward_s=float(cost.forward_s.sum()),
                            backward_s=float(cost.backward_s.sum() + cost.again_s(recompute).sum()),
                            stash_bytes=cost.kept_bytes(recompute)[0],
                        )

    @cached_property
    def models(self) -> dict[int, ConfiguredLayers]:
        """Layers of the model with all useful configurations, by microbatch size, ascending."""
        return {size: self._layers(size) for size in self.microbatches}

    def _layers(self, microbatch: int) -> ConfiguredLayers:
        rows: dict[tuple[str, int], list[LayerTiming]] = {}
        for row in self.timings:
            if row.microbatch == microbatch:
                rows.setdefault((row.layer, row.t), []).append(row)
        splits = self.splits(microbatch)
        layout = splits[1, "whole"]
        workload, costs, _ = self.question.lowering(layout).layers(layout)
        order = workload.order
        starts = np.arange(len(order) - 1)
        edge_bytes = np.array([costs[name].layer.output_bytes for name in order[:-1]], np.float64)
        options, chosen = {}, {}
        for tp in self.widths():
            table = [self._useful(rows.get((name, tp), []), splits) for name in order]
            if any(table):
                options[tp] = _configurations(table, edge_bytes)
                chosen[tp] = tuple(c.choice for layer in table for c in layer)
        return ConfiguredLayers(
            ids=tuple(range(len(order))),
            names=tuple(order),
            edges=np.stack([starts, starts + 1], axis=1),
            edge_bytes=edge_bytes,
            options=options,
            choices=chosen,
        )

    def _useful(
        self, rows: Sequence[LayerTiming], splits: Mapping[tuple[int, SplitKind], Layout]
    ) -> list[LayerConfiguration]:
        """Configurations of a layer that no other one dominates."""
        useful: list[LayerConfiguration] = []
        for row in rows:
            layout = splits[row.t, row.kind]
            cost = self.question.lowering(layout).layers(layout).costs[row.layer]
            candidate = self._configuration(row, layout, cost)
            if not any(other.surpasses(candidate) for other in useful):
                useful = [other for other in useful if not candidate.surpasses(other)]
                useful.append(candidate)
        return useful

    def _configuration(self, row: LayerTiming, layout: Layout, cost: LayerCost) -> LayerConfiguration:
        question = self.question
        size = parameter_bytes(layout.optimizer, layout.precision, question.machine.stack.gradient_bytes)
        parameters, recomputed = cost.layer.parameters, row.recompute != "none"
        return LayerConfiguration(
            name=f"{row.kind}, recompute {row.recompute}" if recomputed else row.kind,
            choice=Choice(layout, row.recompute),
            time_s=row.forward_s + row.backward_s,
            weight_bytes=size.weights * parameters,
            stash_bytes=row.stash_bytes,
            # PipeDream-2BW stores two versions of the weights; recomputed activations exist once.
            fixed_bytes=(size.weights + size.static) * parameters + cost.kept_bytes(row.recompute)[1],
            copies=row.kind == "tensor",
        )

    def rounds(self, microbatch: int) -> list[int]:
        """Possible numbers g of accumulated rounds of microbatches of size b', ascending."""
        count = self.question.task.global_batch // microbatch
        return [g for g in range(1, count + 1) if count % g == 0]

    def inputs(self) -> Iterator[tuple[int, ConfiguredLayers, FlatCluster]]:
        """Yield the input of each run of (g, b'): b', its layers and a cluster with N = B' / (g b')."""
        for size, layers in self.models.items():
            for rounds in self.rounds(size):
                cluster = self.cluster(size)
                yield size, layers, replace(cluster, microbatches=cluster.microbatches // rounds)

    @cached_property
    def best(self) -> PiperRun | None:
        """Fastest plan over all runs; None if nothing fits."""
        return fastest_run(self.inputs())

    def cluster(self, microbatch: int) -> FlatCluster:
        """Flat cluster with the bandwidth of the outermost network level, and the whole batch."""
        task, usable = self.question.task, self.question.usable_bytes
        batch = task.global_batch // microbatch
        return FlatCluster(task.devices, usable, self.bandwidth_bytes_per_s, batch)

    def configurations(self, run: PiperRun) -> list[str]:
        """Number of layers with each configuration, for every stage of a plan."""
        texts = []
        for stage in run.plan.stages:
            names = run.layers.options[stage.layout.tp].names
            counts = Counter(names[c] for c in stage.configurations)
            texts.append("; ".join(f"{count} × {name}" for name, count in counts.items()))
        return texts

    def plan(self, run: PiperRun) -> Plan:
        """Plan of a run in the form that is priced like every plan."""
        stages = [self._stage(run, planned) for planned in run.plan.stages]
        return self.question.lowering(stages[0].layout).plan(stages, "2bw")

    def _stage(self, run: PiperRun, planned: PlannedStage) -> Stage:
        """Stage with the split and recompute option of each layer, and two versions of the weights."""
        choices = [self.models[run.microbatch].choices[planned.layout.tp][c] for c in planned.configurations]
        # Layers of a stage may split differently; its layout is that of most of them.
        layout = Counter(choice.layout for choice in choices).most_common(1)[0][0]
        recompute = Counter(choice.recompute for choice in choices).most_common(1)[0][0]
        layout = replace(layout, dp=planned.layout.dp, recompute=recompute)
        # Working memory is cached by layer name, and layers of one name may split differently here.
        lowering = replace(self.question.lowering(layout), _working={})
        workload, costs, _ = lowering.layers(layout)
        names = [workload.order[v] for v in planned.layers]
        same = Counter(zip(names, choices, strict=True))
        options = [
            (count, lowering.layers(choice.layout).costs[name], choice.recompute)
            for (name, choice), count in same.items()
        ]
        counts = [(count, cost) for count, cost, _ in options]
        cut = range(planned.layers[0], planned.layers[-1] + 1)
        blocks = sum(name not in KEPT for name in names)
        stage = StageLayers(lowering, layout, cut, workload, costs, counts, options, blocks).stage()
        return replace(stage, fixed_bytes=stage.fixed_bytes + stage.weight_bytes)


def _configurations(table: Sequence[Sequence[LayerConfiguration]], edge_bytes: Floats) -> Configurations:
    """Configurations of a chain's layers at one width; `edge_bytes`, (n - 1,), are those between layers."""
    flat = [configuration for layer in table for configuration in layer]
    layer = np.repeat(np.arange(len(table)), [len(configurations) for configurations in table])
    copied = np.array([configuration.copies for configuration in flat], np.bool_)[:, None]
    edges = np.arange(len(edge_bytes))

    def column(name: str) -> Floats:
        return np.array([getattr(configuration, name) for configuration in flat], np.float64)

    return Configurations(
        names=tuple(configuration.name for configuration in flat),
        layer=layer,
        time_s=column("time_s"),
        weight_bytes=column("weight_bytes"),
        stash_bytes=column("stash_bytes"),
        fixed_bytes=column("fixed_bytes"),
        forward_sync_bytes=np.where(copied & (layer[:, None] == edges + 1), edge_bytes, 0.0),
        backward_sync_bytes=np.where(copied & (layer[:, None] == edges), edge_bytes, 0.0),
    )
