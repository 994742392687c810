"""Write a software stack as Megatron-LM flags, and read the stack and kernels from such flags.

Without a flag, Megatron-LM's default holds (`megatron/training/arguments.py`): only messages of interleaved
stages overlap with compute, gradients are accumulated in single precision, and the loss is not fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phaze.runtimes.flags import Flags, word_of
from phaze.runtimes.megatron_model import GROUPED, SWITCHES
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import pairs_passes
from phaze.runtimes.settings import settings_of
from phaze.spec.overlap import Overlap
from phaze.spec.system import Stack

GRADIENTS, WEIGHTS, SLICES = "--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap"
SERIAL, PAIRED = "--no-overlap-p2p-communication", "--overlap-moe-expert-parallel-comm"
HALF, LOSS, UNFUSED_GRADIENTS = (
    "--grad-reduce-in-bf16", "--cross-entropy-loss-fusion", "--no-gradient-accumulation-fusion",
)  # fmt: skip
UNFUSED_GATE = "--no-bias-swiglu-fusion"
DISPATCHER, DEEPEP = "--moe-token-dispatcher-type", "--moe-enable-deepep"
BACKEND, IMPLEMENTATION, FLASH = "--attention-backend", "--transformer-impl", "--use-flash-attn"
CUDNN = "cudnn"
FUSED_LOGITS, LOGITS = 4, 6
"""Bytes per logit with its gradient: with a fused loss, and with an overwritten single-precision copy."""
SOFTWARE = frozenset(
    (
        GRADIENTS, WEIGHTS, SLICES, SERIAL, PAIRED, HALF, LOSS, UNFUSED_GRADIENTS, UNFUSED_GATE, GROUPED,
        DISPATCHER, DEEPEP, "--moe-flex-dispatcher-backend", BACKEND, FLASH, IMPLEMENTATION,
        "--accumulate-allreduce-grads-in-fp32",
    )
)  # fmt: skip
"""Flags that a software stack determines."""
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
"""Flag of the number of microbatches that a rank runs in a virtual stage before its next one; default: pp."""


@dataclass(frozen=True)
class Software:
    """Training software described by flags: the stack, the attention kernel, and unmodelled flags."""

    stack: Stack
    """Software stack with the settings from the flags."""
    flash: bool = True
    """True if attention keeps its scores on chip."""
    unmodelled: tuple[str, ...] = ()
    """Flags that change time or memory and are not modelled, with their values."""

    def overlap(self, recipe: Recipe) -> str:
        """Kinds of communication that overlap with compute; token dispatch only if the recipe supports it."""
        paired = pairs_passes(recipe.layout, recipe.model)
        return "+".join(kind for kind in self.stack.overlap if kind != "ep" or paired) or "none"

    def in_words(self, recipe: Recipe) -> str:
        """Summary of the software that a recipe runs with."""
        scores = "on the chip" if self.flash else "in memory"
        return (
            f"overlap {self.overlap(recipe)}, gradients of {self.stack.gradient_bytes} bytes, "
            f"attention scores {scores}"
        )


def software_flags(recipe: Recipe, stack: Stack | None) -> Iterator[tuple[str, ...]]:
    """Yield the flags of a software stack: overlap, gradients and kernels."""
    if stack is None:
        yield BACKEND, "flash"
        return
    yield BACKEND, "auto" if stack.attention[:1] == (CUDNN,) else "flash"
    yield from _overlap_flags(recipe, stack.overlap)
    on = {
        HALF: stack.gradient_bytes == 2,
        LOSS: stack.logit_bytes <= FUSED_LOGITS,
        UNFUSED_GRADIENTS: not stack.fused_gradients and recipe.layout.zero < 2,  # FSDP has the flag anyway
        UNFUSED_GATE: recipe.model.gated and not stack.fused_gate,
    }
    yield from ((flag,) for flag, is_on in on.items() if is_on)
    if recipe.model.experts and stack.dispatch == "tokens":
        yield from ((DISPATCHER, "flex"), (DEEPEP,))
    elif recipe.model.experts:
        yield DISPATCHER, "alltoall"


def _overlap_flags(recipe: Recipe, overlap: Overlap) -> Iterator[tuple[str, ...]]:
    layout = recipe.layout
    if "dp" in overlap and layout.dp * layout.cp > 1:
        yield (GRADIENTS,)
        if layout.zero:
            yield (WEIGHTS,)
    if "tp" in overlap and layout.cuts_sequence:
        yield (SLICES,)
    if "pp" not in overlap and layout.vp > 1:
        yield (SERIAL,)
    if "ep" in overlap and pairs_passes(layout, recipe.model):
        yield (PAIRED,)


def read_software(
    flags: Flags, recipe: Recipe, stack: Stack, connections: str = "", *, blackwell: bool = False
) -> Software:
    """Read the training software from flags; the stack supplies settings that flags do not determine.

    `connections` is the value of `CUDA_DEVICE_MAX_CONNECTIONS`, if it is set: it decides which overlap the
    hardware queues allow.
    """
    local = flags.get(IMPLEMENTATION) == ("local",)
    backends = ("auto", "flash", "fused", "unfused", "local")
    usual = "flash" if FLASH in flags else "auto"
    backend = word_of(flags, BACKEND, {word: word for word in backends}, usual)
    fused_loss = LOSS in flags
    logit_bytes = min(stack.logit_bytes, FUSED_LOGITS) if fused_loss else max(stack.logit_bytes, LOGITS)
    updates: dict[str, object] = {
        "overlap": _overlap(flags, recipe, stack),
        "attention": _attention(backend, stack),
        # Megatron-LM accumulates in single precision by default with --bf16 alone (`validate_args`).
        "gradient_bytes": 2 if HALF in flags or "--fp16" in flags else 4,
        "logit_bytes": logit_bytes,
        "fused_gradients": _is_fused(flags, UNFUSED_GRADIENTS, stack.fused_gradients, recipe.layout.zero < 2),
        "fused_gate": _is_fused(flags, UNFUSED_GATE, stack.fused_gate, recipe.model.gated),
    }
    if recipe.model.experts is not None:
        updates["dispatch"] = "tokens" if flags.get(DISPATCHER) == ("flex",) else "rows"
        updates["experts"] = stack.experts if GROUPED in flags else "each"
    read = stack.model_copy(update=updates)
    # With one queue the dispatch waits for the kernels that it should overlap with.
    if PAIRED in flags and connections == "1":
        read = read.without("ep")
    elif PAIRED in flags and connections and read.ordered_queue and not blackwell and recipe.layout.zero < 2:
        read = read.in_many_queues()  # those of FSDP are known from its layout
    flash = not local and backend not in ("unfused", "local")
    return Software(read, flash, tuple(_unmodelled(flags, recipe)))


def _is_fused(flags: Flags, flag: str, default: bool, applies: bool) -> bool:
    """True unless `flag` turns a kernel fusion off; `default` if the flag does not apply."""
    return flag not in flags if applies else default


def _overlap(flags: Flags, recipe: Recipe, stack: Stack) -> Overlap:
    """Kinds of communication that overlap with compute; the stack decides for kinds that the layout lacks."""
    layout, usual = recipe.layout, stack.overlap
    overlaps = {
        "dp": GRADIENTS in flags and (not layout.zero or WEIGHTS in flags)
        if layout.dp * layout.cp > 1
        else None,
        "tp": SLICES in flags if layout.tp > 1 else None,
        "pp": SERIAL not in flags if layout.vp > 1 else None,
        "ep": PAIRED in flags if pairs_passes(layout, recipe.model) else None,
    }
    kinds: Overlap = ("dp", "tp", "pp", "ep")
    overlap = tuple(kind for kind in kinds if (kind in usual if overlaps[kind] is None else overlaps[kind]))
    # The same kinds in the stack's own order, so that equal stacks compare as equal.
    return usual if set(overlap) == set(usual) else overlap


def _attention(backend: str, stack: Stack) -> tuple[str, ...]:
    """Attention kernels in order of preference; the stack's order if Transformer Engine may choose."""
    others = tuple(name for name in stack.attention if name != CUDNN) or ("2",)
    if backend == "flash" and stack.attention[:1] == (CUDNN,):
        return (*others, CUDNN)
    if backend == "fused" and stack.attention[:1] != (CUDNN,):
        return (CUDNN, *others)
    return stack.attention


def _unmodelled(flags: Flags, recipe: Recipe) -> Iterator[str]:
    """Yield the flags that change time or memory and are not modelled."""
    latent = recipe.model.latent
    if latent is not None and latent.index is None and SWITCHES["scaled_rotary"] in flags:
        yield SWITCHES["scaled_rotary"]
    yield from settings_of("megatron").named(flags)
    if GROUP in flags and recipe.layout.vp > 1 and flags[GROUP] != (str(recipe.microbatch_group),):
        yield " ".join((GROUP, *flags[GROUP]))
    if recipe.layout.zero and GRADIENTS in flags and WEIGHTS not in flags:
        yield f"{GRADIENTS} without {WEIGHTS}"
    # Megatron-LM's default dispatcher gathers all tokens on all expert ranks.
    if recipe.layout.ep > 1 and flags.get(DISPATCHER, ("allgather",)) == ("allgather",):
        yield f"{DISPATCHER} allgather"
