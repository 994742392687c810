"""The cluster in which the accelerators work."""

from collections.abc import Mapping
from math import prod
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from phaze.layout import Compute
from phaze.spec.architecture import Architecture
from phaze.spec.memory import Fragments, MemoryKind
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
    Name,
    Part,
    Positive,
    PositiveInt,
    Result,
    Size,
    Whole,
)

Captured = Literal["attn", "mlp", "mamba", "moe_router", "moe_preprocess", "moe", "full"]
"""Part of a layer that a CUDA graph captures, or `full`, the whole iteration (Megatron-Core,
`--cuda-graph-scope`)."""


class System(Noun):
    """A cluster of equal accelerators on a flat network."""

    devices: Count = 1024
    """Accelerators in the cluster, K."""
    network_bandwidth_bytes_per_s: Positive = 4294967296.0
    """Bandwidth between any two devices."""
    hbm_bandwidth_bytes_per_s: Positive = 1.2e12
    """Bandwidth between the HBM and the global buffer of a device."""
    clock_hz: Positive = 1.05e9
    """Clock of all cores."""
    all_reduce_factor: Positive = 2.0
    """An all-reduce over n devices takes this times (n - 1)/n of its tensor over the bandwidth: 2 in a ring
    whose links carry both directions at once, 4 where one bandwidth holds for both together (Phaze, C.2)."""


class Scenario(System):
    """A cluster with the batch that it trains and the area that a chip may have."""

    global_batch: PositiveInt = 4096
    """Samples in a batch."""
    area_limit_mm2: Positive | Name = "tpu-v4"
    """Largest area of a chip, or the name of an architecture whose area is the limit."""


class Device(Architecture):
    """A chip by the template of an architecture, with clock and memory, and what software reaches of them."""

    clock_hz: Positive
    """Clock of all cores."""
    hbm_gib: Positive
    """HBM in GiB."""
    number_bytes: Literal[2, 4] = 2
    """Bytes of a number that its arrays multiply at full speed, and of a word of its buffers."""
    reserve_gib: Size = 0.0
    """HBM that plans leave alone: what the driver keeps, and what contexts and communication usually use."""
    driver_gib: Size = 0.0
    """HBM that no process can have, as the driver keeps it."""
    workspace_mib: Size = 0.0
    """Workspace of the library of products for each stream on which they run."""
    hbm_bandwidth_bytes_per_s: Positive
    """Bandwidth between HBM and global buffer."""
    host_bandwidth_bytes_per_s: Size = 0.0
    """What copies reach between the memory of the device and that of its host, in each direction, while all
    devices of the host copy; 0: not known."""
    sustained_clock: Part = 1.0
    """Share of the clock that the cores keep while all arrays work, as power allows."""
    sustained_hbm: Part = 1.0
    """Share of the HBM bandwidth that kernels reach."""
    kernel_s: Size = 0.0
    """Time of a kernel beside its work, in which the device is started and drained."""
    products: dict[Compute, ProductSpeed] = Field(default_factory=dict)
    """Speeds of matrix products by precision, half precision among them; without any the arrays of all cores
    work as the mapper of architectures lets them."""
    fixed_shares: bool = False
    """Whether kernels give every processor its share beforehand: the shares of those that a collective holds
    are then done in a second round, at half the speed (CUTLASS, Blackwell Cluster Launch Control, static
    scheduler)."""
    aligned_bytes: PositiveInt = 1
    """Rows of a product that are no multiple of this are multiplied on the vector lanes."""
    attention: dict[str, AttentionKernel] = Field(default_factory=dict)
    """Speeds of attention kernels by generation, of which a software stack names one."""
    experts: dict[ExpertKernel, dict[Compute, ExpertSpeed]] = Field(default_factory=dict)
    """Speeds of the kernels that multiply experts, by kernel and precision; without them experts are as fast
    as a batch of products."""
    known_as: tuple[Label, ...] = ()
    """Other names by which tables of measured kernels call it."""
    stack: Name | None = None
    """File in config/stacks, where only the runtime of that stack runs on the device."""
    assumed_from: Label | None = None
    """Device that all but the given figures are from, of a device of three figures."""

    @model_validator(mode="before")
    @classmethod
    def _replaced(cls, fields: object) -> object:
        for name in ("product_tiles", "low_precision"):
            if isinstance(fields, Mapping) and name in fields:
                raise ValueError(f"{name}: is part of products, which has a speed for each precision")
        return fields

    @model_validator(mode="after")
    def _with_half(self) -> Self:
        if self.products and "bf16" not in self.products:
            raise ValueError(f"products: must have bf16, got {', '.join(self.products)}")
        return self

    @property
    def peak_flops_per_s(self) -> float:
        """FLOP/s of dense products at full speed."""
        return 2.0 * self.num_tc * self.pe_x * self.pe_y * self.clock_hz

    @property
    def is_blackwell(self) -> bool:
        """Whether it is of NVIDIA's generation of 2024 or later, which multiplies four bits."""
        return "nvfp4" in self.products


class DeviceFigures(Noun):
    """A device of three figures; all else is that of the nearest one of config/devices. Other keys of a
    device may be given as well, but for its clock.
    """

    peak_flops_per_s: Positive
    """Dense products of 16 bits."""
    hbm_gib: Positive
    """HBM in GiB."""
    hbm_bandwidth_bytes_per_s: Positive
    """Bandwidth of the HBM."""
    like: Name | None = None
    """Device of config/devices that all else is from; unless given the one whose figures are nearest."""


class Stack(Noun):
    """A software stack that trains models: what it makes of the devices that it runs on."""

    name: Label = "none"
    """Name of its file unless given."""
    launch_s: Size = 0.0
    """Time in which the host starts a kernel; a pass takes at least that of all its kernels."""
    elementwise: Positive = 1.0
    """Bytes that elementwise kernels move, over those of kernels that fuse what follows each other."""
    loss: Positive = 1.0
    """The same of the loss over the vocabulary, over one kernel each way in half precision."""
    fused_heads: PositiveInt = 1
    """Multiple that the heads of a device, those of all samples of a microbatch, must be for scores to be
    scaled, masked and normalised by one kernel."""
    attention: tuple[Name, ...] = ()
    """Generations of attention kernels that it takes, keys of `attention` of a device: the first one that
    the device has; unless given that of 2023, or what the device has."""
    ring_attention: Flag = False
    """Whether attention with context parallelism goes part by part over keys and values even where these are
    gathered before (PyTorch, `_templated_ring_attention`); with cp_kind p2p it always does."""
    merge_bytes: tuple[Size, ...] = Field(default=(10.0, 6.0), min_length=2, max_length=2)
    """Bytes that merging partial attention moves for each element of a result, and of a gradient: one kernel
    each, that reads both and writes single precision, or adds up in half (Transformer Engine,
    `AttnFuncWithCPAndKVP2P`)."""
    pipeline_split: Literal["even", "cost"] = "even"
    """How blocks are split into pipeline stages where a run does not say: evenly; or by cumulative cost, that
    of a block counted as 4 h^2 + 3 h f and of the head as V h (nanotron, `get_block_compute_costs`)."""
    full_pipelines: Flag = False
    """Whether 1F1B needs as many microbatches as there are stages but one (nanotron,
    `OneForwardOneBackwardPipelineEngine`)."""
    selective: Literal["attention", "products"] = "attention"
    """What selective recomputation does again: the attention core, or all but every second product."""
    gradient_bytes: Literal[2, 4] = 2
    """Bytes in which gradients are added up and exchanged, in mixed precision."""
    bucket_bytes: Size = 0.0
    """Bytes of the gradients in a bucket, which replicas without ZeRO sum by a collective of its own; 0: one
    for all."""
    logit_bytes: Size = 4
    """Bytes of a logit where its gradient is made: itself, copies in single precision, and gradients."""
    second_gradients: Literal["none", "layer", "all", "buckets"] = "none"
    """Gradients in half precision that lie beside those that are added up in single precision: none, those of
    a layer, or all; `buckets`: all, and with ZeRO 0 once more in the buckets of replicas (PyTorch, DDP
    without `gradient_as_bucket_view`)."""
    whole_gradients: Flag = False
    """Whether a pipeline with ZeRO 2 or 3 adds up whole gradients in single precision on each replica, until
    they are scattered after the last microbatch (PyTorch, `backward_maybe_with_nosync`)."""
    gathered_tensors: Whole = 0
    """Tensors as wide as the model that lie whole on each tensor-parallel rank while a layer is at work,
    where sequence parallelism shards all others."""
    overlap_buffers: Whole = 0
    """Buffers for overlapped tensor-parallel communication, each a whole activation between layers."""
    fused_gate: bool = False
    """Whether a gated activation is one kernel, so that its first factor is not kept."""
    joined_products: Flag = False
    """Whether one product makes queries, keys and values, and one both factors of a gated network, so that
    the gradients of their input are not summed."""
    copied_keys: Flag = False
    """Whether keys and values are kept twice: in a copy that attention reads, and beside the queries in the
    tensor of all three, which stays because the queries are a view of it."""
    reserved_gib: Size = 0.0
    """Buffers that the framework allocates for itself, in addition to the tensors of the model."""
    fragments: Fragments = Fragments()
    """Gaps of the allocator, in which no tensor lies."""
    context_gib: tuple[Size, ...] = Field(default=(0.3, 0.5, 1.0), min_length=3, max_length=3)
    """CUDA context with the kernels that are loaded: least, expected and most. 300 MB where kernels are
    loaded when needed, with CUDA 11.7 and later; more than 1,000 MB before (PyTorch, issue 107667)."""
    reports: MemoryKind = "allocated"
    """What memory of a run means where its software prints it: that of tensors (allocated), what the
    allocator has reserved, or all that the device has in use."""
    fused_gradients: bool = False
    """Whether the products that make gradients of weights add them up as well, or further kernels do."""
    overlap: Overlap = ()
    """Communication that overlaps with compute: of gradients and weights (dp), tensor-parallel ranks (tp)
    and stages (pp), and token dispatch next to the other microbatch of a pair (ep)."""
    overlap_shares: dict[Overlapped, OverlapShare] = Field(default_factory=dict)
    """Expected and proven share of communication that overlaps, also where a recipe, run or flag adds it."""
    zero_1: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """How replicas sum gradients with ZeRO 1: each its share, overlapped with computing as `overlap` says; or
    all of them, after the last backward pass, with the weights gathered after the update, and neither
    overlapped (nanotron, `make_ddp` and `sync_gradients_across_dp`)."""
    dispatch: Literal["rows", "tokens"] = "rows"
    """What goes to the ranks of experts: a row for every expert of a token, in an all-to-all, or the token
    once to each rank, between nodes once to each node (DeepEP, HybridEP)."""
    experts: Experts = "grouped"
    """How experts are multiplied. `each`: products, and casts of their operands, are started for one expert
    after the other, and the host reads back how many rows they have (Transformer Engine, `GroupedLinear`);
    `grouped`: one kernel for all experts (CUTLASS, `torch._grouped_mm`); `fused`: their activation too."""
    load: ExpertLoads = ExpertLoads()
    """Rows of the experts of the busiest rank."""
    permuted: Positive = 1.0
    """Time of the kernels that copy tokens to the rows of their experts, and add these up, over passes at the
    rate that the device reaches around experts (`passes` of its experts in bf16)."""
    router_kernels: PositiveInt = 3
    """Kernels that choose the experts of a token and prepare its dispatch, in the forward pass."""
    expert_bias_bytes: tuple[Size, ...] = Field(default=(0.0, 0.0), min_length=2, max_length=2)
    """Bytes that adding the biases of experts' last products moves for each element of their results, and of
    gradients, where kernels do it expert by expert; 0: part of another kernel."""
    rotary_bytes: tuple[Size, ...] = Field(default=(0.0, 0.0), min_length=2, max_length=2)
    """Bytes that rotary embeddings with a factor (YaRN) move for each element, in the forward and the
    backward pass, over one kernel; 0: such a kernel."""
    clamp_bytes: tuple[Size, ...] = Field(default=(0.0, 0.0), min_length=2, max_length=2)
    """Bytes that clamping the projections of gated experts moves for each element of one, in the forward and
    the backward pass, over one kernel that clamps, activates and multiplies; 0: such a kernel."""
    padding_bytes: Size = 0.0
    """Bytes that padding the rows of experts moves for each element, where products are of lower precision
    and the dispatcher sends rows; twice in a pass, before and after the experts."""
    cuda_graphs: tuple[Captured, ...] = ()
    """Parts of a layer that CUDA graphs capture: the host launches none of their kernels. `moe_router` also
    captures shared experts; a full graph leaves no launch, and no read-back of the rows of experts."""
    compiled: bool | None = None
    """Whether torch.compile makes the kernels of a stack that can be told so."""
    held_processors: Whole = 16
    """Processors of a device that a collective holds while it runs, which kernels beside it lose: NCCL's on a
    node with eight network cards (its maintainer, NVIDIA/nccl issue 689)."""
    ordered_queue: Flag = False
    """Whether collectives of slices hide behind products only where kernels start in the order of one
    hardware queue, which FSDP does not (Megatron-Core, `CUDA_DEVICE_MAX_CONNECTIONS`)."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, fields: object) -> object:
        if isinstance(fields, Mapping) and "each_expert" in fields:
            raise ValueError("each_expert: is named experts; each_expert: true is experts: each")
        return fields

    def overlap_share(self, kind: Overlapped) -> float:
        """Share of the time of some communication that can overlap with compute; 0 where none does."""
        own = self.overlap_shares.get(kind, OverlapShare())
        return own.expected if kind in ("cp", *self.overlap) else 0.0

    def proven(self) -> Self:
        """Stack that is expected to overlap no more than is proven."""
        return self.model_copy(update={"overlap_shares": proven_shares(self.overlap_shares)})

    @property
    def is_proven(self) -> bool:
        """Whether no more overlap is expected than is proven."""
        proven = self.proven()
        return all(self.overlap_share(kind) == proven.overlap_share(kind) for kind in get_args(Overlapped))


class Level(Noun):
    """A level of a network: groups of devices with equal links among them."""

    devices: Count
    """Devices in a group of this level."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth of a device to others of its group, in each direction."""
    sustained: Part = 1.0
    """Share of the bandwidth that collectives reach."""
    sustained_messages: Part | None = None
    """Share of it that a message from one device to another reaches; that of collectives unless given."""
    sustained_exchange: Part | None = None
    """Share of it that an all-to-all reaches; that of other collectives unless given."""
    latency_s: Size = 0.0
    """Time of a step of a collective beside its bytes."""
    hop_latency_s: Size = 0.0
    """Time that each further device of a node adds to a step of a ring across nodes, which passes all."""
    tree_latency_s: Size = 0.0
    """Time of a step of a tree, by which all-reduces go where that is faster; 0: they go in rings alone."""
    start_s: Size = 0.0
    """Time of a collective beside its steps."""
    nics_per_node: PositiveInt | None = None
    """Network cards of a node, a group of the level inside: with nic_bytes_per_s in place of a bandwidth."""
    nic_bytes_per_s: Positive | None = None
    """Bandwidth of a network card, in each direction."""
    ring_port_devices: PositiveInt = 1
    """Devices beside each port to this level, as NCCL looks for rings: collectives of several devices of a
    node none of which are beside one port go through one port of the node. It says nothing of bandwidth."""
    nccl: NcclSpeeds | None = None
    """Measured collectives of NCCL inside an NVLink domain, of the innermost level: the name of a file in
    config/networks, or its keys. The keys of latencies, of messages and of exchanges then have no meaning;
    `sustained` is the share of the measured bandwidths, and `start_s` an additional start."""

    @property
    def collective_bytes_per_s(self) -> float:
        """Bandwidth that large collectives reach."""
        share = 1.0 if self.nccl is None else self.nccl.simple
        return self.bandwidth_bytes_per_s * self.sustained * share

    @property
    def ring_step_s(self) -> float:
        """Latency of a step of large rings."""
        return self.latency_s if self.nccl is None else self.nccl.simple_step_s

    @model_validator(mode="after")
    def _without_other_speeds(self) -> Self:
        names = ("sustained_messages", "sustained_exchange", "latency_s", "tree_latency_s", "hop_latency_s")
        given = [name for name in names if getattr(self, name)]
        if self.nccl is not None and given:
            raise ValueError(f"{given[0]}: must not be given beside nccl, which has measured ones")
        return self

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, fields: object) -> object:
        if isinstance(fields, Mapping) and "port_devices" in fields:
            raise ValueError(
                "port_devices: is named ring_port_devices; devices that share network cards are described by "
                "nics_per_node and nic_bytes_per_s"
            )
        return fields


def _with_share(number: int, level: object, inside: object) -> object:
    """Fields of a level with the bandwidth of a device, its share of the network cards of a node."""
    if not isinstance(level, Mapping) or level.get("nics_per_node", level.get("nic_bytes_per_s")) is None:
        return level
    if not isinstance(inside, Mapping):
        raise ValueError(f"levels.{number}.nics_per_node: needs a level inside, whose groups are the nodes")
    cards, each, devices = level.get("nics_per_node"), level.get("nic_bytes_per_s"), inside.get("devices")
    if cards is None or each is None:
        raise ValueError(f"levels.{number}: nics_per_node and nic_bytes_per_s must be given together")
    if not all(isinstance(one, int | float) and one > 0 for one in (cards, each, devices)):
        return level
    share, given = cards * each / devices, level.get("bandwidth_bytes_per_s")
    if given not in (None, share):
        raise ValueError(
            f"levels.{number}.bandwidth_bytes_per_s: must not be given beside nics_per_node, of which a "
            f"device has {share:g}, got {given}"
        )
    return {**level, "bandwidth_bytes_per_s": share}


class Calibration(Noun):
    """Constants that are fitted to runs on a system, as `phaze calibrate` writes them."""

    runs: Label
    """File of the runs."""
    rows: PositiveInt
    """Runs that they are fitted to."""
    device: dict[Label, Positive] = Field(default_factory=dict)
    """Numbers in place of those of the device's file, by key."""
    stack: dict[Label, Positive] = Field(default_factory=dict)
    """Numbers in place of those of the stack's file, by key; runs that name another stack keep theirs."""
    error_before: Result
    """Mean absolute error of the time of these runs before, as a share."""
    error: Result
    """The same with the fitted constants."""
    error_left_out: Result
    """The same of each run with constants that are fitted to the others."""


class Cluster(Noun):
    """Equal devices on a network with levels, the narrowest groups first."""

    device: Location
    """Name of a file in config/devices, or path of one from the folder of this file, in that folder."""
    levels: tuple[Level, ...] = Field(min_length=1)
    """Levels of the network; the last one holds all devices."""
    stack: Location | None = None
    """Name of a file in config/stacks, or path of one: what runs are trained with unless they say another;
    unless given that of the device, or else megatron-core."""
    calibrated: Calibration | None = None
    """Constants of device and stack that are fitted to runs on this system."""
    torus: Torus | None = None
    """The links where devices form a torus or a mesh: then what is simulated with contention uses them."""

    @model_validator(mode="before")
    @classmethod
    def _with_shares_of_nics(cls, fields: object) -> object:
        """Levels with the bandwidth of a device where they say network cards of nodes."""
        if not isinstance(fields, Mapping) or not isinstance(fields.get("levels"), list | tuple):
            return fields
        levels = fields["levels"]
        pairs = zip(levels, (None, *levels), strict=False)
        found = [_with_share(n, level, inside) for n, (level, inside) in enumerate(pairs)]
        return {**fields, "levels": found}

    @model_validator(mode="after")
    def _nested(self) -> Self:
        check_nested([level.devices for level in self.levels])
        if any(level.nccl is not None for level in self.levels[1:]):
            raise ValueError("levels: nccl must be of the innermost level")
        if self.torus is not None and prod(self.torus.shape) != self.devices:
            held = prod(self.torus.shape)
            raise ValueError(f"torus.shape: must hold the {self.devices} devices of the levels, got {held}")
        return self

    @property
    def devices(self) -> int:
        """Devices of the cluster."""
        return self.levels[-1].devices
