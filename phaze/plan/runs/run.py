"""A training run of a transformer: the model, how it is spread, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.cost.memory import Optimizer
from phaze.layout import Precision, Recompute, Zero
from phaze.spec.model import Model

RunSchedule = Literal["gpipe", "1f1b", "interleaved"]
VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this times t."""


@dataclass(frozen=True)
class Run:
    """A row of a table of runs; `gpus` devices in all, t fastest, then d, then p (Megatron-LM's order)."""

    hidden: int
    heads: int
    layers: int
    seq: int
    vocab: int
    gpus: int
    tp: int
    pp: int
    dp: int
    microbatch: int
    global_batch: int
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    schedule: RunSchedule = "1f1b"
    chunks: int = 1
    kv_heads: int = 0
    """0: as many as heads."""
    ffn: int = 0
    """0: four times hidden."""
    zero: Zero = 0
    optimizer: Optimizer = "adam"
    overlap_dp: bool = False
    precision: Precision = "mixed"
    flash_attention: bool = False
    """Whether attention is one kernel that keeps scores on the chip, and makes them again backward."""

    def check(self) -> None:
        """Raise PhazeError where the row cannot be right."""
        if self.tp * self.pp * self.dp != self.gpus:
            raise PhazeError(f"tp * pp * dp must be gpus {self.gpus}, got {self.tp * self.pp * self.dp}")
        if self.global_batch % (self.microbatch * self.dp):
            raise PhazeError(
                f"microbatch * dp must divide global_batch {self.global_batch}, "
                f"got {self.microbatch * self.dp}"
            )
        if self.hidden % self.heads:
            raise PhazeError(f"heads must divide hidden {self.hidden}, got {self.heads}")
        if self.stages > self.layers:
            raise PhazeError(f"pp * chunks must be at most layers {self.layers}, got {self.stages}")
        self._check_schedule()

    def check_devices(self, devices: int) -> None:
        """Raise PhazeError where a cluster has too few devices."""
        if self.gpus > devices:
            raise PhazeError(f"gpus must be at most the {devices} of the system, got {self.gpus}")

    def _check_schedule(self) -> None:
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            raise PhazeError(
                f"chunks must be >= 2 under interleaved and 1 otherwise, got {self.chunks} under "
                f"{self.schedule}"
            )
        if self.schedule == "interleaved" and (self.pp < 2 or self.microbatches % self.pp):
            raise PhazeError(
                f"microbatches of a replica must be a multiple of pp >= 2 under interleaved, got "
                f"{self.microbatches} with pp {self.pp}"
            )

    @property
    def stages(self) -> int:
        """Return the stages of the pipeline, those of all chunks."""
        return self.pp * self.chunks

    @property
    def microbatches(self) -> int:
        """Return the microbatches of a replica."""
        return self.global_batch // (self.microbatch * self.dp)

    @property
    def bytes_per_element(self) -> int:
        """Return the size of an activation."""
        return 4 if self.precision == "single" else 2

    @cached_property
    def model(self) -> Model:
        """Return the GPT of the row, with its vocabulary padded, and dropout, as Megatron-LM trains it."""
        multiple = VOCABULARY_MULTIPLE * self.tp
        sizes = {
            "name": "run",
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": self.heads,
            "key_value_heads": self.kv_heads or None,
            "feed_forward": self.ffn or 4 * self.hidden,
            "vocabulary": -(-self.vocab // multiple) * multiple,
            "position_count": self.seq,
            "fused_qkv": self.kv_heads in (0, self.heads),
        }
        dropouts = dict.fromkeys(("residual_dropout", "attention_dropout", "embedding_dropout"), 0.1)
        return Model.parse({**sizes, **dropouts}, "model")

    @property
    def layers_of(self) -> tuple[int, ...]:
        """Return the blocks of every stage, which differ by one at most."""
        count = self.stages
        ends = [self.layers * (q + 1) // count for q in range(count)]
        return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))

    @property
    def model_flops(self) -> float:
        """Return the FLOPs of a batch without recomputation, 72 B s L h^2 (1 + s/6h + V/12Lh) for a GPT
        (Narayanan et al., SC 2021, Appendix, with their factor 96 for recomputation taken back).

        Attention counts in full, not its causal half.
        """
        model = self.model
        attention = 2 * self.seq * model.query_width
        inner = self.hidden * (2 * model.query_width + 2 * model.kv_width + 2 * model.feed_forward)
        per_token = self.layers * (inner + attention) + self.hidden * self.vocab
        return 6.0 * self.global_batch * self.seq * per_token
