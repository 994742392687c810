"""Priced layout with its pipeline split, converted to rows and parts of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from phaze.base.units import GIB
from phaze.cost.products import speed_of
from phaze.cost.utilisation import model_flops_utilisation, peak_flops_per_s
from phaze.layout import Compute
from phaze.plan.answer.ranked_table import NEGLIGIBLE, shape
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.plan.pricing.price import COMMUNICATION, Memory, Price, price
from phaze.plan.question import PlanQuestion
from phaze.plan.search.planned import PlannedLayout
from phaze.plan.splits.split import Split, StagedLayout
from phaze.plan.terms.memory import status_of
from phaze.runtimes.layout_string import layout_string
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import TrainingTask
from phaze.spec.memory import UsedGib
from phaze.spec.training_plan import ChosenLayout, NearRun, RankedPlan, RankMemory, StageShare


@dataclass(frozen=True)
class MeasuredInterval:
    """80 % interval of a step time from similar measured runs, or the features that no measured run has."""

    ends_s: tuple[float, float] | None
    """Ends of the interval in seconds; None if there is none."""
    nearest: tuple[NearRun, ...] = ()
    """Most similar measured runs."""
    unmeasured: tuple[str, ...] = ()
    """Features that no measured run has."""
    mfus: tuple[float, ...] = ()
    """Measured utilisations of all published runs on the device, in the precision."""


@dataclass(frozen=True, eq=False)
class PricedLayout:
    """Layout with one pipeline split, and its price under a planning request."""

    question: PlanQuestion
    staged: StagedLayout
    split: Split

    @classmethod
    def of(cls, question: PlanQuestion, planned: PlannedLayout) -> PricedLayout:
        """Price a layout found by the search."""
        return cls(question, planned.staged, planned.split)

    def priced_for(self, question: PlanQuestion) -> PricedLayout:
        """Same plan, priced for another planning request."""
        if question is self.question:
            return self
        layout = replace(self.staged.layout, load=question.task.load)
        return PricedLayout(question, question.staged(layout, self.staged.schedule), self.split)

    @classmethod
    def of_recipe(cls, question: PlanQuestion, recipe: Recipe) -> PricedLayout:
        """Price a recipe on the machine of a planning request."""
        staged = question.staged(recipe.layout, recipe.schedule)
        return cls(question, staged, Split(recipe.blocks, recipe.recomputed))

    @cached_property
    def price(self) -> Price:
        """Price of the plan: step time and memory."""
        return price(self.staged.plan(self.split), self.staged.lowering.machine)

    @property
    def tokens_per_s_per_device(self) -> float:
        """Throughput in tokens per second and device."""
        task = self.question.task
        return task.global_batch * task.sequence / self.price.time_s / task.devices

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: needed FLOPs over peak FLOPs."""
        peak = peak_of(self.question.machine, self.question.task.compute)
        return model_flops_utilisation(self.tokens_per_s_per_device, token_flops(self.question.task), peak)

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """Step time by activity, averaged over all devices, in seconds."""
        return {name: share * self.price.time_s for name, share in self.price.shares.items()}

    @property
    def fullest_gib(self) -> float:
        """Peak memory of tensors over all ranks, in GiB."""
        return float(self.price.peak_bytes.max()) / GIB

    @property
    def lacking_gib(self) -> float:
        """Memory shortfall of the rank with peak memory, in GiB; negative if it fits."""
        return self.fullest_gib - self.question.limit_bytes(self.staged.layout) / GIB

    @property
    def used(self) -> UsedGib:
        """Memory in use on the device with peak memory, in GiB."""
        return used_gib(self.price.memory)

    @property
    def status(self) -> str:
        """`ok` if the upper end of the memory in use fits, else may fit or does not fit, with the figures."""
        return status_of(self.used.low, self.used.high, device_of(self.question.machine))

    @property
    def chosen(self) -> ChosenLayout:
        """Layout in the format of a plan file."""
        fields = {name: value for name, value in asdict(self.staged.layout).items() if name != "precision"}
        text = layout_string(self.split.blocks, self.staged.mtp)
        return ChosenLayout(**fields, schedule=self.staged.schedule, pipeline_layout=text)

    @property
    def shape(self) -> str:
        """Short text form of the layout."""
        return shape(self.chosen, self.recomputed_layers)

    @property
    def recomputed_layers(self) -> int:
        """Number of recomputed layers."""
        return sum(self.staged.recomputed_in(self.split))

    @property
    def stages(self) -> tuple[StageShare, ...]:
        """Rank and layers of every virtual stage, in data-flow order."""
        ranks, order, stages = self.staged.frame.groups.tolist(), self.staged.order, []
        numbers = zip(ranks, self.split.windows, self.staged.recomputed_in(self.split), strict=True)
        for rank, window, recomputed in numbers:
            kinds = dict(zip(order.kinds, order.counts(window), strict=True)) if order.mixed else {}
            stages.append(StageShare(rank=rank, layers=len(window), recomputed=recomputed, kinds=kinds))
        return tuple(stages)

    @property
    def memory(self) -> Iterator[RankMemory]:
        """Yield the memory of every pipeline rank, by part."""
        for rank in range(self.staged.layout.pp):
            rank_memory = self.price.memory_of(rank)
            yield RankMemory(
                peak_gib=rank_memory.peak_bytes / GIB,
                weights_gib=rank_memory.weight_bytes / GIB,
                optimizer_gib=rank_memory.optimizer_bytes / GIB,
                activations_gib=rank_memory.activation_bytes / GIB,
                work_gib=rank_memory.recompute_bytes / GIB,
                in_use_gib=used_gib(rank_memory),
                parts_gib={name: nbytes / GIB for name, nbytes in rank_memory.in_use.beside.items()},
            )

    def row(self, interval: MeasuredInterval | None = None, prudent_s: float | None = None) -> RankedPlan:
        """Row of the ranked table, with the prediction interval from measured runs if there is one."""
        low_s, high_s = interval.ends_s if interval and interval.ends_s else (None, None)
        plan_price, tokens_per_s = self.price, self.tokens_per_s_per_device
        longest = max(plan_price.shares, key=lambda name: plan_price.shares[name])
        return RankedPlan(
            time_s=plan_price.time_s,
            time_s_low=low_s,
            time_s_high=high_s,
            prudent_s=prudent_s,
            tokens_per_s_per_device=tokens_per_s,
            mfu=self.mfu,
            memory_gib=tuple((plan_price.peak_bytes / GIB).tolist()),
            in_use_gib=self.used,
            bubble_share=plan_price.shares["pipeline bubble"],
            exposed_communication_share=sum(plan_price.shares[name] for name in COMMUNICATION),
            bound_by=f"{longest} ({100 * plan_price.shares[longest]:.0f} %)",
            recomputed_layers=self.recomputed_layers,
            layout=self.chosen,
        )

    def longer_s(self, other: PricedLayout) -> dict[str, float]:
        """Extra seconds of each part of a step compared with another plan, largest difference first."""
        names = dict.fromkeys((*self.parts_s, *other.parts_s))
        differences_s = {name: self.parts_s.get(name, 0.0) - other.parts_s.get(name, 0.0) for name in names}
        ranked = sorted(differences_s.items(), key=lambda part: -abs(part[1]))
        return {name: part_s for name, part_s in ranked if abs(part_s) >= NEGLIGIBLE * other.price.time_s}


def used_gib(memory: Memory) -> UsedGib:
    """Range of a device's memory in use: low, expected and high, in GiB."""
    low, expected, high = memory.in_use.of("device").gib
    return UsedGib(low=low, expected=expected, high=high)


def token_flops(task: TrainingTask) -> float:
    """FLOPs that training needs per token, as counted by `mfu`."""
    return task.model.flops_per_token(task.sequence).needed


def peak_of(machine: Machine, compute: Compute = "bf16") -> float:
    """Peak FLOP/s of a device's tensor cores in a precision, at full clock."""
    device = device_of(machine)
    half = peak_flops_per_s(device.num_tc, device.pe_x, device.pe_y, device.clock_hz)
    return half * speed_of(device, compute).times
