"""Layout of one training job: how it is spread over devices, and the process groups of its ranks.

Ranks are numbered as in Megatron-Core, tp-cp-ep-dp-pp with tp fastest. Tensor-parallel ranks are therefore
adjacent, and pipeline stages are farthest apart. Experts fold into the ranks of a stage as etp-ep-edp: their
own data-parallel width is edp = tp · cp · dp / (etp · ep) (Megatron-Core, `parallel_state`).
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, get_args

from phaze.base.errors import PhazeError

if TYPE_CHECKING:  # numpy takes longer to import than a misspelt name to report
    from phaze.base.arrays import Bools, Ints

Zero = Literal[0, 1, 2, 3]
"""ZeRO stage: replicas shard nothing, optimizer state, also gradients, also weights.

Source: Rajbhandari et al., SC 2020, Section 5.
"""
Module = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
"""Part of a layer that can be recomputed alone (Megatron-Core, `--recompute-modules`)."""
MODULES: tuple[Module, ...] = get_args(Module)
Recompute = str
"""Activation recompute: none, full, selective, or modules.

`full` recomputes every layer; `selective` has the meaning of the software stack; modules are joined by + in
the order of `MODULES`. See `recompute_of`.
"""
RECOMPUTES = ("none", "full", "selective")
"""Recompute options other than modules."""
CpKind = str
"""Exchange of keys and values among context-parallel ranks.

`all_gather` gathers them; `p2p` passes them around a ring, overlapped with attention; `a2a` exchanges heads,
so that each rank has whole sequences of its share of the heads (Ulysses). `a2a+p2p:k` exchanges heads inside
groups of k adjacent ranks and runs a ring among the groups (Megatron-Core, `--cp-comm-type`,
`--hierarchical-context-parallel-sizes`).
"""
CP_KINDS = ("all_gather", "p2p", "a2a")
"""Kinds with one level."""
LEVELS = "a2a+p2p"
"""Prefix of the two-level kind; the ranks of its inner level follow a colon."""
OffloadedModule = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
"""Part of a layer whose inputs can be offloaded to host memory (Megatron-Core, `--offload-modules`)."""
OFFLOADED_MODULES: tuple[OffloadedModule, ...] = get_args(OffloadedModule)
Offload = str
"""Offload to host memory: none, or modules, layers and optimizer state joined by +.

A module offloads its inputs. `layers:k` offloads all activations that k blocks of a device store. `optimizer`
offloads optimizer states between steps. See `offload_of`.
"""
Load = str
"""Tokens dispatched to the experts of the busiest rank, relative to balanced routing.

`balanced`; a factor over balanced routing, the capacity where tokens are dropped and padded; or a law
`power_law_a` or `max_vio_v`, whose factor depends on the layout. See `load_of`.
"""
BALANCED: Load = "balanced"
LOADS = {"power_law_": (1.0, 10.0), "max_vio_": (0.0, 1000.0)}
"""Routing laws, with the open interval of their parameter.

`power_law_`: exponent of a power law of expert popularity. `max_vio_`: tokens of the busiest expert over the
mean, less 1 (MaxVio, Wang et al. 2024, arXiv 2408.15664).
"""
Precision = Literal["half", "mixed", "single"]
Compute = Literal["bf16", "fp8", "fp8-cs", "fp8-block", "mxfp8", "nvfp4"]
"""Operand format of the matrix products with a block's weights.

Half precision; 8 bits scaled by the maximum of earlier steps, of the tensor, or of blocks of 128; 8 or 4 bits
with hardware scales per 32 or 16 elements. Attention, embedding, head and router stay in half precision
(Megatron-Core, `--fp8-recipe`).
"""
COMPUTES: tuple[Compute, ...] = get_args(Compute)
COMPUTE_NAMES: dict[str, Compute] = {
    **{name: name for name in COMPUTES}, "bfloat16": "bf16", "mixed": "bf16", "fp8-delayed": "fp8",
    "delayed": "fp8", "fp8-current": "fp8-cs", "fp8-tensorwise": "fp8-cs", "tensorwise": "fp8-cs",
    "fp8-blockwise": "fp8-block", "blockwise": "fp8-block", "fp8-mx": "mxfp8", "fp4": "nvfp4",
}  # fmt: skip
"""Accepted names of compute formats, in any case and with _ for -.

They include the recipes of Megatron-Core (`--fp8-recipe`) and `mixed`, the weight precision that goes with
bf16.
"""
OPERAND_BYTES: dict[Compute, float] = {
    "bf16": 2, "fp8": 1, "fp8-cs": 1, "fp8-block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16,
}  # fmt: skip
"""Bytes per operand element of the products with a block's weights, with its share of the scales."""
Axis = Literal["tp", "cp", "cp-heads", "cp-ring", "ep", "etp", "edp", "dp", "dp-cp", "pp"]
"""Axis along which ranks form a process group.

`dp-cp`: all ranks with the same dense weights. `cp-heads`: ranks that exchange heads. `cp-ring`: ranks that
pass keys and values around a ring, one of each `cp-heads` group.
"""
LAYER_AXES: tuple[Axis, ...] = ("tp", "cp", "cp-heads", "cp-ring", "ep", "etp")
"""Axes whose collectives are part of layers."""
WIDTHS = ("tp", "cp", "ep", "etp", "pp", "vp", "dp")
"""Fields that are widths of a kind of parallelism."""
MODEL_WIDTHS = WIDTHS[:-1]
"""Widths that divide the model; the remaining one counts its replicas."""
EXPERT_FIELDS = ("ep", "etp", "load")
"""Fields without effect on a model without experts."""
SHARD_FIELDS = ("tp", "cp", "cp_kind", "ep", "etp", "microbatch", "sequence_parallel")
"""Fields of `Layout.key` in which the layouts of one training job differ."""

_KEY = re.compile(
    r"tp(\d+)(?:-cp(\d+)(?:-(p2p|a2a|a2a\+p2p\d+))?)?(?:-ep(\d+))?(?:-etp(\d+))?(?:-load((?:power_law_|max_vio_)?\d+(?:\.\d+)?))?(-sp)?"
    r"-b(\d+)(-single)?(?:-(fp8-cs|fp8-block|fp8|mxfp8|nvfp4))?"
)
_NUMBER = re.compile(r"\d{1,6}(\.\d{1,20})?")
_COUNT = re.compile(r"[1-9]\d{0,5}")
KEY_PATTERN = re.sub(r"\((?!\?)", "(?:", _KEY.pattern)
"""Regular expression of a `Layout.key`, without groups."""


@dataclass(frozen=True)
class Group:
    """Process group: `ranks` members, `stride` devices apart."""

    ranks: int
    stride: int


DEVICE_AXES = ("tp", "cp", "pp", "dp")
"""Axes whose widths multiply to the device count of a layout."""
Number = TypeVar("Number", int, "Ints")
Truth = TypeVar("Truth", bool, "Bools")
Stage = TypeVar("Stage", Zero, "Ints")
Option = TypeVar("Option", str, "Ints")
_ONE: Any = 1
_NO: Any = False
_REPLICATED: Any = 0
_STORED: Any = "none"
_GATHERED: Any = "all_gather"
"""Defaults of generic fields, which suit a single layout only."""


@dataclass(frozen=True)
class LayoutFields(Generic[Number, Truth, Stage, Option]):
    """Widths of every kind of parallelism, with the options for optimizer state, activations and precision.

    Values are those of one layout (`Layout`), or arrays over many layouts.
    """

    tp: Number = _ONE
    """Tensor-parallel ranks, which share every layer."""
    cp: Number = _ONE
    """Context-parallel ranks, which share every sequence."""
    ep: Number = _ONE
    """Expert-parallel ranks, over which experts are sharded."""
    etp: Number = _ONE
    """Tensor-parallel ranks inside an expert."""
    pp: Number = _ONE
    """Pipeline-parallel devices that a microbatch passes."""
    vp: Number = _ONE
    """Virtual stages per pipeline device (interleaving)."""
    dp: Number = _ONE
    """Data-parallel replicas."""
    microbatch: Number = _ONE
    """Samples in a microbatch."""
    sequence_parallel: Truth = _NO
    """Shard along the sequence what tensor parallelism leaves whole (Korthikanti et al. 2023)."""
    zero: Stage = _REPLICATED
    """ZeRO stage, see `Zero`."""
    recompute: Option = _STORED
    """Activation recompute, see `Recompute`."""
    precision: Precision = "mixed"
    """Precision of the weights."""
    compute: Compute = "bf16"
    """Operand format of the matrix products with a block's weights."""
    cp_kind: Option = _GATHERED
    """Exchange of keys and values among context-parallel ranks, see `CpKind`."""
    load: Load = BALANCED
    """Tokens dispatched to the experts of the busiest rank, relative to balanced routing."""
    offload: Offload = "none"
    """Activations and states offloaded to host memory, see `Offload`."""

    @property
    def stages(self) -> Number:
        """Pipeline stages, with all virtual stages counted."""
        return self.pp * self.vp

    @property
    def sharers(self) -> Number:
        """Ranks with the same dense weights, dp · cp."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> Number:
        """Ranks of a stage, into which its experts fold."""
        return self.tp * self.cp * self.dp

    @property
    def folded(self) -> Number:
        """Ranks over which the experts of a layer are sharded if every rank has its own tokens."""
        return self.ep * self.etp

    @property
    def expert_slices(self) -> Number:
        """Tensor-parallel ranks that share an expert.

        This is etp, except without sequence parallelism: then every tensor-parallel rank has all tokens, so
        experts are sharded like the dense layers.
        """
        own: Any = self.sequence_parallel | (self.tp == 1) | (self.ep > 1)
        found: Number = self.tp + own * (self.etp - self.tp)
        return found

    @property
    def expert_stride(self) -> Number:
        """Distance between ranks with the same experts."""
        return self.expert_slices * self.ep

    @property
    def edp(self) -> Number:
        """Expert-data-parallel ranks, which store the same experts."""
        return self.expert_ranks // self.expert_stride

    def microbatches(self, global_batch: int) -> Number:
        """Microbatches per replica in a global batch."""
        return global_batch // (self.microbatch * self.dp)


@dataclass(frozen=True, order=True)
class Layout(LayoutFields[int, bool, Zero, str]):
    """Layout of one training job.

    Layouts are ordered by the values of their fields: tp2-b1 comes before tp16-b1.
    """

    @property
    def devices(self) -> int:
        """Devices of all stages and replicas."""
        return self.expert_ranks * self.pp

    @property
    def folds_experts(self) -> bool:
        """True if experts have process groups of their own."""
        return self.ep > 1 or (self.etp > 1 and self.sequence_parallel)

    @property
    def heads_ranks(self) -> int:
        """Context-parallel ranks that exchange heads with each other for whole sequences."""
        return heads_ranks_of(self.cp_kind, self.cp)

    @property
    def cuts_sequence(self) -> bool:
        """True if tensor-parallel ranks hold shards of the sequence between layers."""
        return self.sequence_parallel and self.tp > 1

    @property
    def bytes_per_element(self) -> int:
        """Bytes per activation element."""
        return 4 if self.precision == "single" else 2

    @cached_property
    def key(self) -> str:
        """Name of all fields that change the operators of a rank, such as tp4-sp-b2, for paths and tables.

        Axes of width 1 other than tp are left out, so that a new axis renames no existing key.
        """
        cuts = [f"{name}{getattr(self, name)}" for name in ("cp", "ep", "etp") if getattr(self, name) > 1]
        cuts[1:1] = [self.cp_kind.replace(":", "")] * (self.cp > 1 and self.cp_kind != "all_gather")
        cuts += [f"load{self.load}"] * (self.load != BALANCED)
        parts = [f"tp{self.tp}", *cuts, *["sp"] * self.cuts_sequence, f"b{self.microbatch}"]
        lower = [self.compute] * (self.compute != "bf16")
        return "-".join([*parts, *["single"] * (self.precision == "single"), *lower])

    @property
    def modules(self) -> frozenset[Module]:
        """Modules that are recomputed individually; empty for none, full and selective."""
        return modules_of(self.recompute)

    @cached_property
    def offloaded(self) -> "Offloaded":
        """Activations and states offloaded to host memory."""
        return Offloaded.of(self.offload)

    @classmethod
    def of_key(cls, key: str) -> Self:
        """Layout of one stage and one replica with this key; PhazeError for an invalid key."""
        found = _KEY.fullmatch(key)
        if found is None:
            raise PhazeError(f"layout: must be a key such as tp4-b2 or tp8-cp2-sp-b1, got {key}")
        tp, cp, kind, ep, etp, load, sp, microbatch, single, compute = found.groups("")
        return cls(
            tp=int(tp),
            cp=int(cp or 1),
            ep=int(ep or 1),
            etp=int(etp or 1),
            microbatch=int(microbatch),
            sequence_parallel=bool(sp),
            precision="single" if single else "mixed",
            compute=next((one for one in COMPUTES if one == compute), "bf16"),
            cp_kind=kind.replace(LEVELS, f"{LEVELS}:") or "all_gather",
            load=load or BALANCED,
        )

    def group(self, axis: Axis) -> Group:
        """Process group of a rank along an axis."""
        return self._groups[axis]

    @cached_property
    def _groups(self) -> dict[Axis, Group]:
        dense = self.tp * self.cp
        every: dict[Axis, tuple[int, int]] = {
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
        return {axis: Group(*own) for axis, own in every.items()}

    def check(self, *, devices: int | None = None, global_batch: int | None = None) -> None:
        """Raise PhazeError naming two fields that disagree; device count and batch are checked if given."""
        for name in (*WIDTHS, "microbatch"):
            if getattr(self, name) < 1:
                raise PhazeError(f"{name} must be >= 1, got {getattr(self, name)}")
        self._check_words()
        if self.expert_ranks % self.folded:
            raise PhazeError(f"ep * etp must divide tp * cp * dp {self.expert_ranks}, got {self.folded}")
        if self.ep > 1 and self.tp > 1 and not self.sequence_parallel:
            raise PhazeError(f"sequence_parallel must be true with ep {self.ep} and tp {self.tp}, got false")
        if self.vp > 1 and self.pp < 2:
            raise PhazeError(f"pp must be >= 2 with vp {self.vp}, got {self.pp}")
        if devices is not None and self.devices != devices:
            axes = "tp * pp * dp" if self.cp == 1 else "tp * cp * pp * dp"
            raise PhazeError(f"{axes} must be gpus {devices}, got {self.devices}")
        if global_batch is not None and global_batch % (self.microbatch * self.dp):
            raise PhazeError(
                f"microbatch * dp must divide global_batch {global_batch}, got {self.microbatch * self.dp}"
            )

    def _check_words(self) -> None:
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
            value, read = getattr(self, name), READERS[name](getattr(self, name))
            if value != read:
                raise PhazeError(f"{name} must be {read}{' in order' * ('+' in read)}, got {value}")


def pairs_passes(layout: Layout, mtp: int) -> bool:
    """True if token dispatch of a pass can overlap with the opposite pass of another microbatch.

    `mtp` is the number of multi-token prediction layers. Megatron-Core overlaps both passes without a
    pipeline or with virtual stages, unless it recomputes whole blocks or experts (`TransformerConfig`,
    `overlap_moe_expert_parallel_comm`).
    """
    staged = layout.pp == 1 or layout.vp > 1
    whole = layout.recompute == "full" or "moe" in layout.modules
    return layout.ep > 1 and staged and not whole and mtp <= 1


def compute_of(text: str) -> Compute:
    """Compute format of a name; PhazeError for an unknown name."""
    found = COMPUTE_NAMES.get(text.strip().lower().replace("_", "-"))
    if found is None:
        raise PhazeError(f"compute must be one of {', '.join(COMPUTES)}, got {text[:40]}")
    return found


def cp_kind_of(text: str) -> CpKind:
    """Checked exchange kind of context-parallel ranks; PhazeError for an unknown kind."""
    levels, _, ranks = text.partition(":")
    if text not in CP_KINDS and not (levels == LEVELS and _COUNT.fullmatch(ranks)):
        raise PhazeError(f"cp_kind must be one of {', '.join(CP_KINDS)}, {LEVELS}:k, got {text[:40]}")
    return text


def heads_ranks_of(kind: CpKind, cp: int) -> int:
    """Ranks out of `cp` that exchange heads with each other under an exchange kind."""
    levels, _, ranks = kind.partition(":")
    return int(ranks) if levels == LEVELS else cp if kind == "a2a" else 1


def modules_of(recompute: Recompute) -> frozenset[Module]:
    """Modules named by a recompute option."""
    return frozenset(module for module in MODULES if module in recompute.split("+"))


def recompute_of(text: str) -> Recompute:
    """Recompute option of a text, each module once and in order; PhazeError for an invalid text."""
    if text in RECOMPUTES:
        return text
    parts = [part.strip() for part in text.split("+")]
    if unknown := [part for part in parts if part not in MODULES]:
        raise PhazeError(
            f"recompute must be one of {', '.join(RECOMPUTES)}, or of {', '.join(MODULES)} joined by +, "
            f"got {unknown[0][:40]}"
        )
    return "+".join(module for module in MODULES if module in parts)


@dataclass(frozen=True)
class Offloaded:
    """Activations and states that are offloaded to host memory."""

    modules: frozenset[OffloadedModule] = frozenset()
    """Parts of layers whose inputs are offloaded."""
    layers: int = 0
    """Blocks per device whose activations are all offloaded."""
    optimizer: bool = False
    """True if optimizer states are offloaded between steps."""

    @classmethod
    def of(cls, text: Offload) -> Self:
        """Parsed offload option; PhazeError for an invalid text."""
        words = [] if text == "none" else [word.strip() for word in text.split("+")]
        counts = [word.removeprefix("layers:") for word in words if word.startswith("layers:")]
        modules = frozenset(module for module in OFFLOADED_MODULES if module in words)
        known = {*modules, "optimizer", *(f"layers:{count}" for count in counts if _COUNT.fullmatch(count))}
        if unknown := [word for word in words if word not in known]:
            raise PhazeError(
                f"offload must be none, or of {', '.join(OFFLOADED_MODULES)}, layers:k and optimizer joined "
                f"by +, got {unknown[0][:40]}"
            )
        if len(counts) > 1 or (counts and modules):
            raise PhazeError(f"offload must name modules, or layers once, not both, got {text[:60]}")
        return cls(modules, int(counts[0]) if counts else 0, "optimizer" in words)

    def part(self, blocks: int) -> float:
        """Offloaded fraction of a block's offloadable activations, averaged over a device's blocks."""
        return min(self.layers / blocks, 1.0) if self.layers and blocks else 1.0

    @property
    def word(self) -> Offload:
        """Offload option as text, parts in order."""
        words: list[str] = [module for module in OFFLOADED_MODULES if module in self.modules]
        words += [f"layers:{self.layers}"] * bool(self.layers) + ["optimizer"] * self.optimizer
        return "+".join(words) or "none"


ON_DEVICE = Offloaded()
"""No offload."""


def offload_of(text: str) -> Offload:
    """Offload option of a text, parts in order; PhazeError for an invalid text."""
    return Offloaded.of(text).word


def load_of(text: str) -> Load:
    """Parse an expert load into canonical form; PhazeError if it is invalid."""
    law, number = law_of_load(text)
    return BALANCED if (law, number) == ("", 1.0) else f"{law}{number:g}"


def law_of_load(text: str) -> tuple[str, float]:
    """Routing law and its parameter, or "" and a factor; PhazeError for an invalid load."""
    word = text.strip().lower()
    law = next((law for law in LOADS if word.startswith(law)), "")
    text_of_number = "1" if word == BALANCED else word.removeprefix(law)
    number = round(float(text_of_number), 4) if _NUMBER.fullmatch(text_of_number) else 0.0
    low, high = LOADS.get(law, (0.0, inf))
    if not low < number < high:
        laws = (f"{law}x with {low:g} < x < {high:g}" for law, (low, high) in LOADS.items())
        raise PhazeError(f"load must be {BALANCED}, a factor > 0, {', or '.join(laws)}, got {text[:40]}")
    return law, number


READERS: dict[str, Callable[[str], str]] = {
    "recompute": recompute_of, "compute": compute_of, "cp_kind": cp_kind_of, "load": load_of,
    "offload": offload_of,
}  # fmt: skip
"""Readers of options, in canonical form; they raise PhazeError for an invalid text."""


def layouts_of(widths: Iterable[int], microbatches: Iterable[int]) -> list[Layout]:
    """Layouts of one stage and one replica with every tensor-parallel width and every microbatch size."""
    return [Layout(tp=tp, microbatch=microbatch) for tp, microbatch in product(widths, microbatches)]


assert {field.name for field in fields(Layout)} >= set(WIDTHS)
