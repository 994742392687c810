"""Layout of a training job: how it is parallelised over devices, and the process groups of its ranks.

Ranks are numbered as in Megatron-Core, tp-cp-ep-dp-pp with tp fastest. Tensor-parallel ranks are therefore
adjacent, and pipeline stages are farthest apart. Experts fold into the ranks of a stage as etp-ep-edp: their
own data-parallel width is edp = tp · cp · dp / (etp · ep) (Megatron-Core, `parallel_state`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from math import gcd, lcm
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, get_args

from phaze.base.errors import PhazeError
from phaze.layout.options import (
    BALANCED,
    COMPUTES,
    CP_KINDS,
    LEVELS,
    READERS,
    Compute,
    Load,
    Module,
    Offload,
    Offloaded,
    Optimizer,
    Precision,
    Zero,
    cp_kind_of,
    heads_ranks_of,
    modules_of,
)

if TYPE_CHECKING:  # numpy takes longer to import than a misspelt name to report
    from phaze.base.arrays import Bools, Ints

Axis = Literal["tp", "cp", "cp-heads", "cp-ring", "ep", "etp", "edp", "dp", "dp-cp", "pp"]
"""Parallel axis along which ranks form a process group.

`dp-cp`: all ranks with the same dense weights. `cp-heads`: ranks that exchange heads. `cp-ring`: ranks that
pass keys and values around a ring, one of each `cp-heads` group.
"""
LAYER_AXES: tuple[Axis, ...] = ("tp", "cp", "cp-heads", "cp-ring", "ep", "etp")
"""Axes whose collectives run inside layers."""
WIDTHS = ("tp", "cp", "ep", "etp", "pp", "vp", "dp")
"""Layout fields that are parallel widths."""
MODEL_WIDTHS = WIDTHS[:-1]
"""Widths that divide the model; the remaining width, dp, is the number of replicas."""
SHARED_OPTIONS = ("offload", "replicate", "optimizer")
"""Layout fields with one value for all layouts of a search, which a user can fix."""
EXPERT_FIELDS = ("ep", "etp", "load")
"""Layout fields that have no effect on a model without experts."""
SHARD_FIELDS = ("tp", "cp", "cp_kind", "ep", "etp", "microbatch", "sequence_parallel")
"""Fields of `Layout.key` in which layouts of one training job may differ."""

_KEY = re.compile(
    r"tp(\d+)(?:-cp(\d+)(?:-(p2p|a2a|a2a\+p2p\d+))?)?(?:-ep(\d+))?(?:-etp(\d+))?(?:-load(natural|(?:power_law_|max_vio_)?\d+(?:\.\d+)?))?(-sp)?"
    r"-b(\d+)(-single)?(?:-(fp8-cs|fp8-block|fp8|mxfp8|nvfp4))?"
)
KEY_PATTERN = re.sub(r"\((?!\?)", "(?:", _KEY.pattern)
"""Regular expression that matches a `Layout.key`, without capturing groups."""
DEVICE_AXES = ("tp", "cp", "pp", "dp")
"""Axes whose widths multiply to a layout's device count."""
_ONE: Any = 1
_NO: Any = False
_REPLICATED: Any = 0
_STORED: Any = "none"
_GATHERED: Any = "all_gather"
"""Defaults of layout fields that may also hold arrays; they are valid for a single layout only."""
Number = TypeVar("Number", int, "Ints")
Truth = TypeVar("Truth", bool, "Bools")
ZeroStage = TypeVar("ZeroStage", Zero, "Ints")
Option = TypeVar("Option", str, "Ints")


@dataclass(frozen=True)
class Group:
    """Process group: `ranks` members, `stride` devices apart."""

    ranks: int
    stride: int


@dataclass(frozen=True)
class ModelWidths(Generic[Number]):
    """Parallel widths that divide the model, for one layout or as arrays over many layouts."""

    tp: Number = _ONE
    """Tensor-parallel width."""
    cp: Number = _ONE
    """Context-parallel width."""
    ep: Number = _ONE
    """Expert-parallel width."""
    etp: Number = _ONE
    """Tensor-parallel width inside an expert."""
    pp: Number = _ONE
    """Pipeline-parallel width."""


@dataclass(frozen=True)
class LayoutFields(ModelWidths[Number], Generic[Number, Truth, ZeroStage, Option]):
    """Fields of a layout: all parallel widths, and options for optimizer state, activations and precision.

    Values are those of one layout (`Layout`), or arrays over many layouts. Documents with these fields derive
    from this class, see `phaze.spec.derived`.
    """

    vp: Number = _ONE
    """Virtual stages per pipeline rank."""
    dp: Number = _ONE
    """Data-parallel width."""
    microbatch: Number = _ONE
    """Samples per microbatch."""
    sequence_parallel: Truth = _NO
    """True if activations between layers are sharded along the sequence."""
    zero: ZeroStage = _REPLICATED
    """ZeRO stage: 0 shards nothing between replicas, 1 optimizer states, 2 also gradients, 3 also weights."""
    recompute: Option = _STORED
    """Recomputed activations: none, selective (attention core), full (whole blocks, counted in `stages`), or
    modules of every block joined by +."""
    cp_kind: Option = _GATHERED
    """Exchange of keys and values between context-parallel ranks: all_gather, p2p, a2a, or a2a+p2p:k, with
    a2a inside groups of k ranks and p2p between the groups."""
    load: Load = BALANCED
    """Expert load of the busiest rank: balanced, natural, a factor over balanced, or a routing law."""
    compute: Compute = "bf16"
    """Compute precision of GEMMs with the blocks' weights."""
    offload: Offload = "none"
    """Data offloaded to host memory: none, or inputs of modules, `layers:k` and `optimizer` joined by +."""
    replicate: int = 1
    """Number of groups of data-parallel ranks that each shard the states, as `zero` says, and replicate them
    among each other (HSDP)."""
    optimizer: Optimizer = "adam"
    """Optimizer with the format of its states: adam, adam-bf16, adam-fp8, sgd-momentum or sgd."""

    @property
    def stages(self) -> Number:
        """Number of pipeline stages, counting every virtual stage."""
        return self.pp * self.vp

    @property
    def sharers(self) -> Number:
        """Number of ranks with the same dense weights, dp · cp."""
        return self.dp * self.cp

    @property
    def shards(self) -> Number:
        """Number of ranks over which states of dense weights are sharded, as `zero` says."""
        return self.sharers // self.replicate

    @property
    def expert_shards(self) -> Number:
        """Number of ranks over which states of an expert's weights are sharded, as `zero` says."""
        return self.edp // self.replicate

    @property
    def expert_ranks(self) -> Number:
        """Number of ranks per pipeline stage, which shard and replicate the experts of the stage."""
        return self.tp * self.cp * self.dp

    @property
    def folded(self) -> Number:
        """Number of ranks over which a layer's experts are sharded if every rank has its own tokens."""
        return self.ep * self.etp

    @property
    def cuts_sequence(self) -> Truth:
        """True if activations between layers are sharded along the sequence over tensor-parallel ranks."""
        split: Any = self.tp > 1
        cuts: Truth = self.sequence_parallel & split
        return cuts

    @property
    def expert_slices(self) -> Number:
        """Number of tensor-parallel ranks over which an expert is sharded.

        This is etp, except without sequence parallelism: then every tensor-parallel rank has all tokens, so
        experts are sharded like the dense layers.
        """
        uses_etp: Any = self.sequence_parallel | (self.tp == 1) | (self.ep > 1)
        # A choice between etp and tp that is valid for arrays as well.
        ranks: Number = self.tp + uses_etp * (self.etp - self.tp)
        return ranks

    @property
    def expert_stride(self) -> Number:
        """Distance between neighbouring ranks that store the same experts."""
        return self.expert_slices * self.ep

    @property
    def edp(self) -> Number:
        """Expert-data-parallel width: number of ranks that store the same experts."""
        return self.expert_ranks // self.expert_stride

    def microbatches(self, global_batch: int) -> Number:
        """Number of microbatches per replica in a global batch."""
        return global_batch // (self.microbatch * self.dp)


@dataclass(frozen=True, order=True)
class Layout(LayoutFields[int, bool, Zero, str]):
    """Parallelism layout of a training job: all widths, microbatch size, ZeRO stage and recomputation.

    Layouts are ordered by the values of their fields: tp2-b1 comes before tp16-b1.
    """

    precision: Precision = "mixed"
    """Precision of the weights."""

    @property
    def devices(self) -> int:
        """Number of devices, over all stages and replicas."""
        return self.expert_ranks * self.pp

    @property
    def folds_experts(self) -> bool:
        """True if experts have their own process groups."""
        return self.ep > 1 or (self.etp > 1 and self.sequence_parallel)

    @property
    def heads_ranks(self) -> int:
        """Number of context-parallel ranks that exchange heads to get whole sequences."""
        return heads_ranks_of(self.cp_kind, self.cp)

    @property
    def bytes_per_element(self) -> int:
        """Bytes per activation element."""
        return 4 if self.precision == "single" else 2

    @cached_property
    def key(self) -> str:
        """Key of the fields that determine a rank's operators, such as tp4-sp-b2, for paths and tables.

        Axes of width 1 other than tp are left out, so that a new axis renames no existing key.
        """
        cuts = [f"{name}{getattr(self, name)}" for name in ("cp", "ep", "etp") if getattr(self, name) > 1]
        # The exchange method follows the cp width, which is the first entry whenever there is one.
        cuts[1:1] = [self.cp_kind.replace(":", "")] * (self.cp > 1 and self.cp_kind != "all_gather")
        cuts += [f"load{self.load}"] * (self.load != BALANCED)
        parts = [f"tp{self.tp}", *cuts, *["sp"] * self.cuts_sequence, f"b{self.microbatch}"]
        lower = [self.compute] * (self.compute != "bf16")
        return "-".join([*parts, *["single"] * (self.precision == "single"), *lower])

    @property
    def modules(self) -> frozenset[Module]:
        """Modules that are recomputed individually; empty for the options none, full and selective."""
        return modules_of(self.recompute)

    @cached_property
    def offloaded(self) -> "Offloaded":
        """Activations and states offloaded to host memory."""
        return Offloaded.of(self.offload)

    @classmethod
    def of_key(cls, key: str) -> Self:
        """Parse a key into a layout of one stage and one replica; PhazeError for an invalid key."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise PhazeError(f"layout: must be a key such as tp4-b2 or tp8-cp2-sp-b1, got {key}")
        tp, cp, kind, ep, etp, load, sp, microbatch, single, compute = match.groups("")
        return cls(
            tp=int(tp),
            cp=int(cp or 1),
            ep=int(ep or 1),
            etp=int(etp or 1),
            microbatch=int(microbatch),
            sequence_parallel=bool(sp),
            precision="single" if single else "mixed",
            compute=next((name for name in COMPUTES if name == compute), "bf16"),
            cp_kind=kind.replace(LEVELS, f"{LEVELS}:") or "all_gather",
            load=load or BALANCED,
        )

    @property
    def fewest_replicas(self) -> int:
        """Smallest dp that experts and copies of shards allow, whatever dp this layout has."""
        # replicate divides dp, and ep * etp * replicate divides tp * cp * dp.
        experts = self.folded * self.replicate
        return lcm(experts // gcd(experts, self.tp * self.cp), self.replicate)

    def group(self, axis: Axis) -> Group:
        """Process group of a rank along a parallel axis."""
        return self._groups[axis]

    def sharding(self, axis: Axis) -> tuple[Group, Group]:
        """Group of ranks along an axis that shard states, and the group of ranks with the same shard."""
        group = self.group(axis)
        ranks = group.ranks // self.replicate
        return Group(ranks, group.stride), Group(self.replicate, group.stride * ranks)

    @cached_property
    def _groups(self) -> dict[Axis, Group]:
        dense = self.tp * self.cp
        # Ranks are numbered along tp, cp, dp, pp: the stride of an axis is the product of the widths before
        # it. Experts have numbers of their own along etp, ep, edp.
        sizes: dict[Axis, tuple[int, int]] = {
            "tp": (self.tp, 1),
            "cp": (self.cp, self.tp),
            "cp-heads": (self.heads_ranks, self.tp),
            "cp-ring": (self.cp // self.heads_ranks, self.tp * self.heads_ranks),
            "dp": (self.dp, dense),
            "dp-cp": (self.dp * self.cp, self.tp),
            "etp": (self.expert_slices, 1),
            "ep": (self.ep, self.expert_slices),
            "edp": (self.edp, self.expert_stride),
            "pp": (self.pp, dense * self.dp),
        }
        return {axis: Group(*size) for axis, size in sizes.items()}

    def check(self, *, devices: int | None = None, global_batch: int | None = None) -> None:
        """Raise PhazeError naming two inconsistent fields; device count and batch are checked if given."""
        for name in (*WIDTHS, "microbatch", "replicate"):
            if getattr(self, name) < 1:
                raise PhazeError(f"{name} must be >= 1, got {getattr(self, name)}")
        self._check_options()
        if self.expert_ranks % self.folded:
            raise PhazeError(f"ep * etp must divide tp * cp * dp {self.expert_ranks}, got {self.folded}")
        if self.ep > 1 and self.tp > 1 and not self.sequence_parallel:
            raise PhazeError(f"sequence_parallel must be true with ep {self.ep} and tp {self.tp}, got false")
        if self.sharers % self.replicate or self.edp % self.replicate:
            raise PhazeError(
                f"replicate must divide dp * cp {self.sharers}, and the ranks that share an expert, "
                f"{self.edp}, got {self.replicate}"
            )
        if self.vp > 1 and self.pp < 2:
            raise PhazeError(f"pp must be >= 2 with vp {self.vp}, got {self.pp}")
        if devices is not None and self.devices != devices:
            axes = "tp * pp * dp" if self.cp == 1 else "tp * cp * pp * dp"
            raise PhazeError(f"{axes} must be gpus {devices}, got {self.devices}")
        if global_batch is not None and global_batch % (self.microbatch * self.dp):
            raise PhazeError(
                f"microbatch * dp must divide global_batch {global_batch}, got {self.microbatch * self.dp}"
            )

    def _check_options(self) -> None:
        if self.zero not in get_args(Zero):
            raise PhazeError(f"zero must be 0, 1, 2 or 3, got {self.zero}")
        if self.compute not in COMPUTES:
            raise PhazeError(f"compute must be one of {', '.join(COMPUTES)}, got {self.compute}")
        if self.compute != "bf16" and self.precision == "single":
            raise PhazeError(f"precision must be half or mixed with compute {self.compute}, got single")
        kind = cp_kind_of(self.cp_kind)
        if kind not in CP_KINDS and (self.heads_ranks in (1, self.cp) or self.cp % self.heads_ranks):
            raise PhazeError(f"cp_kind a2a+p2p:k must have 1 < k < cp {self.cp} that divides it, got {kind}")
        for name in ("recompute", "offload", "load"):
            # An option in another order or spelling would be a second name of the same layout.
            value, read = getattr(self, name), READERS[name](getattr(self, name))
            if value != read:
                raise PhazeError(f"{name} must be {read}{' in order' * ('+' in read)}, got {value}")


def named_widths(layout: object) -> list[str]:
    """Parallel widths greater than 1, in common notation such as tp 2; other widths are omitted."""
    named = ((name, getattr(layout, name) or 1) for name in MODEL_WIDTHS)
    return [f"{name} {width}" for name, width in named if width > 1]


def layouts_of(widths: Iterable[int], microbatches: Iterable[int]) -> list[Layout]:
    """Single-stage, single-replica layouts, one for each tensor-parallel width and microbatch size."""
    return [Layout(tp=tp, microbatch=microbatch) for tp, microbatch in product(widths, microbatches)]


assert {field.name for field in fields(Layout)} >= set(WIDTHS)
