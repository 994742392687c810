"""Priced layout with its pipeline split, converted to rows and parts of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from phaze.base.units import GIB
from phaze.cost.products import speed_of
from phaze.cost.utilisation import model_flops_utilisation, peak_flops_per_s
from phaze.layout import Compute
from phaze.plan.layouts.divisions import DividedLayout, Division
from phaze.plan.layouts.found import PlannedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.words import NEGLIGIBLE, shape
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.plan.pricing.price import COMMUNICATION, Memory, Price, price
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


@dataclass(frozen=True, eq=False)
class PricedLayout:
    """Layout with one pipeline split, and its price under a planning request."""

    question: PlanQuestion
    divided: DividedLayout
    division: Division

    @classmethod
    def of(cls, question: PlanQuestion, planned: PlannedLayout) -> PricedLayout:
        """Price a layout found by the search."""
        return cls(question, planned.divided, planned.found.division)

    def asked(self, question: PlanQuestion) -> PricedLayout:
        """Same plan, priced for another planning request."""
        if question is self.question:
            return self
        layout = replace(self.divided.layout, load=question.task.load)
        return PricedLayout(question, question.divided(layout, self.divided.schedule), self.division)

    @classmethod
    def of_recipe(cls, question: PlanQuestion, recipe: Recipe) -> PricedLayout:
        """Price a recipe on the machine of a planning request."""
        divided = question.divided(recipe.layout, recipe.schedule)
        return cls(question, divided, Division(recipe.blocks, recipe.recomputed))

    @cached_property
    def price(self) -> Price:
        """Price of the plan: step time and memory."""
        return price(self.divided.plan(self.division), self.divided.lowering.machine)

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
        return self.fullest_gib - self.question.limit_bytes(self.divided.layout) / GIB

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
        own = asdict(self.divided.layout)
        del own["precision"]
        text = layout_string(self.division.blocks, self.divided.further)
        return ChosenLayout(**own, schedule=self.divided.schedule, pipeline_layout=text)

    @property
    def shape(self) -> str:
        """Short text form of the layout."""
        return shape(self.chosen, self.recomputed_layers)

    @property
    def recomputed_layers(self) -> int:
        """Number of recomputed layers."""
        return sum(self.divided.again(self.division))

    @property
    def stages(self) -> tuple[StageShare, ...]:
        """Rank and layers of every virtual stage, in data-flow order."""
        groups = self.divided.frame.groups.tolist()
        order = self.divided.order
        numbers = zip(self.division.windows, self.divided.again(self.division), strict=True)
        return tuple(
            StageShare(
                rank=groups[q],
                layers=len(window),
                recomputed=again,
                kinds=dict(zip(order.kinds, order.counts(window), strict=True)) if order.mixed else {},
            )
            for q, (window, again) in enumerate(numbers)
        )

    @property
    def memory(self) -> Iterator[RankMemory]:
        """Yield the memory of every pipeline rank, by part."""
        for rank in range(self.divided.layout.pp):
            found = self.price.memory_of(rank)
            yield RankMemory(
                peak_gib=found.peak_bytes / GIB,
                weights_gib=found.weight_bytes / GIB,
                optimizer_gib=found.optimizer_bytes / GIB,
                activations_gib=found.activation_bytes / GIB,
                work_gib=found.recompute_bytes / GIB,
                in_use_gib=used_gib(found),
                parts_gib={name: nbytes / GIB for name, nbytes in found.in_use.beside.items()},
            )

    def row(self, interval: MeasuredInterval | None = None, prudent_s: float | None = None) -> RankedPlan:
        """Row of the ranked table, with the prediction interval from measured runs if there is one."""
        low_s, high_s = interval.ends_s if interval and interval.ends_s else (None, None)
        found, each = self.price, self.tokens_per_s_per_device
        most = max(found.shares, key=lambda name: found.shares[name])
        return RankedPlan(
            time_s=found.time_s,
            time_s_low=low_s,
            time_s_high=high_s,
            prudent_s=prudent_s,
            tokens_per_s_per_device=each,
            mfu=self.mfu,
            memory_gib=tuple((found.peak_bytes / GIB).tolist()),
            in_use_gib=self.used,
            bubble_share=found.shares["pipeline bubble"],
            exposed_communication_share=sum(found.shares[name] for name in COMMUNICATION),
            bound_by=f"{most} ({100 * found.shares[most]:.0f} %)",
            recomputed_layers=self.recomputed_layers,
            layout=self.chosen,
        )

    def longer_s(self, other: PricedLayout) -> dict[str, float]:
        """Extra seconds of each part of a step compared with another plan, largest difference first."""
        names = dict.fromkeys((*self.parts_s, *other.parts_s))
        found = {name: self.parts_s.get(name, 0.0) - other.parts_s.get(name, 0.0) for name in names}
        ranked = sorted(found.items(), key=lambda item: -abs(item[1]))
        return {name: more for name, more in ranked if abs(more) >= NEGLIGIBLE * other.price.time_s}


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
