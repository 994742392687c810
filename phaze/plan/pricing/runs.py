"""Training runs, given as rows of a table, and their conversion to plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.layout import EXPERT_FIELDS, Layout
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.stages import StageCost
from phaze.plan.plan import Machine, Plan
from phaze.plan.pricing.lowering import Lowering, ModelTraining, padded_vocabulary
from phaze.runtimes.layout_string import by_cost, cuts_of, equal_counts, equal_stages
from phaze.runtimes.rules import ENDS, pairs_passes
from phaze.spec.model import Model
from phaze.spec.overlap import Overlap
from phaze.spec.system import Stack

Gradients = Literal["bf16", "fp32"]
GRADIENT_BYTES: dict[Gradients, int] = {"bf16": 2, "fp32": 4}
LLAMA = {
    "gated": True, "activation": "silu", "norm": "rms_norm", "positions": "rotary", "attention_bias": False,
    "feed_forward_bias": False, "tied_embeddings": False, "fused_qkv": False,
}  # fmt: skip
"""Fields, other than sizes, of a model with gated feed-forward networks (Llama)."""


@dataclass(frozen=True)
class Run:
    """Training run on `gpus` devices in total, given as a row of a table."""

    hidden: int
    heads: int
    layers: int
    seq: int
    vocab: int
    gpus: int
    global_batch: int
    layout: Layout
    schedule: str = "1f1b"
    kv_heads: int = 0
    """Number of key and value heads; 0: as many as query heads."""
    ffn: int = 0
    """Width of the feed-forward network; 0: four times hidden."""
    gated: bool = False
    """True for a Llama block: gated feed-forward network of width ffn, no biases, no dropout, untied head."""
    gradients: Gradients | None = None
    """Precision in which gradients are accumulated and exchanged; by default the stack's."""
    overlap: Overlap | None = None
    """Kinds of communication that overlap with compute; by default the stack's."""
    vboost: bool | None = None
    """True if tensor cores get more of the power (`nvidia-smi boost-slider`); by default as the stack."""
    flash_attention: bool | None = None
    """True if attention scores stay on chip; None: for a named model, or if the stack names such kernels."""
    spec: Model | None = None
    """Model spec that matches hidden, layers and vocab; None: a GPT of these sizes."""
    mtp: int = 0
    """Number of multi-token prediction layers."""
    lora: int = 0
    """LoRA rank of the adapters on every matrix of a block; 0: all weights are trained."""
    division: tuple[str, ...] = ()
    """Layer entries of every virtual stage, as in a layout string; empty: `equal_stages`."""
    recomputed: int | None = None
    """Number of recomputed blocks per stage, from its first block on; None: all."""

    def check(self) -> None:
        """Raise PhazeError if the row is invalid."""
        # Chunks are checked with the schedule, by their name in a row.
        replace(self.layout, vp=1).check(devices=self.gpus, global_batch=self.global_batch)
        experts = self.spec.experts if self.spec else None
        for name in () if experts else EXPERT_FIELDS:
            value, usual = getattr(self.layout, name), getattr(Layout(), name)
            if value != usual:
                raise PhazeError(f"{name} must be {usual} for a model without experts, got {value}")
        layout = self.layout
        if experts and layout.etp != layout.tp > 1 and not layout.sequence_parallel:
            raise PhazeError(
                f"sequence_parallel must be true with experts, tp {layout.tp} and etp {layout.etp}, got "
                "false; without it experts are sharded by tp"
            )
        if self.lora and experts:
            raise PhazeError(f"lora must be 0 for a model with experts, got {self.lora}")
        if self.spec is None and self.hidden % self.heads:
            raise PhazeError(f"heads must divide hidden {self.hidden}, got {self.heads}")
        if not self.division and self.layout.stages > self.layers + ENDS:
            raise PhazeError(
                f"pp * chunks must be at most {self.layers + ENDS}, the layers, embedding and loss, got "
                f"{self.layout.stages}"
            )
        self._check_division()
        stages, data = (StageCost(0.0),) * self.layout.stages, (self.layout.dp,) * self.layout.pp
        count = self.global_batch // self.layout.microbatch
        Pipeline(stages, count, self.schedule, chunks=self.layout.vp, data=data)

    def _check_division(self) -> None:
        """Raise PhazeError if the pipeline split does not match the layout or the model."""
        layout, entries, count = self.layout, "".join(self.stages), len(self.stages)
        if count != self.count:
            raise PhazeError(f"pipeline_layout must have pp * chunks = {self.count} stages, got {count}")
        for entry, name, number in (("t", "layers", self.layers), ("m", "mtp", self.mtp)):
            if entries.count(entry) != number:
                raise PhazeError(
                    f"pipeline_layout must have {name} = {number} entries {entry}, got {entries.count(entry)}"
                )
        place = next((q for q, stage in enumerate(self.stages) if "m" in stage), count - 1)
        # Megatron-Core places multi-token prediction with the loss, or alone on a rank other than the first.
        straight = self.schedule in ("1f1b", "gpipe", "interleaved")
        if straight and (
            (place < count - 1 and place % layout.pp == 0) or place // layout.pp < layout.vp - 1
        ):
            raise PhazeError(
                "pipeline_layout must have m in the last chunk of a pipeline rank behind the first, got "
                f"stage {place + 1} of {count}"
            )

    def check_overlap(self) -> None:
        """Raise PhazeError if the row overlaps token dispatch but its layout does not allow that."""
        layout = self.layout
        if "ep" in (self.overlap or ()) and not pairs_passes(layout, self.model):
            raise PhazeError(
                "overlap: ep needs ep > 1, pp 1 or vp > 1, recompute neither full nor moe, mtp <= 1, and an "
                f"even number of layers with experts, got ep {layout.ep}, pp {layout.pp}, vp {layout.vp}, "
                f"recompute {layout.recompute}, mtp {self.mtp}, {self.model.expert_layers} such layers"
            )

    def flash_on(self, machine: Machine) -> bool:
        """True if attention scores stay on chip on the given machine."""
        if self.flash_attention is None:
            return self.spec is not None or bool(machine.stack.attention)
        return self.flash_attention

    def training_on(self, machine: Machine) -> ModelTraining:
        """Training settings of the row's model on a machine."""
        flash = self.flash_on(machine)
        return ModelTraining(self.model, self.seq, self.global_batch, flash, self.schedule)

    @cached_property
    def model(self) -> Model:
        """Model of the run, with padded vocabulary; a GPT gets 10 % dropout, Megatron-LM's default."""
        if self.spec is not None:
            words = padded_vocabulary(self.vocab, self.layout)
            changes = {"vocabulary": words, "mtp": self.mtp, "lora": self.lora or None}
            return self.spec.model_copy(update=changes)
        sizes = {
            "name": "run",
            "lora": self.lora or None,
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": self.heads,
            "key_value_heads": self.kv_heads or None,
            "feed_forward": self.ffn or 4 * self.hidden,
            "vocabulary": padded_vocabulary(self.vocab, self.layout),
            "position_count": self.seq,
            "fused_qkv": self.kv_heads in (0, self.heads),
        }
        dropout = dict.fromkeys(("residual_dropout", "attention_dropout", "embedding_dropout"), 0.1)
        return Model.parse({**sizes, **(LLAMA if self.gated else dropout)}, "model")

    def stack_of(self, machine: Machine) -> Stack:
        """Software stack of the machine with the row's overrides."""
        changes: dict[str, object] = {} if self.overlap is None else {"overlap": self.overlap}
        if self.gradients is not None:
            changes["gradient_bytes"] = GRADIENT_BYTES[self.gradients]
        if self.vboost is not None:
            changes["vboost"] = self.vboost
        return machine.stack.model_copy(update=changes)

    def check_microbatches(self, stack: Stack) -> None:
        """Raise PhazeError if a pipeline has fewer microbatches than the stack requires."""
        count = self.global_batch // (self.layout.microbatch * self.layout.dp)
        if stack.full_pipelines and self.schedule == "1f1b" and count < self.layout.pp - 1:
            raise PhazeError(f"microbatches must be at least pp - 1 = {self.layout.pp - 1}, got {count}")

    def split_by(self, stack: Stack) -> Run:
        """Run with the software stack's default pipeline split, if the row has none."""
        pipelined = self.schedule in ("1f1b", "gpipe") and self.layout.pp > 1
        if stack.pipeline_split == "even" or self.division or self.mtp or not pipelined:
            return self
        # Parameters of a block per hidden unit, to which the vocabulary's products are compared.
        block = 4 * self.hidden + 3 * self.model.feed_forward
        return replace(self, division=by_cost(self.layers, self.vocab / block, self.count))

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Layer entries of every virtual stage, as in a layout string, for one copy of the model.

        A schedule may have several copies.
        """
        return self.division or equal_stages(self.layers, self.mtp, self.count)

    @property
    def count(self) -> int:
        """Number of virtual stages per copy of the model."""
        return max(self.layout.stages // SCHEDULES[self.schedule].streams, 1)

    @property
    def even(self) -> bool:
        """True if every stage can have the same number of blocks."""
        return self.layers % self.count == 0

    @property
    def cuts(self) -> tuple[range, ...]:
        """Range of layers of every virtual stage, over all copies of the model."""
        return cuts_of(self.stages) * SCHEDULES[self.schedule].streams

    @property
    def recomputed_blocks(self) -> tuple[int, ...] | None:
        """Recomputed blocks of every virtual stage, over all copies of the model; None: all."""
        if self.recomputed is None:
            return None
        blocks = [stage.count("t") + stage.count("m") for stage in self.stages]
        return equal_counts(blocks, self.mtp, self.recomputed) * SCHEDULES[self.schedule].streams

    @property
    def model_flops(self) -> float:
        """FLOPs of a batch without recomputation, 72 B s L h^2 (1 + s/6h + V/12Lh) for a GPT.

        Source: Narayanan et al., SC 2021, Appendix, with their factor 96 for recomputation reverted.
        Attention counts in full, not its causal half.
        """
        model = self.model.model_copy(update={"vocabulary": self.vocab})
        products = model.trained_products_per_token(self.seq, causal=False)
        return 2.0 * self.global_batch * self.seq * products


def plan_of_run(run: Run, machine: Machine) -> Plan:
    """Build the plan of a run on a machine; PhazeError if the run is invalid."""
    run.check()
    run.check_microbatches(machine.stack)
    run = run.split_by(machine.stack)
    if run.gpus > machine.devices:
        raise PhazeError(f"gpus must be at most the {machine.devices} of the system, got {run.gpus}")
    machine = replace(machine, stack=run.stack_of(machine))
    run.check_overlap()
    layouts = [run.layout] * run.layout.stages
    lowering = Lowering(run.training_on(machine), machine)
    return lowering.plan_of(run.cuts, layouts, run.recomputed_blocks)
