"""Models to train: transformers of every family; image models are in `spec.vision`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.blocks import Attention, Block, Experts, FeedForward, Latent, Mixer, Window
from phaze.spec.counts import Counts, TokenFlops
from phaze.spec.noun import Noun
from phaze.spec.pattern import MIXERS, runs_of, words_of
from phaze.spec.scans import DeltaNet, Mamba
from phaze.spec.values import Flag, Label, Name, PositiveInt, Seed, Share

SEQUENCE = 8192
"""Tokens per sample in most published pre-training; models use longer samples only in later phases."""


class Model(Noun):
    """Transformer to train: an embedding, blocks of one or several kinds, and a head."""

    token: ClassVar[str] = "token"  # what a message calls an element of a sample

    name: Name
    """Name of the model; default: the file name."""
    layers: PositiveInt
    """Number of transformer blocks, L."""
    hidden: PositiveInt
    """Width of the residual stream, h."""
    heads: PositiveInt
    """Number of attention heads, a."""
    key_value_heads: PositiveInt | None = None
    """Number of key and value heads; default: `heads`."""
    head_size: PositiveInt | None = None
    """Head dimension; default: `hidden` / `heads`."""
    feed_forward: Seed = 0
    """Inner width of the dense feed-forward network; 0 if every block has experts instead."""
    latent: Latent | None = None
    """Latent attention: keys and values of all heads from one narrow vector per token (DeepSeek)."""
    window: Window | None = None
    """Sliding-window attention of the `window` kinds in `pattern`."""
    chunk: PositiveInt | None = None
    """Chunk length in tokens, for the `chunk` kinds in `pattern`; a token attends only inside its chunk
    (Llama 4)."""
    experts: Experts | None = None
    """Mixture of experts; default: none."""
    mamba: Mamba | None = None
    """State space of the `mamba` kinds in `pattern` (Mamba-2)."""
    delta: DeltaNet | None = None
    """Gated delta rule of the `delta` kinds in `pattern` (gated delta net)."""
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=20_000)] | None = None
    """Kinds of the blocks in order, for example `attention-dense*3 attention-experts*58` or `(mamba
    experts)*23`. A kind names a mixer of tokens (attention, reuse, window, chunk, mamba or delta), a network
    applied to each token (dense or experts), or both. `reuse` is attention to the tokens that the indexer of
    an earlier block chose. Default: all blocks are identical: attention with experts if the model has any,
    else with a dense network."""
    mtp: Seed = 0
    """Number of multi-token prediction layers after the last block. Each is a block and a matrix that joins
    its input to the token's embedding (DeepSeek-AI 2024, V3, Section 2.2)."""
    mtp_pattern: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    """Kind of block of the multi-token prediction layers; default: the kind of the last block."""
    vocabulary: PositiveInt
    """Tokens in the vocabulary, including padding used in training."""
    embedding_width: PositiveInt | None = None
    """Width of the token embedding; default: `hidden`. Otherwise projected to and from `hidden` without
    bias."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """Position encoding."""
    position_count: Seed = 0
    """Maximum sequence length in tokens. Required for learned and sinusoidal positions; with rotary positions
    it is the length the model was designed for and may be exceeded."""
    scaled_rotary: Flag = False
    """Rotary embeddings are multiplied by a factor, which fused kernels do not support (YaRN without equal
    `mscale` and `mscale_all_dim`, Peng et al., ICLR 2024). False for latent attention, whose kernels do."""
    position_offset: Seed = 0
    """Rows of the position table before the first position (2 for OPT)."""
    token_types: Seed = 0
    """Number of token types with an embedding (2 for BERT)."""
    activation: Literal["gelu", "relu", "relu2", "silu"] = "gelu"
    """Activation of the feed-forward network and of experts."""
    gated: Flag = False
    """The dense feed-forward network multiplies two projections, one of them activated (SwiGLU; Llama)."""
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """Normalisation: `layer_norm` has scale and bias, `rms_norm` a scale only."""
    norm_position: Literal["pre", "post", "both", "output"] = "pre"
    """Position of the norms of attention and feed-forward network: on their inputs (`pre`), on the residual
    sum after them (`post`), on inputs and outputs (`both`, Gemma), or on outputs only (`output`, OLMo 2)."""
    embedding_norm: Flag = False
    """Norm after the embedding."""
    final_norm: Flag = True
    """Norm after the last block."""
    attention_bias: Flag = True
    """The attention projections have biases."""
    output_bias: Flag | None = None
    """The attention output projection has a bias; default: `attention_bias`."""
    qk_norm: Literal["none", "heads", "all"] = "none"
    """Norms of queries and keys with a learned scale: none, one per head (Qwen3), or one over all heads
    (MiniMax)."""
    sinks: Flag = False
    """Each head has a learned score that takes part in the softmax (GPT-OSS)."""
    attention_gate: Flag = False
    """A gate as wide as the queries scales the attention output (Qwen3-Next)."""
    shared_kv: Flag = False
    """Values are the same as keys (Gemma 4)."""
    feed_forward_bias: Flag = True
    """The dense feed-forward network has biases."""
    fused_qkv: Flag = False
    """One matrix multiplication computes queries, keys and values (GPT-2, Megatron)."""
    causal: Flag = True
    """Causal attention: a token attends only to earlier ones. Fused attention kernels and `mfu` count only
    the scores that this mask leaves."""
    head: Literal["lm", "masked-lm", "none"] = "lm"
    """Training loss: next token (`lm`), masked tokens with a transform before the decoder (`masked-lm`), or
    no head."""
    tied_embeddings: Flag = True
    """The head shares its matrix with the token embedding."""
    head_transform: Flag = True
    """Dense layer with activation and norm before the decoder of a `masked-lm` head."""
    sentence_head: Flag = False
    """With a `masked-lm` head: predict the next sentence from the first token directly, without a pooler."""
    pooler: Flag = False
    """Dense layer with tanh on the first token; with a `masked-lm` head it predicts the next sentence."""
    residual_dropout: Share = 0.0
    """Dropout probability before every residual sum."""
    attention_dropout: Share = 0.0
    """Dropout probability of the attention probabilities."""
    embedding_dropout: Share = 0.0
    """Dropout probability after the embedding."""
    lora: PositiveInt | None = None
    """LoRA rank r: each matrix of a block gets two trained low-rank matrices, all other weights are frozen
    (Hu et al., LoRA, ICLR 2022). For models without experts; default: all weights are trained."""
    untimed: dict[Label, JsonValue] = Field(default_factory=dict)
    """Fields of the published configuration that affect learning but neither time nor memory, by their
    published names, for example `rope_theta: 500000.0`; `emit` passes them to a runtime."""
    hyper_operators: PositiveInt | None = None
    """K, the target number of clusters that `partition` merges operators into; its option overrides this."""

    def __hash__(self) -> int:
        """Hash of the name and main sizes; `untimed` is a dict and cannot be hashed."""
        return hash((self.name, self.layers, self.hidden, self.heads, self.feed_forward, self.vocabulary))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(
                f"heads {self.heads} must divide hidden {self.hidden}, unless head_size is given"
            )
        self._check_kinds()
        if self.heads % self.kv_heads:
            raise ValueError(f"key_value_heads {self.kv_heads} must divide heads {self.heads}")
        if self.fused_qkv and self.kv_heads != self.heads:
            raise ValueError(f"fused_qkv needs key_value_heads {self.kv_heads} equal to heads {self.heads}")
        needs_count = self.counts_positions and not self.position_count
        if needs_count or (self.positions == "none" and self.position_count):
            raise ValueError(
                f"position_count {self.position_count} must be > 0 with learned or sinusoidal "
                f"positions, and 0 without positions; positions is {self.positions!r}"
            )
        if self.position_offset and self.positions != "learned":
            raise ValueError(f"position_offset {self.position_offset} needs learned positions")
        if self.pooler and self.head == "lm":
            raise ValueError(
                "pooler must be false: only training with head masked-lm or none uses it, not "
                "next-token training"
            )
        if self.sentence_head and (self.pooler or self.head != "masked-lm"):
            raise ValueError("sentence_head needs head masked-lm without pooler")
        if not self.head_transform and (self.head != "masked-lm" or self.projected):
            raise ValueError("head_transform: false needs head masked-lm and no embedding_width of its own")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"rotary positions need an even head width, got {self.head_width}")
        return self

    @model_validator(mode="after")
    def _freezes_no_experts(self) -> Self:
        if self.lora and self.experts:
            raise ValueError(f"lora {self.lora} must not be given for a model with experts")
        return self

    def _check_kinds(self) -> None:
        """Raise ValueError if the pattern uses a part that is missing, or leaves a given part unused."""
        kinds = [kind for kind, _ in self.runs] + [self.mtp_kind] * (self.mtp > 0)
        words = {word for kind in kinds for word in self._parts_of(kind)}
        needed = {
            "dense": self.feed_forward, "experts": self.experts, "window": self.window,
            "chunk": self.chunk, "mamba": self.mamba, "delta": self.delta,
        }  # fmt: skip
        for word, value in needed.items():
            key = "feed_forward" if word == "dense" else word
            if word in words and not value:
                raise ValueError(f"{key} must be given: the pattern has blocks of this kind")
            if word not in words and value and word != "dense":
                raise ValueError(f"{key} must not be given: pattern {self.pattern!r} has no such block")
        index = self.latent.index if self.latent else None
        if "reuse" in words and not (index and "attention" in self._parts_of(self.runs[0][0])):
            raise ValueError(
                "pattern: blocks that reuse selected tokens need latent.index, and a first block "
                "that selects them"
            )
        total = sum(count for _, count in self.runs)
        if total != self.layers:
            raise ValueError(f"pattern must have as many blocks as layers, {self.layers}, got {total}")

    @property
    def counts_positions(self) -> bool:
        """True if the model limits the number of positions."""
        return self.positions in ("learned", "sinusoidal")

    @property
    def usual_sequence(self) -> int:
        """Default tokens per sample: SEQUENCE, or the model's maximum length if that is shorter."""
        return min(self.position_count or SEQUENCE, SEQUENCE)

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.key_value_heads or self.heads

    @property
    def head_width(self) -> int:
        """Head dimension."""
        return self.head_size or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Total width of a token's queries."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Total width of a token's keys, equal to that of its values."""
        return self.kv_heads * self.head_width

    @property
    def word_width(self) -> int:
        """Width of the token embedding."""
        return self.embedding_width or self.hidden

    @property
    def projected(self) -> bool:
        """True if the token embedding is projected to the residual stream and back (OPT-350m)."""
        return self.word_width != self.hidden

    @property
    def position_rows(self) -> int:
        """Number of rows in the table of learned positions; 0 if positions are not learned."""
        return self.position_count + self.position_offset if self.positions == "learned" else 0

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Runs of consecutive blocks of one kind, in order: the kind and the length of each run."""
        return (("block", self.layers),) if self.pattern is None else runs_of(self.pattern)

    @property
    def blocks(self) -> Mapping[str, Block]:
        """Block of every kind, by name, in order of first use."""
        return {kind: self._block(self._parts_of(kind)) for kind in dict(self.runs)}

    @property
    def block_runs(self) -> list[tuple[Block, int]]:
        """Runs of consecutive identical blocks, in order: the block and the length of each run."""
        blocks = self.blocks
        return [(blocks[kind], count) for kind, count in self.runs]

    @property
    def expert_layers(self) -> int:
        """Number of blocks with experts, without those of multi-token prediction."""
        return sum(count for block, count in self.block_runs if block.experts)

    @property
    def mtp_kind(self) -> str:
        """Kind of block in the multi-token prediction layers."""
        return self.mtp_pattern or self.runs[-1][0]

    @property
    def mtp_block(self) -> Block:
        """Block of the multi-token prediction layers."""
        return self._block(self._parts_of(self.mtp_kind))

    def _parts_of(self, kind: str) -> tuple[str, ...]:
        """Names of the mixer and networks of a kind of block."""
        return ("attention", "experts" if self.experts else "dense") if kind == "block" else words_of(kind)

    def _block(self, words: tuple[str, ...]) -> Block:
        feed_forward = None
        if "dense" in words:
            feed_forward = FeedForward(width=self.feed_forward, gated=self.gated, bias=self.feed_forward_bias)
        experts = self.experts if "experts" in words else None
        mixer = self._mixer(next((word for word in words if word in MIXERS), None))
        parts = (mixer is not None) + (feed_forward is not None or experts is not None)
        # A dense network in parallel with experts adds norms of its output, of the experts' input and output.
        apart = 3 if feed_forward and experts else 0
        norms = 2 * parts + apart if self.norm_position == "both" else parts
        return Block(mixer, feed_forward, experts, norms)

    def _mixer(self, word: str | None) -> Mixer | None:
        if word in ("mamba", "delta", None):
            return {"mamba": self.mamba, "delta": self.delta}.get(word or "")
        window = self.window if word == "window" and self.window else None
        sizes = window.model_dump(exclude_none=True, exclude={"size"}) if window else {}
        plain = {
            "heads": self.heads, "key_value_heads": self.kv_heads, "head_size": self.head_width,
            "bias": self.attention_bias,
            "output_bias": self.attention_bias if self.output_bias is None else self.output_bias,
            "qk_norm": self.qk_norm, "sinks": self.sinks, "gate": self.attention_gate,
            "shared_kv": self.shared_kv, "latent": self.latent,
        }  # fmt: skip
        chunk = self.chunk if word == "chunk" else None
        chooses = word != "reuse"
        return Attention(
            **plain | sizes, window=window.size if window else None, chunk=chunk, chooses=chooses
        )

    @property
    def parameters(self) -> int:
        """Number of parameters, counted as published.

        Tied embeddings count once; a masked-lm head and multi-token prediction layers are left out.
        """
        return self.parameter_groups().total()

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token uses, counting only the experts to which it is routed."""
        return self.parameter_groups(active=True).total()

    @property
    def mtp_parameters(self) -> int:
        """Number of parameters of the multi-token prediction layers, without shared embedding and head."""
        block = self.mtp_block.parameters(self.hidden, self.norm_parameters(self.hidden)).total()
        # The matrix takes two vectors to one; both of them and the block's result have a norm.
        joined = 2 * self.hidden**2 + 3 * self.norm_parameters(self.hidden)
        return self.mtp * (block + joined)

    def parameter_groups(self, *, active: bool = False) -> Counts:
        """Number of parameters by group; `active`: only those that one token uses."""
        norm, counts = self.norm_parameters(self.hidden), Counts()
        for block, count in self.block_runs:
            for group, number in block.parameters(self.hidden, norm, active=active).items():
                counts[group] += count * number
        pooler = self.hidden * (self.hidden + 1) if self.pooler else 0
        lm = self.head == "lm"
        decoder = self.word_width * self.vocabulary if lm and not self.tied_embeddings else 0
        project_out = self.hidden * self.word_width if lm and self.projected else 0
        counts["embedding"] += self.embedding_parameters
        counts["head"] += pooler + decoder + project_out
        counts["norm"] += norm if self.final_norm else 0
        return counts

    @property
    def embedding_parameters(self) -> int:
        """Number of parameters before the first block."""
        project_in = self.word_width if self.projected else 0
        norm = self.norm_parameters(self.hidden) if self.embedding_norm else 0
        rows = self.position_rows + self.token_types + project_in
        return self.word_width * self.vocabulary + self.hidden * rows + norm

    def norm_parameters(self, width: int) -> int:
        """Number of parameters of a norm with this width."""
        return (2 if self.norm == "layer_norm" else 1) * width

    def flops_per_token(self, sequence: int) -> TokenFlops:
        """FLOPs to train on one token, without recomputation.

        Papers define them as 6N + 12LHQT, with N parameters used by a token, L layers, H heads of dimension
        Q, and T tokens attended to, without a causal mask but with windows (Chowdhery et al. 2022, PaLM,
        Appendix B).
        """
        # 12 H Q T, with Q as the mean of the dimensions of queries and values, which may differ.
        scores = sum(
            count * block.attention.score_products(sequence, causal=False)
            for block, count in self.block_runs
            if block.attention is not None
        )
        needed = 2.0 * self.trained_products_per_token(sequence, causal=self.causal)
        return TokenFlops(needed=needed, paper=6.0 * self.active_parameters + 6.0 * scores)

    def products_per_token(self, sequence: int, *, causal: bool) -> float:
        """Multiply-accumulates per token in a forward pass, without masked scores if `causal` is set."""
        blocks = sum(n * block.products(self.hidden, sequence, causal=causal) for block, n in self.block_runs)
        head = (self.head != "none") * self.word_width * self.vocabulary
        projections = 2 * self.projected * self.hidden * self.word_width
        mtp_block = self.mtp_block.products(self.hidden, sequence, causal=causal)
        # Each multi-token prediction layer runs the head again.
        return blocks + head + projections + self.mtp * (mtp_block + 2 * self.hidden**2 + head)

    def trained_products_per_token(self, sequence: int, *, causal: bool) -> float:
        """Multiply-accumulates per token in training, three times as many as in the forward pass.

        Frozen weights have no gradients, so their products count twice; products of LoRA matrices are left
        out.
        """
        # Products are linear in the sequence; extrapolated to no attended tokens, those with weights remain.
        one_token, two_tokens = (self.products_per_token(tokens, causal=False) for tokens in (1, 2))
        frozen = 2 * one_token - two_tokens if self.lora else 0.0
        return 3.0 * self.products_per_token(sequence, causal=causal) - frozen

    def divides(self, width: int) -> bool:
        """True if the blocks can be sharded over this number of tensor-parallel ranks."""
        return width > 0 and all(size % width == 0 for size in self._divided_sizes().values())

    def divides_scans(self, tp: int, cp: int) -> bool:
        """True if the scans along the sequence can be sharded over tp × cp ranks."""
        return all(scan.divides(tp, cp) for scan in (self.mamba, self.delta) if scan)

    def _divided_sizes(self) -> dict[str, int]:
        """Model sizes that the tensor-parallel width must divide, by name."""
        sizes = {"heads": self.heads, "key_value_heads": self.kv_heads, "feed_forward": self.feed_forward}
        if self.latent is not None:
            # Latent attention has keys and values for each query head.
            del sizes["key_value_heads"]
        if self.mamba is not None:
            sizes |= {"mamba.heads": self.mamba.heads, "mamba.groups": self.mamba.groups}
        if self.delta is not None:
            sizes |= {"delta.key_heads": self.delta.key_heads}
        return sizes

    def check_tensor_width(self, width: int, where: str) -> None:
        """Raise PhazeError unless blocks can be sharded over `width` ranks; `where` names the source."""
        for key, size in self._divided_sizes().items():
            if width < 1 or size % width:
                raise PhazeError(
                    f"{where}: tensor: {width} must be > 0 and divide {key} {size} of model {self.name}"
                )

    def check_sequence(self, sequence: int, where: str) -> None:
        """Raise PhazeError unless the model has positions for `sequence` tokens; `where` names the source."""
        limit = self.position_count if self.counts_positions else sequence
        if not 1 <= sequence <= limit:
            raise PhazeError(
                f"{where}: sequence: {sequence} must be > 0 and at most position_count of model "
                f"{self.name}, {self.position_count or 'unlimited'}"
            )

    def check_chain(self, where: str) -> None:
        """Do nothing: the layers of a transformer form a chain (models without one raise PhazeError)."""

    def without_head(self) -> Model:
        """Base model without logits and loss, ending with the norm or pooler after the last block."""
        plain = {"head": "none", "head_transform": True, "sentence_head": False}
        return self.model_copy(update=plain)

    def distinct(self) -> Model:
        """Smallest model with one block of each kind; K (`hyper_operators`) is dropped."""
        few = {"layers": len(self.blocks), "pattern": self.pattern and " ".join(self.blocks)}
        return self.model_copy(update={**few, "hyper_operators": None})
