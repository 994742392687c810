"""Rules for the layouts that a runtime can run, with error messages, and rules that all runtimes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.base.errors import PhazeError
from phaze.layout import (
    BALANCED,
    COMPUTES,
    LEVELS,
    MODULES,
    RECOMPUTES,
    WIDTHS,
    Compute,
    CpKind,
    Layout,
    Load,
    Module,
    Offload,
    Recompute,
    Zero,
    cp_kind_of,
    modules_of,
    offload_of,
    recompute_of,
)
from phaze.pipeline.schedules import SCHEDULES
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.model import Model
from phaze.spec.training_plan import AskedPlan

ENDS = 2
"""Pipeline entries other than layers: the embedding, and the head with its loss."""
INSIDE_MOE: frozenset[Module] = frozenset({"moe_act", "shared_experts"})
"""Modules of an MoE layer that `moe` recomputes as part of it."""
PIPELINED = tuple(name for name, schedule in SCHEDULES.items() if schedule.in_runs and name != "1f1b")
"""Schedules that need a pipeline; without one every schedule is 1f1b."""


@dataclass(frozen=True)
class TrainingTask:
    """Training job: model, sequence length, global batch and device count."""

    model: Model
    sequence: int
    """Tokens per sample."""
    global_batch: int
    """Samples per batch, on all devices."""
    devices: int
    compute: Compute = "bf16"
    """Operand format of the products with blocks' weights."""
    load: Load = BALANCED
    """Expert load of the busiest rank."""

    @classmethod
    def of(cls, asked: AskedPlan) -> Self:
        """Training job of a planning request."""
        sizes = asked.sequence, asked.global_batch, asked.devices
        return cls(asked.model, *sizes, asked.precision, asked.load)

    @property
    def experts(self) -> int:
        """Experts per layer, 0 for a dense model."""
        return self.model.experts.count if self.model.experts else 0


@dataclass(frozen=True)
class Rule:
    """Named condition that every layout must meet."""

    name: str
    reason: str
    """Error message: allowed and actual values, with fields of `values_of` in braces."""
    columns: tuple[str, ...]
    """Grid columns that the rule reads."""
    broken: Callable[[TrainingTask, LayoutGrid], Bools]
    """Layouts that break the rule, (N,)."""


@dataclass(frozen=True)
class Runtime:
    """Training software: its layout options and its rules for layouts."""

    name: str
    version: str
    """Version that the rules describe."""
    schedules: tuple[str, ...]
    zeros: tuple[Zero, ...]
    sequence_parallel: tuple[bool, ...]
    cp_kinds: tuple[CpKind, ...]
    rules: tuple[Rule, ...]
    two_levels: bool = False
    """True if context-parallel ranks can exchange heads inside groups and run a ring among groups."""
    offloads: bool = False
    """True if activations and states can be offloaded to host memory."""
    recomputes_part: bool = True
    """True if a stage can recompute only some of its blocks in full."""
    computes: tuple[Compute, ...] = COMPUTES
    """Supported operand formats of the products with blocks' weights."""
    modules: tuple[Module, ...] = ()
    """Modules that can be recomputed alone."""
    asked_recomputes: tuple[Recompute, ...] = ()
    """Sets of modules named by a question."""

    def recomputes(self, model: Model) -> tuple[Recompute, ...]:
        """Recompute options of a model: none, full, selective, and every set of its modules.

        Sets of `moe` with a module inside it are left out, since `moe` already recomputes that module.
        """
        own = [module for module in MODULES if module in self.modules and module in modules_in(model)]
        sets = (some for size in range(1, len(own) + 1) for some in combinations(own, size))
        words = (
            *RECOMPUTES,
            *("+".join(some) for some in sets if "moe" not in some or not INSIDE_MOE & {*some}),
        )
        return (*words, *(one for one in self.asked_recomputes if one not in words))

    def recompute_of(self, model: Model, text: str) -> Recompute:
        """Recompute option of a text; PhazeError if the runtime or the model does not have such a module."""
        found = recompute_of(text)
        if not modules_of(found) <= self.recomputable(model):
            alone = ", ".join(module for module in MODULES if module in self.recomputable(model))
            raise PhazeError(
                f"recompute: must be one of {', '.join(RECOMPUTES)}{', or of ' * bool(alone)}{alone} joined "
                f"by + for {model.name} with {self.name}, got {found}"
            )
        return found

    def offload_of(self, text: str) -> Offload:
        """Parse an offload option; PhazeError if the runtime does not support it."""
        found = offload_of(text)
        if found != "none" and not self.offloads:
            raise PhazeError(f"{self.name}: offload must be none, got {found}")
        return found

    def compute_of(self, compute: Compute) -> Compute:
        """Compute precision; PhazeError if the runtime does not support it."""
        if compute not in self.computes:
            raise PhazeError(
                f"{self.name}: precision must be one of {', '.join(self.computes)}, got {compute}"
            )
        return compute

    def exchanges(self, kind: str) -> tuple[CpKind, ...]:
        """Supported exchange kinds of context-parallel ranks, with the two-level kind that is asked for."""
        levels = self.two_levels and kind.startswith(f"{LEVELS}:")
        return (*self.cp_kinds, *([cp_kind_of(kind)] if levels else []))

    def illegal(self, task: TrainingTask, grid: LayoutGrid) -> dict[str, Bools]:
        """Layouts that break each rule, (N,) by the rule's name; a layout may break several."""
        return {rule.name: rule.broken(task, grid) for rule in self.rules}

    def grid(self, model: Model, layouts: Sequence[tuple[Layout, str]]) -> LayoutGrid:
        """Grid of layouts, each with its schedule."""
        words = dict.fromkeys((*self.recomputes(model), *(layout.recompute for layout, _ in layouts)))
        kinds = dict.fromkeys((*self.cp_kinds, *(layout.cp_kind for layout, _ in layouts)))
        return LayoutGrid.of(layouts, self.schedules, tuple(words), tuple(kinds))

    def why_not(self, task: TrainingTask, layout: Layout, schedule: str) -> str | None:
        """First reason why the runtime cannot run a layout, with its values; None if it can."""
        found = self._unknown(task, layout, schedule)
        if found is not None:
            return f"{self.name}: {found}"
        grid = self.grid(task.model, [(layout, schedule)])
        broken = next((rule for rule in self.rules if rule.broken(task, grid)[0]), None)
        if broken is None:
            return None
        return f"{self.name}: {broken.reason.format(**values_of(task, layout, schedule))}"

    def _again(self, model: Model, layout: Layout) -> Recompute:
        """Recompute option to look up: none if the runtime and the model have all of its modules."""
        known = layout.modules and layout.modules <= self.recomputable(model)
        return "none" if known else layout.recompute

    def recomputable(self, model: Model) -> set[Module]:
        """Modules of a model that can be recomputed alone."""
        return {*self.modules, "core_attn", "moe"} & modules_in(model) if self.modules else set()

    def _unknown(self, task: TrainingTask, layout: Layout, schedule: str) -> str | None:
        """Error message for an unsupported option or a wrong device count; None for a valid layout."""
        allowed: dict[str, tuple[object, tuple[object, ...]]] = {
            "schedule": (schedule, self.schedules),
            "zero": (layout.zero, self.zeros),
            "recompute": (self._again(task.model, layout), self.recomputes(task.model)),
            "cp_kind": (layout.cp_kind, self.exchanges(layout.cp_kind)),
            "compute": (layout.compute, self.computes),
            "offload": (layout.offload, ("none", *([layout.offload] if self.offloads else []))),
        }
        for name, (value, words) in allowed.items():
            if value not in words:
                return f"{name} must be one of {', '.join(map(str, words))}, got {value}"
        if layout.devices != task.devices:
            return f"tp * cp * pp * dp must be the {task.devices} devices, got {layout.devices}"
        return None


def modules_in(model: Model) -> set[Module]:
    """Modules that at least one layer of a model has."""
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
    return {module for module, there in has.items() if there}


def values_of(task: TrainingTask, layout: Layout, schedule: str) -> dict[str, int | str]:
    """Values that an error message may name: layout fields, model sizes, and quantities of both."""
    model = task.model
    return {
        **{name: getattr(layout, name) for name in (*WIDTHS, "microbatch", "zero", "cp_kind")},
        "sequence_parallel": str(layout.sequence_parallel).lower(),
        "schedule": schedule,
        "chunks": SCHEDULES[schedule].allowed_chunks,
        "recompute": layout.recompute,
        "offload": layout.offload,
        "compute": layout.compute,
        "aligned_rows": MULTIPLES[layout.compute][0],
        "aligned_width": MULTIPLES[layout.compute][1],
        "rows": layout.microbatch * (task.sequence // layout.cp),
        "experts": task.experts,
        "expert_width": model.experts.width if model.experts else 0,
        "shared_width": model.experts.shared_width if model.experts else 0,
        "expert_ranks": layout.tp * layout.cp * layout.dp,
        "folded": layout.ep * layout.etp,
        "mtp": model.mtp,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "kv_width": model.kv_width,
        "feed_forward": model.feed_forward,
        "hidden": model.hidden,
        "layers": model.layers,
        "most_stages": model.layers + model.mtp + ENDS,
        "stages": layout.stages,
        "sequence": task.sequence,
        "global_batch": task.global_batch,
        "samples": layout.microbatch * layout.dp,
        "microbatches": layout.microbatches(task.global_batch),
    }


MULTIPLES: dict[Compute, tuple[int, int]] = {
    "bf16": (1, 1), "fp8": (8, 16), "fp8-cs": (8, 16), "fp8-block": (8, 16), "mxfp8": (32, 32),
    "nvfp4": (16, 16),
}  # fmt: skip
"""Required divisors of a product's rows and widths, by compute format.

Source: Transformer Engine, `assert_dim_for_fp8_exec`, and the quantizability conditions of `MXFP8Quantizer`
and `NVFP4Quantizer`.
"""


def _low_precision(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Layouts with product shapes that the format does not allow, (N,); experts' rows are padded."""
    model, (rows, width) = task.model, MULTIPLES[grid.compute]
    cut = [model.feed_forward]
    if model.latent is None:
        cut += [model.query_width, model.query_width + 2 * model.kv_width]
    slices: list[int | Ints] = [model.hidden, *(size // grid.tp for size in cut)]
    if model.experts is not None:
        slices += [model.experts.width // grid.etp, model.experts.shared_width // grid.tp]
    broken: Bools = leaves_rest(grid.microbatch * (task.sequence // grid.cp), np.array(rows))
    for size in slices:
        broken = broken | leaves_rest(size, np.array(width))
    return broken


def leaves_rest(number: int | Ints, by: Ints) -> Bools:
    """True where a number is not a multiple of the divisor, (N,)."""
    rest: Bools = np.mod(number, by) != 0
    return rest


def _virtual_stages(_: TrainingTask, grid: LayoutGrid) -> Bools:
    least, most = np.array([SCHEDULES[name].chunks for name in grid.schedules])[grid.schedule].T
    outside: Bools = (grid.vp < least) | (grid.vp > most)
    return outside


def _pipeline(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.under(*PIPELINED) & (grid.pp < 2)


def _heads(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(task.model.heads, grid.tp)


def _key_value_heads(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(task.model.kv_heads, grid.tp)


def uneven_sequence(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Layouts that do not shard the sequence evenly, (N,).

    Each context-parallel rank has two chunks, and tensor-parallel ranks share each chunk.
    """
    chunks = np.where(grid.cp > 1, 2 * grid.cp, 1)
    return leaves_rest(task.sequence, np.where(grid.sequence_parallel, grid.tp, 1) * chunks)


def _feed_forward(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(task.model.feed_forward, grid.tp)


def _batch(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(task.global_batch, grid.microbatch * grid.dp)


def _stages(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.stages > task.model.layers + task.model.mtp + ENDS


def _sequence_parallel(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.sequence_parallel & (grid.tp < 2)


def _experts(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(max(task.experts, 1), grid.ep)


def _expert_ranks(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(grid.expert_ranks, grid.ep * grid.etp)


def _expert_slices(task: TrainingTask, grid: LayoutGrid) -> Bools:
    experts = task.model.experts
    if experts is None:
        return grid.etp > 1
    return leaves_rest(experts.width, grid.etp) | leaves_rest(experts.shared_width, grid.tp)


def _scans(task: TrainingTask, grid: LayoutGrid) -> Bools:
    pairs, place = np.unique(np.stack((grid.tp, grid.cp)), axis=1, return_inverse=True)
    return np.array([not task.model.divides_scans(tp, cp) for tp, cp in pairs.T.tolist()], bool)[place]


EXPERTS = Rule("experts", "ep must divide the {experts} experts of a layer, got {ep}", ("ep",), _experts)
EXPERT_RANKS = Rule(
    "expert ranks",
    "ep * etp must divide tp * cp * dp {expert_ranks}, got {folded}",
    ("tp", "cp", "dp", "ep", "etp"),
    _expert_ranks,
)
EXPERT_SLICES = Rule(
    "expert slices",
    "the width {expert_width} of an expert must be a multiple of etp, got {etp}, that of shared experts "
    "{shared_width} one of tp, got {tp}",
    ("tp", "etp"),
    _expert_slices,
)
SCANS = Rule(
    "scans",
    "heads of scans must be a multiple of tp * cp, their groups one of tp, groups / tp a multiple or a "
    "divisor of cp, got tp {tp} and cp {cp}",
    ("tp", "cp"),
    _scans,
)
VIRTUAL_STAGES = Rule(
    "virtual stages",
    "vp must be {chunks} under {schedule}, got {vp}",
    ("schedule", "vp"),
    _virtual_stages,
)
PIPELINE = Rule(
    "pipeline", "{schedule} needs a pipeline, pp must be >= 2, got {pp}", ("schedule", "pp"), _pipeline
)
HEADS = Rule("heads", "heads {heads} must be a multiple of tp, got {tp}", ("tp",), _heads)
KEY_VALUE_HEADS = Rule(
    "key-value heads",
    "key-value heads {kv_heads} must be a multiple of tp, got {tp}",
    ("tp",),
    _key_value_heads,
)
"""For runtimes that never replicate key-value heads."""
FEED_FORWARD = Rule(
    "feed-forward",
    "the feed-forward width {feed_forward} must be a multiple of tp, got {tp}",
    ("tp",),
    _feed_forward,
)
BATCH = Rule(
    "batch",
    "microbatch * dp must divide the global batch {global_batch}, got {samples}",
    ("microbatch", "dp"),
    _batch,
)
STAGES = Rule(
    "stages",
    "pp * vp must be at most {most_stages}, the {layers} layers, embedding and head, as no stage may be "
    "empty, got {stages}",
    ("pp", "vp"),
    _stages,
)
SEQUENCE_PARALLEL = Rule(
    "sequence parallel",
    "sequence_parallel cuts what tp leaves whole, tp must be >= 2, got {tp}",
    ("sequence_parallel", "tp"),
    _sequence_parallel,
)
LOW_PRECISION = Rule(
    "low precision",
    "products in {compute} need rows in multiples of {aligned_rows} and slices of hidden, attention and "
    "feed-forward in multiples of {aligned_width}, got {rows} rows of hidden {hidden}, feed-forward "
    "{feed_forward} and experts {expert_width} with tp {tp} and etp {etp}",
    ("tp", "etp", "cp", "microbatch"),
    _low_precision,
)


CONNECTIONS_NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Environment variable for the number of hardware queues that receive kernels."""
MANY_CONNECTIONS = "32"
"""Largest value of the variable."""


def refused_overlap(layout: Layout, overlaps_slices: bool) -> str | None:
    """Why Megatron-LM cannot overlap tensor-parallel collectives with products; None if it can.

    Source: `validate_args` of `megatron/training/arguments.py`, `args.tp_comm_overlap`.
    """
    if not overlaps_slices or layout.cuts_sequence:
        return None
    given = str(layout.sequence_parallel).lower()
    return f"--tp-comm-overlap needs --sequence-parallel with tp >= 2, got tp {layout.tp} and {given}"


def connections_for(layout: Layout, blackwell: bool) -> tuple[str, ...]:
    """Required values of the variable for a layout; empty if any value is allowed.

    Before Blackwell, product kernels must start after the collectives that they wait for, which needs a
    single queue. Megatron-FSDP and PyTorch FSDP need several. Source: `validate_args`.
    """
    if layout.zero >= 2:
        return (MANY_CONNECTIONS,)
    return ("1",) if max(layout.tp, layout.cp) > 1 and not blackwell else ()


def refused_connections(layout: Layout, given: str, blackwell: bool = False) -> str | None:
    """Why Megatron-LM rejects a layout with this value of the variable; None if it starts."""
    if layout.zero >= 2 and given == "1":
        return f"{CONNECTIONS_NAME} must not be 1 with FSDP (zero {layout.zero}), got 1"
    if connections_for(layout, blackwell) == ("1",) and given != "1":
        return f"{CONNECTIONS_NAME} must be 1 with tp {layout.tp} and cp {layout.cp}, got {given[:20]}"
    return None
