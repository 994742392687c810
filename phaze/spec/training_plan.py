"""Plan files: training of a model on a cluster, written by `plan` and replayed by `simulate`."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.layout import BALANCED, WIDTHS, Compute, Layout, LayoutFields, Zero
from phaze.spec.architecture import Architecture
from phaze.spec.derived import DerivedNoun
from phaze.spec.files import FOLDER
from phaze.spec.memory import UsedGib
from phaze.spec.model import Model
from phaze.spec.names import PRECISION, RANK, Rank, Runtime
from phaze.spec.noun import Noun
from phaze.spec.planner_rows import PlannerRow
from phaze.spec.questions import RunFields
from phaze.spec.system import Calibration, Cluster, Device, Stack
from phaze.spec.systems import load_cluster, load_stack_of
from phaze.spec.values import (
    Count,
    ExpertLoad,
    Flag,
    Index,
    Label,
    Location,
    Positive,
    PositiveInt,
    Result,
    Text,
)

Finite = Annotated[float, Field(allow_inf_nan=False)]
REQUIRED = (*WIDTHS, "microbatch", "sequence_parallel", "zero", "recompute")
"""Layout fields that every plan file contains."""
MOVED = 1 / 16
"""Maximum relative change of a batch so that more devices share it equally."""
TIE = 1e-3
"""Relative difference of step times below which plans tie; the simpler plan then ranks first."""


def nearest_batch(samples: float, devices: int) -> int:
    """Nearest batch that splits evenly over as many devices as possible.

    Replicas process equal numbers of samples, so that data parallelism is limited by the divisors of the
    batch. It is a multiple of the largest divisor of the devices that moves it by at most MOVED.
    """
    # From the most replicas down: the first number that moves the batch little enough is the largest one.
    for replicas in range(min(devices, ceil(samples * (1 + MOVED))), 0, -1):
        batch = round(samples / replicas) * replicas
        if devices % replicas == 0 and abs(batch - samples) <= MOVED * samples:
            return batch
    return max(int(samples), 1)


class StoredMachine(Noun):
    """Cluster, device and software stack of a planning request, with the contents of their files."""

    cluster: Cluster
    """Network levels and the other keys of the system's file."""
    device: Device
    """Device, with constants that the system calibrates."""
    stack: Stack
    """Software stack, with constants that the system calibrates."""

    def on_architecture(self, architecture: Architecture, stack: Stack) -> Self:
        """The same network with chips of an architecture, whose operators a stack schedules.

        Clock, HBM bandwidth and capacity that the architecture leaves open are those of the device. The chips
        sustain the stack's share of the clock, and all of the HBM bandwidth.
        """
        device = Device.of_architecture(architecture, self.device, stack)
        cluster = self.cluster.model_copy(update={"calibrated": None, "stack": stack.name})
        return self.model_copy(update={"cluster": cluster, "device": device, "stack": stack})


class AskedPlan(Noun):
    """Planning request: a model and a batch on devices of a system, with a runtime."""

    model: Model
    """Full spec of the model."""
    system: Location
    """Name of a file in config/systems, or path."""
    stack: Location
    """Software stack: name of a file in config/stacks, or path."""
    devices: Count
    """Number of devices to train on."""
    global_batch: PositiveInt
    """Samples per training step."""
    sequence: PositiveInt
    """Tokens per sample."""
    runtime: Runtime = "megatron"
    """Training software; only layouts that it can run are considered."""
    precision: Compute = PRECISION
    """Compute precision of GEMMs with the blocks' weights; everything else is bf16, with states in mixed
    precision."""
    load: ExpertLoad | None = None
    """Expert load of the busiest rank: balanced, a factor over balanced routing, or a routing law; default:
    the expected one of the software stack."""
    fixed: dict[Label, int | Text] = Field(default_factory=dict)
    """Layout fields fixed by the user, with their values."""
    rank: Rank = RANK
    """Step time for ranking and certificate: `expected`, or `prudent` with the measured shares of overlap and
    the prudent expert load."""
    robust: bool = False
    """If true, plans are ordered by their worst regret over assumptions on overlap and on the load of
    experts, and not by their step time alone."""
    machine: StoredMachine | None = None
    """Contents of the files that `system` and `stack` name; null in older plan files, which need these files.
    """
    chips: tuple[Architecture, ...] | None = Field(None, min_length=2)
    """Chips to choose from, each with its clock and HBM; null: the machine's device alone. The machine of a
    plan has the best one."""

    @model_validator(mode="after")
    def _chips_are_given(self) -> Self:
        if self.runtime == "chip" and (self.machine is None or not self.machine.stack.scheduled):
            raise ValueError("runtime: chip needs the chips of an architecture: plan with --architecture")
        return self

    @property
    def calibrated(self) -> Calibration | None:
        """Fit of the system to a user's own runs, if there is one."""
        return self.stored_machine().cluster.calibrated

    def stored_machine(self, folder: Path = FOLDER) -> StoredMachine:
        """Contents of the files of system, device and stack: as stored, or else read by their names."""
        if self.machine is not None:
            return self.machine
        cluster, device = load_cluster(self.system, folder)
        stack = load_stack_of(cluster, folder, self.stack)
        if stack.scheduled:
            raise PhazeError(
                f"stack {stack.name}: schedules operators on an architecture, and {self.runtime} trains on "
                "devices",
                "leave out --stack, or plan with --architecture",
            )
        return StoredMachine(cluster=cluster, device=device, stack=stack)

    def on_chip(self, place: int) -> Self:
        """The request for one of its chips."""
        if self.chips is None or self.machine is None:
            return self
        machine = self.machine.on_architecture(self.chips[place], self.machine.stack)
        return self.model_copy(update={"machine": machine})

    def stored(self, folder: Path = FOLDER) -> Self:
        """The request as a plan file stores it: with the contents of its files, and the stack's load."""
        machine = self.stored_machine(folder)
        return self.model_copy(update={"machine": machine, "load": self.expert_load(machine.stack)})

    def expert_load(self, stack: Stack) -> ExpertLoad:
        """Expert load of the request, by default the stack's expected one; balanced without experts."""
        return self.load or (stack.load.expected if self.model.experts else BALANCED)


class ChosenLayout(DerivedNoun, LayoutFields[int, bool, Zero, str], required=REQUIRED):
    """Layout of a plan: all parallel widths, sharding, recomputation and schedule.
    Ranks are in Megatron-Core's order.
    """

    schedule: Label
    """Pipeline schedule."""
    pipeline_layout: Label
    """Blocks of every virtual stage as Megatron-Core's layout string of E, t and L."""

    @property
    def spread(self) -> Layout:
        """Convert to a layout without schedule and stages."""
        return Layout(**self.model_dump(exclude={"schedule", "pipeline_layout"}))


class StageShare(Noun):
    """Blocks of a plan's virtual stage; the first stage also has the embedding, the last one the head."""

    rank: Index
    """Pipeline rank of the stage."""
    layers: Index
    """Number of blocks."""
    recomputed: Index
    """Number of fully recomputed blocks, the first ones of the stage."""
    kinds: dict[Label, Index] = Field(default_factory=dict)
    """Number of layers by kind, for a model with several kinds."""


class RankMemory(Noun):
    """Peak memory of a device of a pipeline rank, in GiB."""

    peak_gib: Result
    """Peak memory of all tensors."""
    weights_gib: Result
    """Weights and gradients."""
    optimizer_gib: Result
    """Optimizer states."""
    activations_gib: Result
    """Activations of the microbatches in flight, including the working memory of the running one."""
    work_gib: Result
    """Part of `activations_gib`: working memory of the running microbatch."""
    in_use_gib: UsedGib | None = None
    """All memory in use: tensors and the parts below."""
    parts_gib: dict[Label, Result] = Field(default_factory=dict)
    """Expected overheads in addition to tensors: fragmentation, workspaces, CUDA graphs, collectives,
    context."""


class RankedPlan(Noun):
    """Plan with its step time and memory: a row of the ranked table."""

    time_s: Result
    """Expected step time in seconds."""
    time_s_low: Result | None = None
    """Lower end of the 80 % interval of the step time, from similar measured runs; null if no
    measured run is similar."""
    time_s_high: Result | None = None
    """Upper end of the 80 % interval of the step time."""
    prudent_s: Result | None = None
    """Step time in seconds with the measured shares of overlap and the prudent expert load; null in older
    files."""
    tokens_per_s_per_device: Result
    """Throughput per device in tokens per second."""
    mfu: Result
    """Model FLOPs utilisation: FLOPs without recomputation and with half of causal attention, over the peak
    in the compute precision."""
    memory_gib: tuple[Result, ...]
    """Peak memory of tensors on a device in GiB, by pipeline rank."""
    in_use_gib: UsedGib | None = None
    """All memory in use on the device with peak memory; `memory_gib` counts the tensors only."""
    bubble_share: Result
    """Pipeline bubble: share of device time spent waiting for other stages."""
    exposed_communication_share: Result
    """Exposed communication: share of device time spent only on communication."""
    bound_by: Label
    """Activity that takes most of the device time."""
    recomputed_layers: Index
    """Number of fully recomputed blocks in all stages."""
    layout: ChosenLayout
    """Layout of the plan."""
    twins: tuple[ChosenLayout, ...] = ()
    """Layouts within 0.1 % of the plan's time and 1 % of its memory, which have no row of their own."""

    @property
    def fullest_gib(self) -> float:
        """Peak memory of tensors over all devices, in GiB."""
        return max(self.memory_gib)

    @property
    def used_gib(self) -> float:
        """Expected memory in use on the device with peak memory, in GiB; in older files, tensors only."""
        return self.fullest_gib if self.in_use_gib is None else self.in_use_gib.expected

    def by(self, rank: Rank) -> float:
        """Step time in seconds of the given kind: expected, or prudent (conservative)."""
        return self.time_s if rank == "expected" or self.prudent_s is None else self.prudent_s


class UndecidedPlan(Noun):
    """Layout that may be faster than the best plan by more than the requested gap."""

    fields: dict[Label, int | Text]
    """Layout fields by name, in the form that `--fix` takes."""
    bound_s: Result
    """Lower bound on the layout's step time in seconds, over all pipeline splits."""
    gain: Finite
    """Possible gain as a share of the best plan's step time."""


class PlanCertificate(Noun):
    """Proof of a plan: outcome of every layout, and a lower bound on the step time of all layouts."""

    layouts: Index
    """Number of layouts: the sum of the counts below."""
    illegal: dict[Label, Index]
    """Number of layouts that the runtime cannot run, by the first rule they break."""
    same: Index
    """Number of layouts equivalent to another one."""
    unfit: Index
    """Number of layouts that exceed memory for every pipeline split."""
    lacking_gib: Result | None = None
    """Smallest memory shortfall of the unfit layouts in GiB, on their peak-memory rank; null if none fits."""
    bounded: dict[Label, Index]
    """Number of layouts excluded by a lower bound on step time, by origin of the bound."""
    simulated: Index
    """Number of layouts with simulated pipeline splits."""
    divisions: Index
    """Number of simulated pipeline splits."""
    bound_s: Result | None = None
    """Lower bound in seconds on the step time of all layouts and pipeline splits; null if nothing fits."""
    gap: Finite
    """Optimality gap: share of the best plan's step time by which a better plan could be faster."""
    rows: Index | None = None
    """Number of leading rows in the ranked table that no other layout beats by more than the requested gap;
    null in older files."""
    stopped: Text | None = None
    """Reason why the search ended early: a limit of time or of work, or an interruption; null if its gap is
    closed."""
    undecided: tuple[UndecidedPlan, ...] = ()
    """Layouts that may beat the first plan by more than the requested gap, with the smallest lower bounds."""
    undecided_layouts: Index = 0
    """Number of all undecided layouts."""
    schedule_gap: Result | None = None
    """Largest share by which a shorter static schedule of a layer's operators may exist: layers are priced
    with the schedule found. Null on devices without static schedules, and in older files."""

    @property
    def legal(self) -> int:
        """Number of distinct layouts that the runtime can run."""
        return self.layouts - sum(self.illegal.values()) - self.same


class ChipOutcome(Noun):
    """Outcome of one chip of a search over several."""

    chip: Label
    """Name of the architecture."""
    area_mm2: Result | None = None
    """Chip area in mm²."""
    bound_s: Result | None = None
    """Lower bound in seconds on the step time on this chip, over all layouts and pipeline splits; null if no
    layout fits."""
    time_s: Result | None = None
    """Step time in seconds of the fastest plan found on this chip; null if none was needed or fits."""
    outcome: Literal["best", "slower", "excluded", "unfit", "undecided"]
    """`best`: has the plan of the answer. `slower`: its layouts were searched. `excluded`: the bound with the
    layout free is not below the best plan. `unfit`: no layout fits. `undecided`: the search ended before."""


class RecipeRow(Noun):
    """Published recipe for the requested model and system, priced like the plans."""

    source: Label
    """File in config/recipes: the stack or model that the recipe belongs to."""
    release: Label
    """Release, or year and month of publication."""
    shape: Label
    """Short description of the layout."""
    stated_in: Text
    """Repository or paper, and the file or table in it."""
    plan: RankedPlan | None = None
    """The recipe as a row of the ranked table; null if the runtime cannot run it."""
    over_plan: Result | None = None
    """Ratio of the recipe's step time to the first plan's, both of the kind that ranks plans."""
    lacking_gib: Result | None = None
    """Memory shortfall in GiB of the device with peak memory; null if the recipe fits."""
    reason: Text | None = None
    """Reason why the runtime cannot run the recipe."""


class WhatIf(Noun):
    """Step time after one change to the plan or system."""

    change: Label
    """Description of the change."""
    time_s: Result
    """Step time in seconds for the plan's number of samples, of the kind that ranks plans."""
    replanned: Flag
    """True if the search for a better plan of the same widths was repeated; false: same plan, new price."""


class Explained(Noun):
    """Best plan with some fields fixed, or the reason why there is none."""

    fixed: dict[Label, int | Text]
    """The fixed fields."""
    best: RankedPlan | None = None
    """Best plan with the fixed fields."""
    longer_s: dict[Label, Finite] = Field(default_factory=dict)
    """Additional step time in seconds over the best plan of all, by part of the step."""
    lacking_gib: Result | None = None
    """If nothing fits: memory shortfall in GiB of the closest layout, on the rank with peak memory."""
    closest: ChosenLayout | None = None
    """If nothing fits: the layout with the smallest shortfall."""
    memory: tuple[RankMemory, ...] = ()
    """Memory of the closest layout by pipeline rank, with equal stages and all allowed recomputation."""
    reason: Text | None = None
    """Reason why the runtime cannot run a layout with the fixed fields."""


class AskedRun(DerivedNoun, RunFields, required=("tokens",)):
    """Requested training run: tokens, price, deadline and failures."""

    tokens: Positive
    """Training tokens."""
    currency: Text | None = None
    """Currency of the price, as the user wrote it; null if only a number was given."""

    @model_validator(mode="after")
    def _failures_are_whole(self) -> Self:
        are_set = [value is not None for value in (self.mtbf_hours, self.checkpoint_s, self.restart_s)]
        if any(are_set) and not all(are_set):
            raise ValueError("mtbf, checkpoint and restart must be given together")
        return self


class Goodput(Noun):
    """Useful fraction of the training time, at the optimal checkpoint interval (Daly 2006)."""

    share: Result
    """Share of the time; the rest is checkpoints, restarts and repeated steps."""
    interval_s: Result
    """Seconds of training between checkpoints."""
    failure_s: Result
    """Mean seconds between failures of any device."""


class TrainingRun(Noun):
    """Duration and cost of a full training run with a plan, at its expected step time."""

    asked: AskedRun
    """The requested run."""
    days: Result
    """Duration in days, including failures."""
    days_low: Result | None = None
    """Duration at the lower end of the step time's interval; null without an interval."""
    days_high: Result | None = None
    """Duration at the upper end of the step time's interval; null without an interval."""
    days_prudent: Result | None = None
    """Duration at the prudent step time; null in older files."""
    device_hours: Result
    """Device-hours of all devices."""
    cost: Result | None = None
    """Total price; null without a price per device-hour."""
    goodput: Goodput | None = None
    """Useful share of the time; null without failures."""
    in_time: Flag | None = None
    """True if the run meets the deadline."""
    is_the: tuple[Literal["cheapest", "fastest", "closest"], ...] = ()
    """Among several numbers of devices: `cheapest` and `fastest` of those that meet the deadline; `closest`
    to it if none does."""


class NearRun(Noun):
    """Measured run similar to a plan, with its prediction error."""

    source: Label
    """Name of the file in config/measured."""
    label: Label
    """Label of the run's row in that file."""
    distance: Result
    """Dissimilarity; 0 for equal stack, device, precision, kinds of parallelism and utilisation."""
    error: Finite
    """Prediction error: predicted over measured time, minus 1."""
    differs: tuple[Label, ...] = ()
    """Stack, device or precision that the run has instead, and features that only one of the two has."""


class FewestNodes(Noun):
    """Smallest number of whole nodes on which a model fits, and the reason why fewer do not suffice."""

    nodes: Count
    """Number of nodes."""
    devices: Count
    """Number of devices on these nodes."""
    smaller: Index | None = None
    """Next smaller number of nodes whose total memory could hold the weights; null for none."""
    lacking_gib: Result | None = None
    """Lower bound on all layouts' memory shortfall per device in GiB on `smaller` nodes; null if the runtime
    cannot run any."""
    undecided: Index = 0
    """Layouts on the smaller number of nodes that no bound rules out and no tested split fits."""


class PlanFile(Noun):
    """Fields that every plan file starts with."""

    format: Text
    """Kind of file."""
    version: Literal[1] = 1
    """Version of the file format."""
    question: AskedPlan
    """The planning request."""
    sha256: dict[Label, Label] | None = None
    """Checksum of every other field, so that a changed one is refused; null in older files."""


class TrainingPlan(PlanFile, RankedPlan):
    """Plan for training a model on a cluster, with its certificate and assumptions."""

    format: Literal["phaze-plan"] = "phaze-plan"
    stages: tuple[StageShare, ...] = Field(min_length=1)
    """Virtual stages in order of the data flow."""
    times_s: dict[Label, Finite]
    """Step time in seconds by activity, averaged over all devices."""
    memory: tuple[RankMemory, ...]
    """Peak memory by pipeline rank."""
    certificate: PlanCertificate
    """Proof of how far the plan's predicted step time can be from the optimum."""
    alternatives: tuple[RankedPlan, ...]
    """The ranked table: this plan and the next best ones."""
    chips: tuple[ChipOutcome, ...] | None = None
    """Outcome of every chip, by increasing bound, if the question has several."""
    recipes: tuple[RecipeRow, ...] = ()
    """Published recipes for the requested model, system, devices, sequence and precision."""
    planners: tuple[PlannerRow, ...] = ()
    """Plans by planners from the literature, if requested."""
    next_longer_s: dict[Label, Finite]
    """Additional time in seconds of the second-best plan over this one, by part of the step, largest
    first."""
    uncalibrated: Text | None = None
    """Reason why the step time has no interval: the device or feature that no measured run has."""
    above_measured: Text | None = None
    """Best measured utilisation of the device and precision, if the predicted one is above it."""
    prudence: Text | None = None
    """Note on whether a short search by expected time finds a faster plan, if prudent time ranks layouts."""
    may_fit: Text | None = None
    """Range of memory that the plan needs, the setting that may help, and the first plan that surely fits, if
    the plan exceeds memory at the upper end of its range."""
    other_batch: Text | None = None
    """Batch near the requested one whose divisors limit data parallelism less, and the throughput that it
    gains; null if it gains none."""
    rests_on: tuple[Text, ...] = ()
    """Assumptions that decide between the first plans, and the plan that loses least if they do not hold."""
    measure_first: tuple[Text, ...] = ()
    """Plans whose measurement would decide, and what each outcome says, if requested."""
    what_if: tuple[WhatIf, ...] = ()
    """Step times after changes, such as 10 % more of a resource or a larger batch."""
    explained: Explained | None = None
    """Explanation of a choice, if requested."""
    evidence: tuple[NearRun, ...] = ()
    """Nearest measured runs."""
    run: TrainingRun | None = None
    """The full training run, if a number of training tokens was given."""
    fewest: FewestNodes | None = None
    """Smallest number of nodes that the model fits on, if requested."""
    assumptions: tuple[Text, ...]
    """Assumptions underlying the answer."""
    versions: dict[Label, Text]
    """Versions of programs, by name."""


class UnfitPlan(PlanFile):
    """Reason why no layout fits, and the layout with the smallest memory shortfall."""

    format: Literal["phaze-no-plan"] = "phaze-no-plan"
    certificate: PlanCertificate
    """Outcome of every layout."""
    reason: Text
    """Reason why there is no plan."""
    layout: ChosenLayout | None = None
    """The layout with the smallest memory shortfall; null if the runtime cannot run any."""
    lacking_gib: Result | None = None
    """Memory shortfall in GiB on the layout's rank with peak memory, with these stages."""
    memory: tuple[RankMemory, ...] = ()
    """Memory of that layout by pipeline rank, with equal stages and all allowed recomputation."""
    chips: tuple[ChipOutcome, ...] | None = None
    """Outcome of every chip, if the question has several."""
