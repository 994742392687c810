"""Training software: its layout options, and its rules for the layouts that it can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, Self

from phaze.base.arrays import Bools, Count
from phaze.base.errors import PhazeError
from phaze.layout import (
    BALANCED,
    COMPUTES,
    LEVELS,
    MODULES,
    READERS,
    RECOMPUTES,
    SHARED_OPTIONS,
    Compute,
    CpKind,
    Layout,
    Load,
    Module,
    Recompute,
    Zero,
    count_of,
    cp_kind_of,
    modules_of,
    recompute_of,
)
from phaze.pipeline.schedules import SCHEDULES
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.model import Model
from phaze.spec.training_plan import AskedPlan

ENDS = 2
"""Number of pipeline entries other than layers: the embedding, and the head with its loss."""
INSIDE_MOE: frozenset[Module] = frozenset({"moe_act", "shared_experts"})
"""Modules inside an MoE layer, which recomputing `moe` also recomputes."""
PIPELINED = tuple(name for name, schedule in SCHEDULES.items() if schedule.in_runs and name != "1f1b")
"""Schedules that need a pipeline; without a pipeline the schedule is always 1f1b."""
MULTIPLES: dict[Compute, tuple[int, int]] = {
    "bf16": (1, 1), "fp8": (8, 16), "fp8-cs": (8, 16), "fp8-block": (8, 16), "mxfp8": (32, 32),
    "nvfp4": (16, 16),
}  # fmt: skip
"""Required divisors of a GEMM's rows and widths, by compute format.

Source: Transformer Engine, `assert_dim_for_fp8_exec`, and the quantizability conditions of `MXFP8Quantizer`
and `NVFP4Quantizer`.
"""
CONNECTIONS_NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Environment variable that sets the number of hardware queues for kernels."""
MODEL_SIZES = ("mtp", "heads", "kv_heads", "kv_width", "feed_forward", "hidden", "layers")
"""Model fields that reasons of rules may contain."""
MANY_CONNECTIONS = "32"
"""Maximum value of `CUDA_DEVICE_MAX_CONNECTIONS`."""
RecomputedCounts = Literal["any", "equal", "all"]
"""Numbers of fully recomputed blocks that a runtime's virtual stages can have.

`any`: each its own; `equal`: one number for all, as far as they have so many (`equal_counts`), or all blocks;
`all`: all blocks.
"""
Predicate = Callable[["TrainingTask", LayoutGrid], Bools]
"""Function that returns the mask of the layouts of a grid that break a rule, (N,)."""


@dataclass(frozen=True)
class TrainingTask:
    """Training job: model, sequence length, global batch, device count, precision and expert load."""

    model: Model
    sequence: int
    """Tokens per sample."""
    global_batch: int
    """Samples per batch, over all devices."""
    devices: int
    compute: Compute = "bf16"
    """Operand format of the GEMMs with block weights."""
    load: Load = BALANCED
    """Expert load of the busiest rank."""

    @classmethod
    def of(cls, question: AskedPlan) -> Self:
        """Build the training job of a planning request."""
        sizes = question.sequence, question.global_batch, question.devices
        load = question.expert_load(question.stored_machine().stack)
        return cls(question.model, *sizes, question.precision, load)

    @property
    def experts(self) -> int:
        """Number of experts per layer, 0 for a dense model."""
        return self.model.experts.count if self.model.experts else 0


@dataclass(frozen=True)
class Rule:
    """Named condition that every layout must meet, with its error message and predicate."""

    name: str
    reason: str
    """Template of the error message, with allowed and actual values; braces hold fields of `values_of`."""
    columns: tuple[str, ...]
    """Grid columns that the predicate reads."""
    broken: Predicate
    """Predicate: mask of the layouts that break the rule, (N,)."""


def rule(name: str, reason: str, columns: str) -> Callable[[Predicate], Rule]:
    """Decorator that turns a predicate into a rule; `columns` names the grid columns it reads."""
    return lambda broken: Rule(name, reason, tuple(columns.split()), broken)


@dataclass(frozen=True)
class Runtime:
    """Training software: its layout options, and its rules for valid layouts."""

    name: str
    version: str
    """Version of the software to which the rules apply."""
    schedules: tuple[str, ...]
    zeros: tuple[Zero, ...]
    sequence_parallel: tuple[bool, ...]
    cp_kinds: tuple[CpKind, ...]
    rules: tuple[Rule, ...]
    two_levels: bool = False
    """True if context-parallel ranks can exchange heads inside groups and run a ring between groups."""
    options: tuple[str, ...] = ()
    """Options for all layouts of a search that the runtime supports; of others only the default is valid."""
    recomputed_counts: RecomputedCounts = "any"
    """Numbers of fully recomputed blocks that virtual stages can have, see `RecomputedCounts`."""
    computes: tuple[Compute, ...] = COMPUTES
    """Supported operand formats of the GEMMs with block weights."""
    modules: tuple[Module, ...] = ()
    """Modules that can be recomputed individually."""
    requested_recomputes: tuple[Recompute, ...] = ()
    """Sets of recomputed modules that a planning request names."""

    def recomputes(self, model: Model) -> tuple[Recompute, ...]:
        """Recompute options for a model: none, full, selective, and every set of its modules.

        Sets of `moe` with a module inside it are left out, since `moe` already recomputes that module.
        """
        present = modules_in(model) if self.modules else set[Module]()
        modules = [module for module in MODULES if module in self.modules and module in present]
        sets = (chosen for size in range(1, len(modules) + 1) for chosen in combinations(modules, size))
        words = (
            *RECOMPUTES,
            *("+".join(chosen) for chosen in sets if "moe" not in chosen or not INSIDE_MOE & {*chosen}),
        )
        return (*words, *(recompute for recompute in self.requested_recomputes if recompute not in words))

    def recompute_of(self, model: Model, text: str) -> Recompute:
        """Parse a recompute option; PhazeError if the runtime or the model lacks one of its modules."""
        recompute = recompute_of(text)
        if not modules_of(recompute) <= self.recomputable(model):
            alone = ", ".join(module for module in MODULES if module in self.recomputable(model))
            raise PhazeError(
                f"recompute: must be one of {', '.join(RECOMPUTES)}{', or of ' * bool(alone)}{alone} joined "
                f"by + for {model.name} with {self.name}, got {recompute}"
            )
        return recompute

    def option_of(self, name: str, text: str) -> str | int:
        """Parse an option's value; PhazeError if the runtime does not support it."""
        usual: str | int = getattr(Layout(), name)
        value = READERS[name](text) if name in READERS else count_of(name, text)
        if value != usual and name not in self.options:
            raise PhazeError(f"{self.name}: {name} must be {usual}, got {value}")
        return value

    def compute_of(self, compute: Compute) -> Compute:
        """Check a compute precision and return it; PhazeError if the runtime does not support it."""
        if compute not in self.computes:
            raise PhazeError(
                f"{self.name}: precision must be one of {', '.join(self.computes)}, got {compute}"
            )
        return compute

    def exchanges(self, kind: str) -> tuple[CpKind, ...]:
        """Supported context-parallel exchange methods, with `kind` if it is a supported two-level method."""
        levels = self.two_levels and kind.startswith(f"{LEVELS}:")
        return (*self.cp_kinds, *([cp_kind_of(kind)] if levels else []))

    def illegal(self, task: TrainingTask, grid: LayoutGrid) -> dict[str, Bools]:
        """Masks of the layouts that break each rule, (N,), by rule name; a layout may break several."""
        return {rule.name: rule.broken(task, grid) for rule in self.rules}

    def grid(self, model: Model, layouts: Sequence[tuple[Layout, str]]) -> LayoutGrid:
        """Build a grid of layouts, each with its schedule."""
        words = dict.fromkeys((*self.recomputes(model), *(layout.recompute for layout, _ in layouts)))
        kinds = dict.fromkeys((*self.cp_kinds, *(layout.cp_kind for layout, _ in layouts)))
        return LayoutGrid.of(layouts, self.schedules, tuple(words), tuple(kinds))

    def why_not(self, task: TrainingTask, layout: Layout, schedule: str) -> str | None:
        """First reason why the runtime cannot run a layout, with its values; None if it can."""
        problem = self._unsupported(task, layout, schedule)
        if problem is not None:
            return f"{self.name}: {problem}"
        grid = self.grid(task.model, [(layout, schedule)])
        broken = next((rule for rule in self.rules if rule.broken(task, grid)[0]), None)
        if broken is None:
            return None
        # Only now: a message needs values of the one layout, not of a grid.
        reason = broken.reason.format(**values_of(task, layout, schedule))
        if "{sequence}" in broken.reason and task.sequence % 1000 == 0:  # 8k tokens are 8,000
            binary = replace(task, sequence=task.sequence // 1000 * 1024)
            reason += f"; {binary.sequence} is one" * (not broken.broken(binary, grid)[0])
        return f"{self.name}: {reason}"

    def recomputable(self, model: Model) -> set[Module]:
        """Modules of a model that can be recomputed individually."""
        return {*self.modules, "core_attn", "moe"} & modules_in(model) if self.modules else set()

    def _unsupported(self, task: TrainingTask, layout: Layout, schedule: str) -> str | None:
        """Error message for an unsupported option or a wrong device count; None for a valid layout."""
        # `recomputes` leaves out sets that equal smaller ones, which a layout may have all the same.
        supported = layout.modules and layout.modules <= self.recomputable(task.model)
        recompute = "none" if supported else layout.recompute
        allowed: dict[str, tuple[object, tuple[object, ...]]] = {
            "schedule": (schedule, self.schedules),
            "zero": (layout.zero, self.zeros),
            "recompute": (recompute, self.recomputes(task.model)),
            "cp_kind": (layout.cp_kind, self.exchanges(layout.cp_kind)),
            "compute": (layout.compute, self.computes),
            **{
                name: (getattr(layout, name), (getattr(Layout(), name),))
                for name in SHARED_OPTIONS
                if name not in self.options
            },
        }
        for name, (value, words) in allowed.items():
            if value not in words:
                return f"{name} must be one of {', '.join(map(str, words))}, got {value}"
        if layout.devices != task.devices:
            return f"tp * cp * pp * dp must be the number of devices, {task.devices}, got {layout.devices}"
        return None


def modules_in(model: Model) -> set[Module]:
    """Modules that occur in at least one layer of a model."""
    blocks, experts = model.blocks.values(), model.experts
    has: dict[Module, bool] = {
        "core_attn": any(block.attention for block in blocks),
        "moe_act": experts is not None,
        "layernorm": True,
        "mla_up_proj": model.latent is not None,
        "mlp": any(block.feed_forward for block in blocks),
        "moe": experts is not None,
        "shared_experts": experts is not None and experts.shared_width > 0,
    }
    return {module for module, present in has.items() if present}


def most_stages(model: Model, pp: Count) -> Count:
    """Maximum number of non-empty pipeline stages, for one pipeline depth or for many.

    All layers of multi-token prediction are on one stage: the last, or, on a rank behind the first, the one
    before the head.
    """
    # The stage before the head is on rank pp - 2, which is behind the first rank only if pp > 2.
    alone = (model.mtp > 0) & (pp > 2)
    return model.layers + ENDS + alone


def values_of(task: TrainingTask, layout: Layout, schedule: str) -> dict[str, int | str]:
    """Values to insert into error messages: layout fields, model sizes, and quantities derived from both."""
    model = task.model
    return {
        **{name: getattr(layout, name) for name in (*vars(layout), "expert_ranks", "folded", "stages")},
        **{name: getattr(model, name) for name in MODEL_SIZES},
        "sequence_parallel": str(layout.sequence_parallel).lower(),
        "schedule": schedule,
        "chunks": SCHEDULES[schedule].allowed_chunks,
        "aligned_rows": MULTIPLES[layout.compute][0],
        "aligned_width": MULTIPLES[layout.compute][1],
        "rows": layout.microbatch * (task.sequence // layout.cp),
        "experts": task.experts,
        "expert_width": model.experts.width if model.experts else 0,
        "shared_width": model.experts.shared_width if model.experts else 0,
        "most_stages": most_stages(model, layout.pp),
        "sequence": task.sequence,
        "global_batch": task.global_batch,
        "samples": layout.microbatch * layout.dp,
        "microbatches": layout.microbatches(task.global_batch),
    }


def refused_overlap(layout: Layout, overlaps_slices: bool) -> str | None:
    """Reason why Megatron-LM cannot overlap tensor-parallel collectives with GEMMs; None if it can.

    Source: `validate_args` of `megatron/training/arguments.py`, `args.tp_comm_overlap`.
    """
    if not overlaps_slices or layout.cuts_sequence:
        return None
    option = str(layout.sequence_parallel).lower()
    return f"--tp-comm-overlap needs --sequence-parallel with tp >= 2, got tp {layout.tp} and {option}"


def pairs_passes(layout: Layout, model: Model) -> bool:
    """True if token dispatch in one pass can overlap with the opposite pass of another microbatch.

    Megatron-Core overlaps both passes without a pipeline or with virtual stages, unless it recomputes whole
    blocks or experts, or predicts several further tokens (`TransformerConfig`,
    `overlap_moe_expert_parallel_comm`). An odd number of layers with experts does not end (Megatron-LM,
    issues 1810 and 1852).
    """
    staged = layout.pp == 1 or layout.vp > 1
    recomputes_blocks = layout.recompute == "full" or "moe" in layout.modules
    even = model.expert_layers % 2 == 0
    return layout.ep > 1 and staged and not recomputes_blocks and model.mtp <= 1 and even


def connections_for(layout: Layout, blackwell: bool, *, paired: bool) -> tuple[str, ...]:
    """Values of `CUDA_DEVICE_MAX_CONNECTIONS` that a layout requires; empty if any is allowed.

    Before Blackwell, GEMM kernels must start after the collectives that they wait for, which needs a
    single queue. Megatron-FSDP and PyTorch FSDP need several, and so does token dispatch that overlaps with
    the passes of a `paired` microbatch (Megatron-LM, issue 2180). Source: `validate_args`.
    """
    ordered = max(layout.tp, layout.cp) > 1 and not blackwell
    if layout.zero >= 2 or (ordered and paired):
        return (MANY_CONNECTIONS,)
    return ("1",) if ordered else ()


def refused_connections(layout: Layout, connections: str, blackwell: bool, *, paired: bool) -> str | None:
    """Reason why Megatron-LM rejects a layout with this number of connections; None if it accepts it."""
    if layout.zero >= 2 and connections == "1":
        return f"{CONNECTIONS_NAME} must not be 1 with FSDP (zero {layout.zero}), got 1"
    if connections_for(layout, blackwell, paired=paired) == ("1",) and connections != "1":
        return f"{CONNECTIONS_NAME} must be 1 with tp {layout.tp} and cp {layout.cp}, got {connections[:20]}"
    return None
