"""Clusters: devices, software stacks and networks."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from phaze.layout import Compute
from phaze.spec.architecture import Architecture
from phaze.spec.memory import Fragments, MemoryKind
from phaze.spec.names import Runtime
from phaze.spec.network import Torus, check_nested
from phaze.spec.noun import Noun
from phaze.spec.overlap import Overlap, Overlapped, OverlapShare, proven_shares
from phaze.spec.speeds.attention import AttentionKernel
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.speeds.experts import ExpertKernel, ExpertLoads, Experts, ExpertSpeed
from phaze.spec.speeds.products import ProductSpeed
from phaze.spec.values import (
    Count,
    Flag,
    Label,
    Location,
    Month,
    Name,
    Once,
    Part,
    Positive,
    PositiveInt,
    Result,
    Size,
    Whole,
    as_number,
)

Captured = Literal["attn", "mlp", "mamba", "moe_router", "moe_preprocess", "moe", "full"]
"""Part of a layer that a CUDA graph captures, or `full`, the whole iteration (Megatron-Core,
`--cuda-graph-scope`)."""


class Scenario(Noun):
    """Cluster of a study as its formulas see it, with the training batch and the area limit of a chip.

    The network is flat: any two devices have one bandwidth.
    """

    devices: Count = 1024
    """Number of accelerators, K."""
    network_bandwidth_bytes_per_s: Positive = 4294967296.0
    """Bandwidth between any two devices, in bytes per second."""
    hbm_bandwidth_bytes_per_s: Positive = 1.2e12
    """Bandwidth between HBM and global buffer of a device, in bytes per second."""
    clock_hz: Positive = 1.05e9
    """Clock of all cores in Hz."""
    all_reduce_factor: Positive = 2.0
    """Factor f of all-reduce time over n devices, f · (n − 1)/n · bytes / bandwidth: 2 for a ring whose links
    carry both directions at once, 4 if both directions share the bandwidth (Phaze, C.2)."""
    global_batch: PositiveInt = 4096
    """Samples per training step."""
    area_limit_mm2: Positive | Name = "tpu-v4"
    """Maximum chip area in mm², or the name of an architecture whose area is the limit."""


class Device(Architecture):
    """Chip: an architecture with its clock, memory, and the speeds that software reaches on it."""

    clock_hz: Positive
    """Clock of all cores in Hz."""
    hbm_gib: Positive
    """HBM capacity in GiB."""
    number_bytes: Literal[2, 4] = 2
    """Bytes per element of the precision that the arrays multiply at full speed, and of the elements in its
    buffers."""
    reserve_gib: Size = 0.0
    """HBM in GiB that plans leave free for driver, contexts and communication in typical use."""
    driver_gib: Size = 0.0
    """HBM in GiB that the driver keeps and no process can use."""
    workspace_mib: Size = 0.0
    """Workspace in MiB of the GEMM library, for each stream that runs GEMMs."""
    hbm_bandwidth_bytes_per_s: Positive
    """HBM bandwidth in bytes per second."""
    host_bandwidth_bytes_per_s: Size = 0.0
    """Bandwidth of copies to and from host memory in bytes per second, per direction, while all devices of
    the host copy; 0: unknown."""
    sustained_clock: Part = 1.0
    """Share of the clock that the cores sustain at full load within the power limit."""
    boost: Positive = 1.0
    """Clock with more of the power for tensor cores (`vboost` of a stack), relative to `sustained_clock`."""
    sustained_hbm: Part = 1.0
    """Share of the HBM bandwidth that kernels reach."""
    spread: Size = 0.0
    """Mean delay of a device in a step, as a share of its kernel time: kernels of the slowest of n devices
    take longer by this share times ln n."""
    kernel_s: Size = 0.0
    """Fixed time per kernel in seconds, in which the device starts and drains."""
    products: dict[Compute, ProductSpeed] = Field(default_factory=dict)
    """Speeds of GEMMs by precision; must include bf16. Default: speeds follow from the arrays by
    the mapper of architectures."""
    in_steps: dict[Compute, Positive] = Field(default_factory=dict)
    """Rate of GEMMs in training steps relative to that of measured kernels, by precision, where the steps of
    several sources contradict the kernels; default 1."""
    fixed_shares: bool = False
    """Kernels assign work to processors statically: if a collective occupies some of them, their shares run
    in a second round, at half the speed (CUTLASS, Blackwell Cluster Launch Control, static scheduler)."""
    aligned_bytes: PositiveInt = 1
    """Alignment of operand rows in bytes; GEMMs with unaligned rows run on the vector lanes."""
    attention: dict[Label, AttentionKernel] = Field(default_factory=dict)
    """Speeds of attention kernels by generation; a software stack chooses one."""
    experts: dict[ExpertKernel, dict[Compute, ExpertSpeed]] = Field(default_factory=dict)
    """Speeds of kernels for experts, by kernel and precision; without them experts run at the speed of
    batched GEMMs."""
    known_as: tuple[Label, ...] = ()
    """Other names of the device in tables of measured kernels."""
    stack: Name | None = None
    """The only software stack that runs on the device, a file in config/stacks; default: any."""
    assumed_from: Label | None = None
    """Device that supplied the missing fields of a device specified by peak, HBM capacity and bandwidth."""

    def __hash__(self) -> int:
        """Hash of the name and rates; speeds of kernels are dicts and cannot be hashed."""
        return hash((self.name, self.clock_hz, self.sustained_clock, self.sustained_hbm, self.kernel_s))

    @classmethod
    def of_architecture(cls, architecture: Architecture, system: Scenario | Device, stack: Stack) -> Self:
        """Chip of an architecture, which sustains the share of its clock that the stack states.

        Where the architecture has no clock or HBM, it has that of the scenario or device.
        """
        fields = completed(architecture, system).model_dump()
        return cls.parse({**fields, "sustained_clock": stack.sustained_clock}, architecture.name)

    @model_validator(mode="before")
    @classmethod
    def _replaced(cls, fields: object) -> object:
        for name in ("product_tiles", "low_precision"):
            if isinstance(fields, Mapping) and name in fields:
                raise ValueError(f"{name}: moved into products, which has one speed per precision")
        return fields

    @model_validator(mode="after")
    def _with_half(self) -> Self:
        if self.products and "bf16" not in self.products:
            raise ValueError(f"products: must include bf16, got {', '.join(self.products)}")
        return self

    @property
    def peak_flops_per_s(self) -> float:
        """Peak FLOP/s of dense GEMMs."""
        # A multiply-accumulate is two operations.
        return 2.0 * self.num_tc * self.pe_x * self.pe_y * self.clock_hz

    @property
    def is_blackwell(self) -> bool:
        """True for NVIDIA's Blackwell generation or later, which has 4-bit matrix units."""
        return "nvfp4" in self.products


def completed(architecture: Architecture, system: Scenario | Device) -> Architecture:
    """Architecture with the clock and the HBM of a scenario or device where it has none."""
    names = ("clock_hz", "hbm_bandwidth_bytes_per_s", "hbm_gib")
    return architecture.model_copy(
        update={name: getattr(architecture, name) or getattr(system, name, None) for name in names}
    )


class DeviceFigures(Noun):
    """Device specified by peak FLOP/s, HBM capacity and HBM bandwidth. Other fields, except the clock, may be
    given too; missing ones come from the device in `like`, or else the most similar one in config/devices.
    """

    peak_flops_per_s: Positive
    """Peak FLOP/s of dense 16-bit GEMMs."""
    hbm_gib: Positive
    """HBM capacity in GiB."""
    hbm_bandwidth_bytes_per_s: Positive
    """HBM bandwidth in bytes per second."""
    like: Name | None = None
    """Device of config/devices that supplies everything else; default: the one with the nearest figures."""


class Stack(Noun):
    """Software stack for training: kernels, memory, overlap and communication."""

    name: Label = "none"
    """Name of the stack; default: the file name."""
    runtime: Runtime | None = None
    """Runtime that the stack belongs to; default: the one with which its name begins, if there is one."""
    dates: tuple[Month, Month] | None = None
    """First and last month of the software that the stack describes, such as 2024-09; default: any."""
    scheduled: Literal[True] | None = None
    """If true, a static schedule runs the operators of a layer on the cores of an architecture, as in studies
    of accelerators; null: kernels, each on all cores."""
    sustained_clock: Part = 1.0
    """Share of the clock that the cores of an architecture sustain under a static schedule. Needs
    `scheduled`. A device file that is planned as an architecture has this share as well."""
    launch_s: Size = 0.0
    """Kernel launch overhead of the host in seconds; a pass takes at least this for each of its kernels."""
    expert_launch_s: Size = 0.0
    """Host time in seconds for each expert of a call that launches the GEMMs of experts one by one, or their
    casts, in addition to `launch_s` for the call. Applies to `experts: each`."""
    elementwise: Positive = 1.0
    """HBM traffic of elementwise kernels relative to kernels that fuse consecutive operators."""
    loss: Positive = 1.0
    """HBM traffic of the loss over the vocabulary, relative to one half-precision kernel per direction."""
    fused_heads: PositiveInt = 1
    """Divisor of heads per device × samples per microbatch that one kernel needs to scale, mask and normalise
    the scores; if it does not divide, three kernels do that."""
    attention: tuple[Name, ...] = ()
    """Generations of attention kernels in order of preference, keys of a device's `attention`. Default: the
    generation of 2023, or whichever the device has."""
    ring_attention: Flag = False
    """Attention under context parallelism runs part by part even if keys and values are gathered first
    (PyTorch, `_templated_ring_attention`). With cp_kind p2p it always does."""
    merge_bytes: tuple[Size, ...] = Field(default=(10.0, 6.0), min_length=2, max_length=2)
    """Bytes moved per element to merge partial attention: for results, and for gradients. One kernel each
    reads both operands, and writes single precision or adds in half precision (Transformer Engine,
    `AttnFuncWithCPAndKVP2P`)."""
    pipeline_split: Literal["even", "cost"] = "even"
    """Default pipeline split: `even`, or by cumulative `cost`, with 4 h^2 + 3 h f per block and V h for the
    head (nanotron, `get_block_compute_costs`)."""
    full_pipelines: Flag = False
    """1F1B requires at least pp − 1 microbatches (nanotron, `OneForwardOneBackwardPipelineEngine`)."""
    selective: Literal["attention", "products"] = "attention"
    """Selective recomputation: `attention` recomputes the attention core, `products` all but every second
    GEMM."""
    stops_early: Flag = False
    """Full recomputation of a block ends before its last GEMM, whose result no gradient needs (PyTorch,
    `set_checkpoint_early_stop`, its default from 2.1 on; JAX removes unused results)."""
    gradient_bytes: Literal[2, 4] = 2
    """Bytes per element in which gradients are accumulated and exchanged, in mixed precision."""
    bucket_bytes: Size = 0.0
    """Size in bytes of a gradient bucket; replicas without ZeRO all-reduce each bucket separately. 0: one
    bucket."""
    bucket_parameters: tuple[Size, ...] = Field(default=(0.0, 0.0), min_length=2, max_length=2)
    """Parameters of a bucket in which sharded gradients and weights are exchanged once per step on the first
    stage: at least the first number, and at least the second times the number of replicas. Other stages have
    one bucket each (Megatron-Core, `DistributedDataParallel`). 0: a bucket per layer, and one collective."""
    logit_bytes: Size = 4
    """Bytes per logit at the peak of the loss's backward pass: the logit, single-precision copies, and
    gradients."""
    second_gradients: Literal["none", "layer", "all", "buckets"] = "none"
    """Half-precision gradients stored in addition to the accumulated single-precision ones: none, those of
    one layer, or all; `buckets`: all, and with ZeRO 0 once more in the replicas' buckets (PyTorch, DDP
    without `gradient_as_bucket_view`)."""
    whole_gradients: Flag = False
    """A pipeline with ZeRO 2 or 3 accumulates unsharded single-precision gradients on each replica, and
    scatters them after the last microbatch (PyTorch, `backward_maybe_with_nosync`)."""
    gathered_tensors: Whole = 0
    """Number of tensors of model width stored unsharded on each tensor-parallel rank while a layer runs,
    although sequence parallelism shards all others."""
    overlap_buffers: Whole = 0
    """Number of buffers for overlapped tensor-parallel communication, each the size of an unsharded
    activation between layers."""
    fused_gate: bool = False
    """A gated activation is one kernel, which recomputes its first factor instead of storing it."""
    joined_products: Flag = False
    """One GEMM computes queries, keys and values, and one both factors of a gated network, so that
    gradients of their input need no sum."""
    copied_keys: Flag = False
    """Keys and values are stored twice: in a copy that attention reads, and in the tensor shared with the
    queries, which are a view of it."""
    reserved_gib: Size = 0.0
    """Buffers in GiB that the framework allocates for itself, in addition to the tensors of the model."""
    fragments: Fragments = Fragments()
    """Allocator fragmentation: reserved memory without tensors."""
    context_gib: tuple[Size, ...] = Field(default=(0.3, 0.5, 1.0), min_length=3, max_length=3)
    """CUDA context with loaded kernels, in GiB: minimum, expected and maximum. 300 MB with lazy loading, from
    CUDA 11.7; before, more than 1,000 MB (PyTorch, issue 107667)."""
    reports: MemoryKind = "allocated"
    """Definition of the memory that the software prints for a run: tensors (`allocated`), reserved by the
    allocator (`reserved`), or all memory in use (`device`)."""
    fused_gradients: bool = False
    """The GEMMs that make weight gradients also accumulate them; false: further kernels do."""
    overlap: Overlap = ()
    """Communication that overlaps with compute: of gradients and weights (`dp`), of tensor-parallel ranks
    (`tp`), between stages (`pp`), and token dispatch with the other microbatch of a pair (`ep`)."""
    overlap_shares: dict[Overlapped, OverlapShare] = Field(default_factory=dict)
    """Expected and measured (`proven`) share of overlap by kind of communication; also applies where a
    recipe, run or flag enables the overlap."""
    zero_1: Literal["reduce_scatter", "all_reduce", "broadcast"] = "reduce_scatter"
    """Gradient reduction with ZeRO 1: `reduce_scatter`, overlapped as set by `overlap`; `all_reduce` after
    the last backward pass and an all-gather of weights after the update, neither overlapped (nanotron,
    `make_ddp` and `sync_gradients_across_dp`); or `broadcast`: an all-reduce, overlapped as set by `overlap`,
    and after the update a broadcast from every rank that owns whole tensors (InternEvo,
    `HybridZeroOptimizer`)."""
    dispatch: Literal["rows", "tokens"] = "rows"
    """Token dispatch: `rows` sends a row per expert of a token, in an all-to-all; `tokens` sends a token once
    to each rank, and between nodes once to each node (DeepEP, HybridEP)."""
    experts: Experts = "grouped"
    """Kernels of experts. `each`: GEMMs and casts of their operands are launched per expert, and the host
    reads back the number of rows (Transformer Engine, `GroupedLinear`). `grouped`: one kernel for all experts
    (CUTLASS, `torch._grouped_mm`). `fused`: one kernel that includes the activation."""
    load: ExpertLoads = ExpertLoads()
    """Expert load of the busiest rank."""
    permuted: Positive = 1.0
    """Time of the kernels that copy tokens to rows of experts and sum them back, relative to passes at the
    HBM rate of kernels around experts (`passes` of the device's `experts`, bf16)."""
    router_kernels: tuple[PositiveInt, ...] = Field(default=(3, 4), min_length=2, max_length=2)
    """Numbers of kernels that choose experts of a token and prepare its dispatch, forward and backward."""
    expert_bias_bytes: tuple[Size, ...] = Field(default=(0.0, 0.0), min_length=2, max_length=2)
    """Bytes moved per element to add the biases of experts' last GEMMs expert by expert, in the forward
    and in the backward pass; 0: part of another kernel."""
    rotary_bytes: tuple[Size, ...] = Field(default=(0.0, 0.0), min_length=2, max_length=2)
    """Additional bytes moved per element by rotary embeddings with a factor (YaRN), in the forward and in the
    backward pass, over a single fused kernel; 0: such a kernel."""
    clamp_bytes: tuple[Size, ...] = Field(default=(0.0, 0.0), min_length=2, max_length=2)
    """Additional bytes moved per element to clamp the projections of gated experts, in the forward and in the
    backward pass, over one kernel that clamps, activates and multiplies; 0: such a kernel."""
    sequence_first: Flag = False
    """Activations have the tokens of a sequence before the samples, so that scans of several samples copy
    their input and their result."""
    padding_bytes: Size = 0.0
    """Bytes moved per element to pad the rows of experts, for GEMMs in lower precision with `rows`
    dispatch; counted twice per pass, before and after the experts."""
    cuda_graphs: tuple[Captured, ...] = ()
    """Parts of a layer captured by CUDA graphs, whose kernels need no launch by the host. `moe_router`
    includes shared experts; `full` leaves no launch and no read-back of expert rows."""
    compiled: bool | None = None
    """True if torch.compile generates the kernels; null for stacks without that option."""
    held_processors: Whole = 16
    """Processors of a device that a running collective occupies and concurrent kernels lose: NCCL's number on
    a node with eight network cards (its maintainer, NVIDIA/nccl issue 689)."""
    vboost: Flag = False
    """Launch scripts give tensor cores more of a device's power (`nvidia-smi boost-slider --vboost 1`)."""
    ordered_queue: Flag = False
    """Tensor-parallel collectives overlap with GEMMs only if kernels start in the order of one hardware
    queue, which FSDP does not use (Megatron-Core, `CUDA_DEVICE_MAX_CONNECTIONS`)."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, fields: object) -> object:
        if isinstance(fields, Mapping) and "each_expert" in fields:
            raise ValueError("each_expert: was renamed: write experts: each for each_expert: true")
        return fields

    @model_validator(mode="after")
    def _clock_needs_schedule(self) -> Self:
        if self.sustained_clock < 1 and not self.scheduled:
            raise ValueError(
                "sustained_clock: needs scheduled: true; kernels run at that of the device's file"
            )
        return self

    def years_outside(self, month: str) -> float:
        """Years between a month and the software that the stack describes; 0 inside its dates."""
        if not month or self.dates is None:
            return 0.0
        first, run, last = (
            12 * int(day[:4]) + int(day[5:7]) for day in (self.dates[0], month, self.dates[1])
        )
        return max(first - run, run - last, 0) / 12

    def overlap_share(self, kind: Overlapped) -> float:
        """Fraction of a kind of communication that can overlap with compute; 0 if the kind never does."""
        share = self.overlap_shares.get(kind, OverlapShare())
        return share.expected if kind in ("cp", *self.overlap) else 0.0

    def proven(self) -> Self:
        """Copy of the stack with expected overlap limited to the proven fractions."""
        return self.model_copy(update={"overlap_shares": proven_shares(self.overlap_shares)})

    def without(self, kind: Overlapped) -> Self:
        """Copy of the stack that does not overlap this kind of communication."""
        return self.model_copy(update={"overlap": tuple(other for other in self.overlap if other != kind)})

    def in_many_queues(self) -> Self:
        """Copy of the stack without the overlap that needs kernels to start in the order of one queue."""
        shares = {**self.overlap_shares, "cp": OverlapShare(expected=0.0)}
        return self.without("tp").model_copy(update={"overlap_shares": shares})

    @property
    def unproven(self) -> tuple[Overlapped, ...]:
        """Kinds of communication whose expected overlap exceeds the proven one."""
        proven, kinds = self.proven(), get_args(Overlapped)
        return tuple(kind for kind in kinds if self.overlap_share(kind) != proven.overlap_share(kind))


class Level(Noun):
    """Network level: groups of devices with equal links between them."""

    devices: Count
    """Devices per group of this level."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth between a device and the others of its group in bytes per second, per direction."""
    sustained: Part = 1.0
    """Share of the bandwidth that collectives reach."""
    sustained_messages: Part | None = None
    """Share of the bandwidth that a message between two devices reaches; default: `sustained`."""
    sustained_exchange: Part | None = None
    """Share of the bandwidth that an all-to-all reaches; default: `sustained`."""
    latency_s: Size = 0.0
    """Latency of a step of a collective in seconds."""
    hop_latency_s: Size = 0.0
    """Latency in seconds that each additional device of a node adds to a step of a ring across nodes, which
    passes through all of them."""
    tree_latency_s: Size = 0.0
    """Latency of a step of a tree in seconds; all-reduces use trees where these are faster. 0: rings only."""
    start_s: Size = 0.0
    """Start-up time of a collective in seconds."""
    nics_per_node: PositiveInt | None = None
    """Network cards per node, a node being a group of the next inner level. With `nic_bytes_per_s`, this
    replaces `bandwidth_bytes_per_s`."""
    nic_bytes_per_s: Positive | None = None
    """Bandwidth of a network card in bytes per second, per direction."""
    ring_port_devices: PositiveInt = 1
    """Devices that share a port to this level, for the rings that NCCL finds. If no two devices of a node in
    a collective share a port, the collective uses a single port of the node. Has no effect on the bandwidth
    itself."""
    nccl: NcclSpeeds | None = None
    """Measured NCCL collectives inside an NVLink domain, for the innermost level: name of a file in
    config/networks, or its keys. Latencies and the shares of messages and exchanges must then be omitted;
    `sustained` becomes the share of the measured bandwidths, and `start_s` is added to the measured start-up
    times."""

    @property
    def collective_bytes_per_s(self) -> float:
        """Bandwidth that large collectives reach, in bytes per second."""
        share = 1.0 if self.nccl is None else self.nccl.simple
        return self.bandwidth_bytes_per_s * self.sustained * share

    @property
    def ring_step_s(self) -> float:
        """Latency of one step of a large ring, in seconds."""
        return self.latency_s if self.nccl is None else self.nccl.simple_step_s

    @model_validator(mode="after")
    def _without_other_speeds(self) -> Self:
        names = ("sustained_messages", "sustained_exchange", "latency_s", "tree_latency_s", "hop_latency_s")
        conflicting = [name for name in names if getattr(self, name)]
        if self.nccl is not None and conflicting:
            raise ValueError(
                f"{conflicting[0]}: must not be given together with nccl, which has measured values"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, fields: object) -> object:
        if isinstance(fields, Mapping) and "port_devices" in fields:
            raise ValueError(
                "port_devices: was renamed to ring_port_devices; for devices that share network "
                "cards use nics_per_node and nic_bytes_per_s"
            )
        return fields


def _with_share(number: int, level: object, inside: object) -> object:
    """Fields of a level, with each device's bandwidth set to its share of the node's network cards."""
    if not isinstance(level, Mapping) or level.get("nics_per_node", level.get("nic_bytes_per_s")) is None:
        return level
    if not isinstance(inside, Mapping):
        raise ValueError(f"levels.{number}.nics_per_node: needs an inner level, whose groups are the nodes")
    given = (level.get("nics_per_node"), level.get("nic_bytes_per_s"), inside.get("devices"))
    if None in given[:2]:
        raise ValueError(f"levels.{number}: nics_per_node and nic_bytes_per_s must be given together")
    # Other values are refused by the fields themselves, with a better message.
    figures = [figure for figure in map(as_number, given) if isinstance(figure, int | float) and figure > 0]
    if len(figures) < len(given):
        return level
    cards, nic_bytes_per_s, devices = figures
    share, stated = cards * nic_bytes_per_s / devices, as_number(level.get("bandwidth_bytes_per_s"))
    if stated not in (None, share):
        raise ValueError(
            f"levels.{number}.bandwidth_bytes_per_s: must not be given together with "
            f"nics_per_node, from which a device gets {share:g}; got {stated}"
        )
    return {**level, "bandwidth_bytes_per_s": share}


class LayoutResidual(Noun):
    """Left-out errors of a user's own runs with one kind of layout."""

    runs: PositiveInt
    """Number of runs."""
    bias: Annotated[float, Field(strict=True, gt=-1, allow_inf_nan=False)]
    """Mean error of the predicted step times, as a share; negative: predicted too short."""
    error: Result
    """Mean absolute error, as a share."""


class Calibration(Noun):
    """Constants fitted to runs on a system, as `phaze calibrate` writes them."""

    runs: Label
    """File with the measured runs."""
    cluster: Label | None = None
    """System that ran them, as it was given to the command."""
    software: Label | None = None
    """Software stack that they used."""
    date: Month | None = None
    """Month of the newest of these runs, or of the fit if the runs name none."""
    rows: PositiveInt
    """Number of runs used in the fit."""
    features: Annotated[tuple[Label, ...], Once] = ()
    """Features of these runs, which count as measured on this system."""
    device: dict[Label, Positive] = Field(default_factory=dict)
    """Constants that override the device file's constants, by key."""
    stack: dict[Label, Positive] = Field(default_factory=dict)
    """Constants that override the stack file's constants, by key; runs with another stack use its own."""
    error_before: Result
    """Mean absolute error of the predicted step times before the fit, as a share."""
    error: Result
    """Mean absolute error with the fitted constants."""
    error_left_out: Result
    """Leave-one-out error: each run predicted with constants fitted to the others."""
    covered: Result | None = None
    """Share of the runs inside the 80 % interval that the left-out errors of the other runs give them."""
    uncertainty: dict[Label, Result] = Field(default_factory=dict)
    """Standard deviation of each constant that the runs determine, as a share of its value."""
    layouts: dict[Label, LayoutResidual] = Field(default_factory=dict)
    """Left-out errors by kinds of parallelism, such as tp+dp."""


class Cluster(Noun):
    """Identical devices on a network with levels, innermost groups first."""

    device: Location
    """Name of a file in config/devices, or path of one relative to this file and inside its folder."""
    levels: tuple[Level, ...] = Field(min_length=1)
    """Levels of the network; the last one includes all devices."""
    stack: Location | None = None
    """Default software stack of runs: name of a file in config/stacks, or path. Default: the stack of the
    device, else megatron-core."""
    stacks: Annotated[tuple[Location, ...], Once] = ()
    """Software stacks of runtimes to which `stack` does not belong; default: the usual ones."""
    calibrated: Calibration | None = None
    """Constants of device and stack fitted to runs on this system."""
    torus: Torus | None = None
    """Links of devices that form a torus or mesh; simulations of contention use them."""

    @model_validator(mode="before")
    @classmethod
    def _with_shares_of_nics(cls, fields: object) -> object:
        """Compute the bandwidth per device for levels that give network cards per node."""
        if not isinstance(fields, Mapping) or not isinstance(fields.get("levels"), list | tuple):
            return fields
        levels = fields["levels"]
        pairs = zip(levels, (None, *levels), strict=False)
        completed = [_with_share(n, level, inside) for n, (level, inside) in enumerate(pairs)]
        return {**fields, "levels": completed}

    @model_validator(mode="after")
    def _nested(self) -> Self:
        check_nested([level.devices for level in self.levels])
        if any(level.nccl is not None for level in self.levels[1:]):
            raise ValueError("levels: nccl is allowed in the innermost level only")
        if self.torus is not None and prod(self.torus.shape) != self.devices:
            torus_devices = prod(self.torus.shape)
            raise ValueError(
                f"torus.shape: must have the {self.devices} devices of the levels, got {torus_devices}"
            )
        return self

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.levels[-1].devices
