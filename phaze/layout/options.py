"""Options of a layout: their allowed values, and functions that parse them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, Self, get_args

from phaze.base.errors import PhazeError

Zero = Literal[0, 1, 2, 3]
"""ZeRO stage; replicas shard nothing (0), optimizer states (1), also gradients (2), also weights (3).

Source: Rajbhandari et al., SC 2020, Section 5.
"""
Module = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
"""Part of a layer that can be recomputed individually (Megatron-Core, `--recompute-modules`)."""
MODULES: tuple[Module, ...] = get_args(Module)
Recompute = str
"""Activation recomputation: none, full, selective, or a set of modules.

`full` recomputes every layer; `selective` has the meaning of the software stack; modules are joined by + in
the order of `MODULES`. See `recompute_of`.
"""
RECOMPUTES = ("none", "full", "selective")
"""Recompute options other than sets of modules."""
CpKind = str
"""Method by which context-parallel ranks exchange keys and values.

`all_gather` gathers them; `p2p` passes them around a ring, overlapped with attention; `a2a` exchanges heads,
so that each rank has whole sequences of its share of the heads (Ulysses). `a2a+p2p:k` exchanges heads inside
groups of k adjacent ranks and runs a ring among the groups (Megatron-Core, `--cp-comm-type`,
`--hierarchical-context-parallel-sizes`).
"""
CP_KINDS = ("all_gather", "p2p", "a2a")
"""Exchange methods with a single level."""
LEVELS = "a2a+p2p"
"""Prefix of the two-level exchange method; the number of ranks in its inner level follows a colon."""
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
"""Number of tokens dispatched to the experts of the busiest rank, relative to balanced routing.

`balanced`, as benchmarks force it; `natural`, as the model's router chooses; a factor over balanced routing,
the capacity where tokens are dropped and padded; or a law `power_law_a` or `max_vio_v`. The factors of
`natural` and of laws depend on the layout. See `load_of`.
"""
BALANCED: Load = "balanced"
NATURAL: Load = "natural"
LOADS = {"power_law_": (1.0, 10.0), "max_vio_": (0.0, 1000.0)}
"""Routing laws, with the open interval of each law's parameter.

`power_law_`: exponent of a power law of expert popularity. `max_vio_`: tokens of the busiest expert over the
mean, less 1 (MaxVio, Wang et al. 2024, arXiv 2408.15664).
"""
Precision = Literal["half", "mixed", "single"]
Optimizer = Literal["adam", "adam-bf16", "adam-fp8", "sgd-momentum", "sgd"]
"""Optimizer, and the format of its states in mixed precision.

Adam has two moments of every parameter, in single precision, or in 16 or 8 bits (Megatron-Core,
`--exp-avg-dtype`); SGD has one momentum or none. Master weights stay in single precision.
"""
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
Compute = Literal["bf16", "fp8", "fp8-cs", "fp8-block", "mxfp8", "nvfp4"]
"""Operand format of the GEMMs with block weights.

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
"""Accepted names of compute formats; case does not matter, and _ is read as -.

They include the recipes of Megatron-Core (`--fp8-recipe`) and `mixed`, the weight precision that goes with
bf16.
"""
# Scales take 4 bytes for a block of 128 elements, or 1 byte for 32 or 16 elements.
OPERAND_BYTES: dict[Compute, float] = {
    "bf16": 2, "fp8": 1, "fp8-cs": 1, "fp8-block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16,
}  # fmt: skip
"""Bytes per operand element of the GEMMs with block weights, including its share of the scales."""
# Bounded lengths: a number of a file is neither slow to convert nor infinite.
_NUMBER = re.compile(r"\d{1,6}(\.\d{1,20})?")
_COUNT = re.compile(r"[1-9]\d{0,5}")


def compute_of(text: str) -> Compute:
    """Parse the name of a compute format; PhazeError for an unknown name."""
    compute = COMPUTE_NAMES.get(text.strip().lower().replace("_", "-"))
    if compute is None:
        raise PhazeError(f"compute must be one of {', '.join(COMPUTES)}, got {text[:40]}")
    return compute


def cp_kind_of(text: str) -> CpKind:
    """Check a context-parallel exchange method and return it; PhazeError for an unknown method."""
    levels, _, ranks = text.partition(":")
    if text not in CP_KINDS and not (levels == LEVELS and _COUNT.fullmatch(ranks)):
        raise PhazeError(f"cp_kind must be one of {', '.join(CP_KINDS)}, {LEVELS}:k, got {text[:40]}")
    return text


def heads_ranks_of(kind: CpKind, cp: int) -> int:
    """Number of the `cp` ranks that exchange heads with each other under an exchange method."""
    levels, _, ranks = kind.partition(":")
    return int(ranks) if levels == LEVELS else cp if kind == "a2a" else 1


def modules_of(recompute: Recompute) -> frozenset[Module]:
    """Modules that a recompute option names."""
    return frozenset(module for module in MODULES if module in recompute.split("+"))


def recompute_of(text: str) -> Recompute:
    """Parse a recompute option: each module once, in canonical order; PhazeError if it is invalid."""
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
    """Activations and optimizer states that are offloaded to host memory."""

    modules: frozenset[OffloadedModule] = frozenset()
    """Parts of layers whose inputs are offloaded."""
    layers: int = 0
    """Number of blocks per device whose activations are offloaded completely."""
    optimizer: bool = False
    """True if optimizer states are offloaded between steps."""

    @classmethod
    def of(cls, text: Offload) -> Self:
        """Parse an offload option; PhazeError if it is invalid."""
        words = [] if text == "none" else [word.strip() for word in text.split("+")]
        counts = [word.removeprefix("layers:") for word in words if word.startswith("layers:")]
        modules = frozenset(module for module in OFFLOADED_MODULES if module in words)
        valid = {*modules, "optimizer", *(f"layers:{count}" for count in counts if _COUNT.fullmatch(count))}
        if unknown := [word for word in words if word not in valid]:
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
    def text(self) -> Offload:
        """Offload option as text, with its parts in canonical order."""
        words: list[str] = [module for module in OFFLOADED_MODULES if module in self.modules]
        words += [f"layers:{self.layers}"] * bool(self.layers) + ["optimizer"] * self.optimizer
        return "+".join(words) or "none"


ON_DEVICE = Offloaded()
"""Value of `Offloaded` if everything stays on the device."""


def offload_of(text: str) -> Offload:
    """Parse an offload option into canonical order; PhazeError if it is invalid."""
    return Offloaded.of(text).text


def load_of(text: str) -> Load:
    """Parse an expert load into canonical form; PhazeError if it is invalid."""
    law, number = law_of_load(text)
    if law == NATURAL:
        return NATURAL
    return BALANCED if (law, number) == ("", 1.0) else f"{law}{number:g}"


def law_of_load(text: str) -> tuple[str, float]:
    """Parse an expert load into its routing law and parameter; PhazeError if it is invalid.

    A plain factor has no law: the law is then "", and the parameter is the factor. Natural routing has the
    law `natural` without a parameter.
    """
    word = text.strip().lower()
    if word == NATURAL:
        return NATURAL, 1.0
    law = next((law for law in LOADS if word.startswith(law)), "")
    # Balanced routing is the factor 1 without a law.
    text_of_number = "1" if word == BALANCED else word.removeprefix(law)
    number = round(float(text_of_number), 4) if _NUMBER.fullmatch(text_of_number) else 0.0
    low, high = LOADS.get(law, (0.0, inf))
    if not low < number < high:
        laws = (f"{law}x with {low:g} < x < {high:g}" for law, (low, high) in LOADS.items())
        raise PhazeError(
            f"load must be {BALANCED}, {NATURAL}, a factor > 0, {', or '.join(laws)}, got {text[:40]}"
        )
    return law, number


def count_of(name: str, text: str) -> int:
    """Parse an option that is a number of ranks; PhazeError if it is not a whole number >= 1."""
    if not _COUNT.fullmatch(text):
        raise PhazeError(f"{name} must be a whole number >= 1, got {text[:40]}")
    return int(text)


def optimizer_of(text: str) -> Optimizer:
    """Parse the name of an optimizer; PhazeError for an unknown name."""
    name = next((name for name in OPTIMIZERS if name == text.strip().lower()), None)
    if name is None:
        raise PhazeError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {text[:40]}")
    return name


READERS: dict[str, Callable[[str], str]] = {
    "recompute": recompute_of, "compute": compute_of, "cp_kind": cp_kind_of, "load": load_of,
    "offload": offload_of, "optimizer": optimizer_of,
}  # fmt: skip
"""Functions that parse options into canonical form, by option; they raise PhazeError for an invalid text."""
