"""Ranks of a training plan mapped to the devices of a network, evaluated with the plan's own cost model.

A runtime numbers ranks in a fixed order: tensor- and context-parallel ranks, then replicas, then pipeline
ranks. For the searches a pipeline rank is a stage and a data-parallel rank a replica. The tp * cp ranks of
both form a unit of consecutive devices, as they communicate most. The objective of the searches (passes,
tensors between stages, one gradient ring per stage) only proposes mappings. Each proposal, and the runtime's
order, is then priced with all groups of the layout on their devices, each without contention from the others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Ints, Number
from phaze.base.deadline import Deadline
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.network import Kind, Members, Network
from phaze.layout import Group
from phaze.map.ensemble import Mapped, MappingCandidate, MapSettings, map_stages
from phaze.map.networks import units_of
from phaze.plan.answer.answer import question_of
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.plan import Stage
from phaze.plan.pricing.price import Price
from phaze.plan.question import PlanQuestion
from phaze.runtimes.recipe import Recipe
from phaze.spec.mapping import StoredRankMap
from phaze.spec.names import MapMethod
from phaze.spec.stages import StoredMessage, StoredStage, StoredStages
from phaze.spec.training_plan import TrainingPlan
from phaze.workload.operator_graphs import stage_graph

DEFAULT: MapMethod = "cs-map"
"""Mapping equal to the runtime's order: replicas of a stage on consecutive units, then stages."""


@dataclass(frozen=True, eq=False)
class Arranged:
    """Network with ranks mapped to devices: a collective takes the time of its slowest equivalent group.

    A `Group` represents all groups with the same number of ranks and stride. Each has the network to itself.
    """

    network: Network
    devices: Ints
    """Device of every rank, (N,)."""
    _times_s: dict[tuple[Kind, float, Group], tuple[float, ...]] = field(default_factory=dict)

    def seconds(self, kind: Kind, size_bytes: Number, group: Members) -> Number:
        """Time of a collective, or of a message from one rank to the next; 0 for one rank."""
        if not isinstance(group, Group) or isinstance(size_bytes, np.ndarray):
            return self.network.seconds(kind, size_bytes, group)
        return max(self._each(kind, size_bytes, group), default=0.0)

    def by_level(self, kind: Kind, size_bytes: Number, group: Members) -> tuple[Number, ...]:
        """Time of a collective, attributed to a single level."""
        return (self.seconds(kind, size_bytes, group),)

    def _each(self, kind: Kind, size_bytes: float, group: Group) -> tuple[float, ...]:
        key = kind, size_bytes, group
        if key not in self._times_s:
            rows = self.groups(kind, group)
            self._times_s[key] = tuple(self.network.seconds(kind, size_bytes, row) for row in rows)
        return self._times_s[key]

    def groups(self, kind: Kind, group: Group) -> list[list[int]]:
        """Devices of every group of the same size and stride as `group`, (groups, ranks).

        For messages there is one group per sending rank.
        """
        if group.ranks < 2:
            return []
        ranks = np.arange(len(self.devices) - (group.ranks - 1) * group.stride)
        first = ranks if kind == "send" else ranks[ranks // group.stride % group.ranks == 0]
        groups: list[list[int]] = self.devices[
            first[:, None] + np.arange(group.ranks) * group.stride
        ].tolist()
        return groups


@dataclass(frozen=True, eq=False)
class RankMap:
    """A training plan, the mappings found for its ranks, and the step time under each mapping."""

    unit: int
    mapped: Mapped
    """Mappings of pipeline and data-parallel ranks to units."""
    time_s: dict[MapMethod, float]
    """Predicted step time, by method."""

    @cached_property
    def best(self) -> MappingCandidate:
        """Mapping with the shortest step; the runtime's order on ties."""
        candidates = {
            candidate.method: candidate for candidate in (*self.mapped.heuristics, *self.mapped.candidates)
        }
        return candidates[min(self.time_s, key=lambda method: (self.time_s[method], method != DEFAULT))]

    def stored(self) -> StoredRankMap:
        """Build the rank section of a mapping file."""
        fields = {
            "unit": self.unit,
            "devices": ranks_on(self.best.mapping, self.unit).tolist(),
            "time_s": self.time_s[self.best.method],
            "default_s": self.time_s[DEFAULT],
            "times": [{"name": method, "time_s": time_s} for method, time_s in self.time_s.items()],
        }
        return StoredRankMap.model_validate(fields)


def map_ranks(
    planned: TrainingPlan,
    devices: DeviceNetwork,
    network: Network,
    settings: MapSettings,
    deadline: Deadline | None = None,
) -> RankMap:
    """Map the ranks of a plan to devices; `network` prices the collectives there.

    Raises PhazeError if there are too few devices, or if the runtime cannot run the plan.
    """
    recipe, question = Recipe.of(planned), question_of(planned.question)
    recipe.check(question.runtime)
    layout = recipe.layout
    if layout.devices > devices.devices:
        raise PhazeError(f"network: has {devices.devices} devices, the plan needs {layout.devices}")
    unit = layout.tp * layout.cp
    until = deadline or Deadline(settings.limits.time_s)
    stages = stages_of(PricedLayout.of_recipe(question, recipe).price, planned.question.model.name)
    mapped = map_stages(stage_graph(stages), units_of(devices, unit), settings, until)
    time_s: dict[MapMethod, float] = {}
    for candidate in (*mapped.heuristics, *mapped.candidates):
        if candidate.method == DEFAULT or not until.passed:
            time_s[candidate.method] = time_on(
                recipe, question, Arranged(network, ranks_on(candidate.mapping, unit))
            )
    return RankMap(unit, mapped, time_s)


def ranks_on(mapping: Ints, unit: int) -> Ints:
    """Device of each rank in the runtime's order, (N,), under a mapping to units, (S, R)."""
    ranks: Ints = (mapping[:, :, None] * unit + np.arange(unit)).ravel()
    return ranks


def time_on(recipe: Recipe, question: PlanQuestion, network: Network) -> float:
    """Step time of a recipe on the machine of a planning request, with another network."""
    machine = replace(question.machine, network=network)
    return PricedLayout.of_recipe(replace(question, machine=machine), recipe).price.time_s


def stages_of(price: Price, model: str) -> StoredStages:
    """Convert the pipeline ranks of a priced plan to stages to map, each with all its virtual stages.

    Parameter bytes are scaled so that one all-reduce sends the bytes that replicas exchange in a step.
    """
    plan, groups = price.plan, price.pipeline.groups.tolist()
    by_rank = [[plan.stages[q] for q, rank in enumerate(groups) if rank == p] for p in range(plan.depth)]
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for q, (stage, later) in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
        if groups[q] != groups[q + 1]:
            pair = min(groups[q : q + 2]), max(groups[q : q + 2])
            sent[pair] += (later.arriving_bytes + stage.departing_bytes) / 2
    exchanges = _exchanges(plan.layout.zero, plan.in_pipeline)
    return StoredStages(
        format="phaze-stages",
        version=1,
        model=model,
        replicas=plan.layout.dp,
        microbatches=plan.in_pipeline,
        recompute=any(stage.recompute_s > 0 for stage in plan.stages),
        stages=tuple(_stage(stages, exchanges) for stages in by_rank),
        edges=tuple(StoredMessage(source=a, target=b, bytes=size) for (a, b), size in sent.items()),
    )


def _stage(stages: list[Stage], exchanges: float) -> StoredStage:
    return StoredStage(
        forward_s=sum(stage.forward_s for stage in stages),
        backward_s=sum(stage.recompute_s + stage.backward_s for stage in stages),
        parameter_bytes=exchanges * sum(stage.exchanged_bytes for stage in stages),
    )


def _exchanges(zero: int, microbatches: int) -> float:
    """Gradient and weight traffic per step of a ZeRO stage, as a number of all-reduces of the gradients.

    ZeRO 2 scatters gradients for each microbatch and gathers weights once; ZeRO 3 gathers weights for both
    passes of each microbatch.
    """
    return {2: (microbatches + 1) / 2, 3: 1.5 * microbatches}.get(zero, 1.0)
