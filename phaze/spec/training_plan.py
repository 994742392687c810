"""Files of plans: how a model is trained on a cluster, as `plan` writes it and `simulate` replays it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.layout import (
    BALANCED,
    Compute,
    CpKind,
    Layout,
    Offload,
    Recompute,
    Zero,
    cp_kind_of,
    offload_of,
    recompute_of,
)
from phaze.spec.memory import UsedGib
from phaze.spec.model import Model
from phaze.spec.noun import Noun
from phaze.spec.planner_rows import PlannerRow
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
    read_by,
)

Rank = Literal["prudent", "expected"]
"""Time by which layouts are ranked."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
TIE = 1e-3
"""Share of a step by which plans are as fast as each other: the simpler one is ahead."""


class AskedPlan(Noun):
    """What was asked: a model and a batch on devices of a system, trained by a runtime."""

    model: Model
    """The whole spec of the model."""
    system: Location
    """File in config/systems, or path of one."""
    stack: Location
    """Software stack: file in config/stacks, or path of one."""
    devices: Count
    """Devices that train."""
    global_batch: PositiveInt
    """Samples of a batch."""
    sequence: PositiveInt
    """Tokens of a sample."""
    runtime: Literal["megatron", "torchtitan", "deepspeed", "maxtext"] = "megatron"
    """Software whose rules a layout keeps."""
    precision: Compute = "bf16"
    """Of products of blocks' weights; all else is in bf16, states in mixed precision."""
    load: ExpertLoad = BALANCED
    """Rows of the experts of the busiest rank: balanced, a factor over balanced rows, or a law of routing."""
    fixed: dict[Label, int | str] = Field(default_factory=dict)
    """Fields of the layout that were given, with their values."""
    rank: Rank = "expected"
    """Time by which layouts are ranked, and that the certificate is about: the prudent one, with the proven
    shares of overlap and the prudent load of experts, or the expected one."""


class ChosenLayout(Noun):
    """Widths of all kinds of parallelism, and what ranks keep; ranks as Megatron-Core numbers them."""

    tp: PositiveInt
    """Tensor parallel."""
    cp: PositiveInt
    """Context parallel."""
    ep: PositiveInt
    """Expert parallel."""
    etp: PositiveInt
    """Tensor parallel inside an expert."""
    pp: PositiveInt
    """Pipeline parallel."""
    vp: PositiveInt
    """Virtual stages of a rank."""
    dp: PositiveInt
    """Data parallel."""
    microbatch: PositiveInt
    """Samples of a microbatch."""
    sequence_parallel: Flag
    """Whether activations between layers are cut along the sequence."""
    zero: Zero
    """What replicas share: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights."""
    recompute: Annotated[Recompute, read_by(recompute_of)]
    """What runs forward again: none, selective (the core of attention), full (whole blocks, those of
    `stages`), or modules of every block joined by +."""
    cp_kind: Annotated[CpKind, read_by(cp_kind_of)] = "all_gather"
    """How context parallel ranks exchange keys and values: all_gather, p2p, a2a, or a2a+p2p:k, the last two
    inside groups of k ranks and among them."""
    load: ExpertLoad = BALANCED
    """Rows of the experts of the busiest rank: balanced, a factor over balanced rows, or a law of routing."""
    compute: Compute = "bf16"
    """Numbers that products of blocks' weights multiply."""
    offload: Annotated[Offload, read_by(offload_of)] = "none"
    """What waits in the host's memory: none, or inputs of modules, `layers:k` and `optimizer` joined by +."""
    schedule: Label
    """Order of the passes."""
    pipeline_layout: Label
    """Blocks of every virtual stage as Megatron-Core's layout string, E, t and L."""

    @property
    def spread(self) -> Layout:
        """The layout without its schedule and its stages."""
        return Layout(**self.model_dump(exclude={"schedule", "pipeline_layout"}))


class StageShare(Noun):
    """A virtual stage; the first one also has the embedding, the last one the head with the loss."""

    rank: Index
    """Pipeline rank that holds it."""
    layers: Index
    """Blocks of the model."""
    recomputed: Index
    """Of these, how many run forward again in full: the first ones."""
    kinds: dict[Label, Index] = Field(default_factory=dict)
    """Layers by kind, of a model with several."""


class RankMemory(Noun):
    """Memory of a device of a pipeline rank at its fullest moment, in GiB."""

    peak_gib: Result
    """All of it."""
    weights_gib: Result
    """Weights and their gradients."""
    optimizer_gib: Result
    """Optimizer states."""
    activations_gib: Result
    """Activations of the microbatches in flight, and what the one at work needs beside them."""
    work_gib: Result
    """Of it the most that a microbatch at work needs."""
    in_use_gib: UsedGib | None = None
    """All that is in use, tensors and the parts below, each as expected."""
    parts_gib: dict[Label, Result] = Field(default_factory=dict)
    """Beside tensors: fragments, workspaces, graphs, collectives, context."""


class RankedPlan(Noun):
    """A plan with what it costs: a row of the ranked table."""

    time_s: Result
    """Seconds of a step."""
    time_s_low: Result | None = None
    """Lower end of the 80 % interval, from similar measured runs; none where no run of the device is
    measured."""
    time_s_high: Result | None = None
    """Upper end of that interval."""
    prudent_s: Result | None = None
    """Seconds of a step with the proven shares of overlap and the prudent load of experts; none in files of
    earlier versions."""
    tokens_per_s_per_device: Result
    """Throughput of a device."""
    mfu: Result
    """FLOPs that the model needs, attention's causal half and no recomputation, over the precision's peak."""
    memory_gib: tuple[Result, ...]
    """Fullest moment of a device, by pipeline rank."""
    in_use_gib: UsedGib | None = None
    """All that is in use on the device with peak memory, of which `memory_gib` are the tensors."""
    bubble_share: Result
    """Share of device time in which devices wait for other stages."""
    exposed_communication_share: Result
    """Share of device time in which devices only communicate."""
    bound_by: Label
    """What takes most of the device time."""
    recomputed_layers: Index
    """Blocks that run forward again in full, of all stages."""
    layout: ChosenLayout
    """The layout."""
    twins: tuple[ChosenLayout, ...] = ()
    """Layouts with its time within 0.1 % and its memory within 1 %, which have no row of their own."""

    @property
    def fullest_gib(self) -> float:
        """Memory of the fullest device."""
        return max(self.memory_gib)

    @property
    def used_gib(self) -> float:
        """Memory that the fullest device is expected to have in use; of its tensors in older files."""
        return self.fullest_gib if self.in_use_gib is None else self.in_use_gib.expected

    def by(self, rank: Rank) -> float:
        """Seconds of a step that layouts are ranked by."""
        return self.time_s if rank == "expected" or self.prudent_s is None else self.prudent_s


class UndecidedPlan(Noun):
    """A layout that may be faster than the best plan by more than the gap that was asked for."""

    fields: dict[Label, int | str]
    """Its fields by name, as `--fix` takes them."""
    bound_s: Result
    """Seconds that it does not go below, however it is divided."""
    gain: Finite
    """Share of the best plan's time by which it could be faster."""


class PlanCertificate(Noun):
    """What became of every layout, and what none of them can be faster than."""

    layouts: Index
    """Layouts in all: the sum of those below."""
    illegal: dict[Label, Index]
    """That the runtime cannot run, by the first rule that they break."""
    same: Index
    """That do the same as another one."""
    unfit: Index
    """That have not enough memory, however they are divided."""
    lacking_gib: Result | None = None
    """The least that one of these lacks on its rank with peak memory, where others fit."""
    bounded: dict[Label, Index]
    """Excluded by a bound of their time, by what it is from."""
    simulated: Index
    """Of which divisions into stages were simulated."""
    divisions: Index
    """Divisions that were simulated."""
    bound_s: Result | None = None
    """Seconds that no layout goes below, however it is divided; none where nothing fits."""
    gap: Finite
    """Share of the best plan's time by which a better one could be faster."""
    rows: Index | None = None
    """First rows of the ranked table than which no other layout is faster by more than the gap that was asked
    for; none in older files."""
    undecided: tuple[UndecidedPlan, ...] = ()
    """Layouts with the least bounds of those that may be faster than the first plan by more than that gap."""
    undecided_layouts: Index = 0
    """Such layouts in all."""


class RecipeRow(Noun):
    """A published recipe of the question, at the price of its plans."""

    source: Label
    """File in config/recipes: the stack or model whose recipe it is."""
    release: Label
    """Release, or year and month of publication."""
    shape: Label
    """Layout in a few words."""
    stated_in: str
    """Repository or paper, and the file or table there."""
    plan: RankedPlan | None = None
    """The recipe as a row of the ranked table; none where it cannot run."""
    over_plan: Result | None = None
    """Its time over that of the first plan, both those that plans are ranked by."""
    lacking_gib: Result | None = None
    """What the device with peak memory lacks; none where the recipe fits."""
    reason: str | None = None
    """Why the runtime cannot run it."""


class WhatIf(Noun):
    """What a step takes when one thing is otherwise."""

    change: Label
    """What is otherwise."""
    time_s: Result
    """Seconds of a step of as many samples as the plan's, as plans are ranked."""
    replanned: Flag
    """Whether a better plan of the same widths was looked for; else the same plan is priced again."""


class Explained(Noun):
    """The best plan with some fields fixed, or why there is none."""

    fixed: dict[Label, int | str]
    """Fields that were fixed."""
    best: RankedPlan | None = None
    """The best plan with them."""
    longer_s: dict[Label, Finite] = Field(default_factory=dict)
    """Seconds of a step by which its parts are longer than those of the best of all."""
    lacking_gib: Result | None = None
    """What the rank with peak memory lacks in the layout that comes closest, where nothing fits."""
    closest: ChosenLayout | None = None
    """Then the layout that comes closest."""
    memory: tuple[RankMemory, ...] = ()
    """Its memory by pipeline rank, with equal stages that run all blocks again where they may."""
    reason: str | None = None
    """Why the runtime cannot run it."""


class AskedRun(Noun):
    """A whole training as it was asked for: its tokens, price, target and failures."""

    tokens: Positive
    """Tokens to train on."""
    price: Positive | None = None
    """Price of a device-hour, in any currency."""
    days: Positive | None = None
    """Days in which it is to end."""
    mtbf_hours: Positive | None = None
    """Device-hours between failures; without them nothing fails."""
    checkpoint_s: Positive | None = None
    """Seconds that training waits for a checkpoint."""
    restart_s: Positive | None = None
    """Seconds from a failure until training goes on from the last checkpoint."""

    @model_validator(mode="after")
    def _failures_are_whole(self) -> Self:
        given = [one is not None for one in (self.mtbf_hours, self.checkpoint_s, self.restart_s)]
        if any(given) and not all(given):
            raise ValueError("mtbf, checkpoint and restart must be given together")
        return self


class Goodput(Noun):
    """Share of a training's time that trains, with checkpoints as often as is best (Daly 2006)."""

    share: Result
    """Of the time; the rest are checkpoints, restarts and steps that are done again."""
    interval_s: Result
    """Seconds of training between checkpoints."""
    failure_s: Result
    """Seconds between failures of any device, on average."""


class TrainingRun(Noun):
    """Days and cost of a whole training with a plan."""

    asked: AskedRun
    """What was asked."""
    days: Result
    """Days that it takes, failures included."""
    days_low: Result | None = None
    """Days at the lower end of the interval of the step's time, where there is one."""
    days_high: Result | None = None
    """Days at its upper end."""
    device_hours: Result
    """Hours of all devices."""
    cost: Result | None = None
    """Their price."""
    goodput: Goodput | None = None
    """What failures leave, where they were asked for."""
    in_time: Flag | None = None
    """Whether it ends within the days that were asked for."""
    is_the: tuple[Literal["cheapest", "fastest", "closest"], ...] = ()
    """Among several numbers of devices: the cheapest and the fastest of those in time, or where none is the
    closest."""


class NearRun(Noun):
    """A measured run that is like a plan, and how far its prediction is off."""

    source: Label
    """File of config/measured."""
    label: Label
    """Row there."""
    distance: Result
    """How unlike it is, 0 for the same stack, device, precision, kinds of parallelism and utilisation."""
    error: Finite
    """Predicted over measured time, less 1."""


class FewestNodes(Noun):
    """On how few whole nodes a model fits, and why on no fewer."""

    nodes: Count
    """Nodes."""
    devices: Count
    """Their devices."""
    smaller: Index | None = None
    """The next smaller number of nodes, where their memory in all holds the weights."""
    lacking_gib: Result | None = None
    """GiB of a device that every layout lacks there at least; none where the runtime can run no layout."""
    undecided: Index = 0
    """Layouts there that neither a bound rules out nor a pipeline split fits."""


class TrainingPlan(RankedPlan):
    """How a model is trained on a cluster, with its certificate and what it rests on."""

    format: Literal["phaze-plan"] = "phaze-plan"
    """What the file holds."""
    version: Literal[1] = 1
    """Version of the format."""
    question: AskedPlan
    """What was asked."""
    stages: tuple[StageShare, ...] = Field(min_length=1)
    """Virtual stages in the order of the data flow."""
    times_s: dict[Label, Finite]
    """Seconds of a step by what devices spend them on, a mean over all devices."""
    memory: tuple[RankMemory, ...]
    """Memory by pipeline rank."""
    certificate: PlanCertificate
    """How far from the best the plan can be, under its price."""
    alternatives: tuple[RankedPlan, ...]
    """The ranked table: this plan and the next ones by their time."""
    recipes: tuple[RecipeRow, ...] = ()
    """Published recipes for the model, system, devices, sequence and precision of the question."""
    planners: tuple[PlannerRow, ...] = ()
    """Plans of planners of the literature, where they were asked for."""
    next_longer_s: dict[Label, Finite]
    """Seconds, as plans are ranked, by which parts of a step of the next one are longer; largest first."""
    uncalibrated: str | None = None
    """Why the time is an upper limit of speed, where no run of the device is measured."""
    prudence: str | None = None
    """Expected time that the prudent choice costs, where layouts are ranked by prudent time."""
    may_fit: str | None = None
    """How the plan is made to fit, and which of the next ones does, where it may not fit at the upper end of
    its memory range."""
    rests_on: tuple[str, ...] = ()
    """Assumptions without which another one of the first plans would be the fastest."""
    what_if: tuple[WhatIf, ...] = ()
    """What would make it faster."""
    explained: Explained | None = None
    """What was asked to be explained."""
    evidence: tuple[NearRun, ...] = ()
    """Nearest measured runs, where they were asked for."""
    run: TrainingRun | None = None
    """The whole training, where its tokens were given."""
    fewest: FewestNodes | None = None
    """On how few nodes the model fits, where this was asked for."""
    assumptions: tuple[str, ...]
    """What the answer rests on."""
    versions: dict[Label, str]
    """Of programs, by name."""


class UnfitPlan(Noun):
    """Why nothing fits: the layout that comes closest, as equal stages that run every block again."""

    format: Literal["phaze-no-plan"] = "phaze-no-plan"
    """What the file holds."""
    version: Literal[1] = 1
    """Version of the format."""
    question: AskedPlan
    """What was asked."""
    certificate: PlanCertificate
    """What became of every layout."""
    reason: str
    """Why there is no plan."""
    layout: ChosenLayout | None = None
    """The layout that lacks the least memory; none where the runtime can run none."""
    lacking_gib: Result | None = None
    """What its rank with peak memory lacks with these stages."""
    memory: tuple[RankMemory, ...] = ()
    """Its memory by pipeline rank, with equal stages that run all blocks again where they may."""
