"""The model to train: a transformer, whatever its family, or a model of images (`spec.vision`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.blocks import Attention, Block, Experts, FeedForward, Latent, Mixer, Window
from phaze.spec.counts import Counts
from phaze.spec.flops import TokenFlops
from phaze.spec.noun import Noun
from phaze.spec.pattern import MIXERS, runs_of, words_of
from phaze.spec.scans import DeltaNet, Mamba
from phaze.spec.values import Flag, Label, Name, PositiveInt, Seed, Share

SEQUENCE = 8192
"""Tokens of a sample in most published pre-training; a model's longest is for later phases."""


class Model(Noun):
    """A transformer as it is trained: embedding, blocks of one or several kinds, head."""

    name: Name
    """Name of the model; by default that of its file."""
    layers: PositiveInt
    """Transformer blocks, L."""
    hidden: PositiveInt
    """Width of the residual stream, h."""
    heads: PositiveInt
    """Attention heads, a."""
    key_value_heads: PositiveInt | None = None
    """Heads of keys and values; as many as `heads` unless given."""
    head_size: PositiveInt | None = None
    """Width of a head; hidden / heads unless given."""
    feed_forward: Seed = 0
    """Width of the feed-forward network; 0 where every block has experts in its place."""
    latent: Latent | None = None
    """Attention makes keys and values of all heads from one narrow vector a token (DeepSeek)."""
    window: Window | None = None
    """Attention of the kinds named `window`, to the nearest tokens only."""
    chunk: PositiveInt | None = None
    """Tokens of a chunk, outside of which attention of the kinds named `chunk` goes to none (Llama 4)."""
    experts: Experts | None = None
    """Networks of which a router chooses some for every token."""
    mamba: Mamba | None = None
    """State space of the kinds named `mamba` (Mamba-2)."""
    delta: DeltaNet | None = None
    """Delta rule of the kinds named `delta` (gated delta net)."""
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=20_000)] | None = None
    """Kinds of the blocks in order, as `attention-dense*3 attention-experts*58` or `(mamba experts)*23`. A
    kind names what mixes tokens (attention, reuse, window, chunk, mamba, delta) and what works on each
    (dense, experts), or one of both. `reuse` is attention to the tokens that the indexer of an earlier block
    chose. Unless given all are equal: attention, and experts if there are some, else dense."""
    mtp: Seed = 0
    """Layers after the last block that predict tokens further on, each a block with a matrix that joins it to
    the token's embedding (DeepSeek-AI 2024, V3, Section 2.2)."""
    mtp_pattern: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    """Kind of the block of these layers; that of the last block unless given."""
    vocabulary: PositiveInt
    """Tokens in the vocabulary, padded as it is trained."""
    embedding_width: PositiveInt | None = None
    """Width of the word embedding; `hidden` unless given, else projected in and out without bias."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """How a token knows its position."""
    position_count: Seed = 0
    """Longest sequence; with rotary positions the one that the model was made for, which may be exceeded."""
    position_offset: Seed = 0
    """Rows of the position table before the first position (OPT has 2)."""
    token_types: Seed = 0
    """Token types with an embedding (BERT has 2)."""
    activation: Literal["gelu", "relu", "relu2", "silu"] = "gelu"
    """Activation of the feed-forward network."""
    gated: Flag = False
    """The feed-forward network multiplies two projections, one activated (Llama)."""
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """Normalisation, with scale and bias or with scale only."""
    norm_position: Literal["pre", "post", "both", "output"] = "pre"
    """Normalise the input of attention and feed-forward network, the residual sum after them, what goes into
    them and what comes out (Gemma), or only what comes out (OLMo 2)."""
    embedding_norm: Flag = False
    """Normalise after the embedding."""
    final_norm: Flag = True
    """Normalise after the last block."""
    attention_bias: Flag = True
    """Biases of the attention projections."""
    output_bias: Flag | None = None
    """Bias of the attention output; as `attention_bias` unless given."""
    qk_norm: Literal["none", "heads", "all"] = "none"
    """Norms of queries and keys with a scale: none, of each head (Qwen3), of all heads (MiniMax)."""
    sinks: Flag = False
    """A learned score a head that takes part in the softmax (GPT-OSS)."""
    attention_gate: Flag = False
    """A gate as wide as the queries scales the attention output (Qwen3-Next)."""
    shared_kv: Flag = False
    """Values are the keys (Gemma 4)."""
    feed_forward_bias: Flag = True
    """Biases of the feed-forward network."""
    fused_qkv: Flag = False
    """Queries, keys and values come from one matrix multiplication (GPT-2, Megatron)."""
    causal: Flag = True
    """A token attends only to those before it; the work is the same."""
    head: Literal["lm", "masked-lm", "none"] = "lm"
    """Loss: next token, masked tokens (with a transform before the decoder), or none."""
    tied_embeddings: Flag = True
    """The head's matrix is that of the word embedding."""
    head_transform: Flag = True
    """A dense layer with activation and norm before the decoder of head masked-lm."""
    sentence_head: Flag = False
    """With head masked-lm, the first token predicts the next sentence as it is, without pooler."""
    pooler: Flag = False
    """A dense layer with tanh on the first token; with head masked-lm it predicts the next sentence."""
    residual_dropout: Share = 0.0
    """Dropout before every residual sum."""
    attention_dropout: Share = 0.0
    """Dropout of the attention probabilities."""
    embedding_dropout: Share = 0.0
    """Dropout after the embedding."""
    lora: PositiveInt | None = None
    """Rank r of the two matrices beside every matrix of a block that alone are trained, where all else is
    frozen (Hu et al., LoRA, ICLR 2022); for models without experts. Unless given everything is trained."""
    untimed: dict[Label, JsonValue] = Field(default_factory=dict)
    """Fields of the published configuration that change what is learnt, and neither time nor memory, by their
    published names, as `rope_theta: 500000.0`; `emit` passes them to a runtime. One has a price: YaRN in
    `rope_scaling`, whose factor fused kernels do not know."""
    hyper_operators: PositiveInt | None = None
    """K, up to which `partition` clusters the operators unless it is told another."""

    @property
    def scaled_rotary(self) -> bool:
        """Whether rotary embeddings are multiplied by a factor, as YaRN's are (Peng et al., ICLR 2024) unless
        `mscale` and `mscale_all_dim` are alike; false for latent attention, whose kernels know it.
        """
        parts = self.untimed.get("rope_scaling")
        if self.latent is not None or self.positions != "rotary" or not isinstance(parts, dict):
            return False
        alike = "mscale" in parts and parts["mscale"] == parts.get("mscale_all_dim")
        return "yarn" in (parts.get("rope_type"), parts.get("type")) and not alike

    def __hash__(self) -> int:
        """Hash of the sizes: what is untimed has none."""
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
                f"position_count {self.position_count} must be > 0 with learned or sinusoidal positions and "
                f"0 without positions, positions are {self.positions!r}"
            )
        if self.position_offset and self.positions != "learned":
            raise ValueError(f"position_offset {self.position_offset} needs learned positions")
        if self.pooler and self.head == "lm":
            raise ValueError("pooler needs head masked-lm or none: next-token training does not use it")
        if self.sentence_head and (self.pooler or self.head != "masked-lm"):
            raise ValueError("sentence_head needs head masked-lm without pooler")
        if not self.head_transform and (self.head != "masked-lm" or self.projected):
            raise ValueError("head_transform: false needs head masked-lm and no embedding_width of its own")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"rotary positions need an even head width, it is {self.head_width}")
        return self

    @model_validator(mode="after")
    def _freezes_no_experts(self) -> Self:
        if self.lora and self.experts:
            raise ValueError(f"lora {self.lora} must not be given for a model with experts")
        return self

    def _check_kinds(self) -> None:
        """Raise ValueError where the pattern names what is not there, or what is there is in no kind."""
        kinds = [kind for kind, _ in self.runs] + [self.mtp_kind] * (self.mtp > 0)
        words = {word for kind in kinds for word in self._words(kind)}
        needed = {
            "dense": self.feed_forward, "experts": self.experts, "window": self.window,
            "chunk": self.chunk, "mamba": self.mamba, "delta": self.delta,
        }  # fmt: skip
        for word, value in needed.items():
            key = "feed_forward" if word == "dense" else word
            if word in words and not value:
                raise ValueError(f"{key} must be given, blocks of the model have it")
            if word not in words and value and word != "dense":
                raise ValueError(f"{key} is given, and no block of pattern {self.pattern!r} has it")
        index = self.latent.index if self.latent else None
        if "reuse" in words and not (index and "attention" in self._words(self.runs[0][0])):
            raise ValueError(
                "pattern: blocks that reuse a choice need latent.index and a first block that chooses"
            )
        total = sum(count for _, count in self.runs)
        if total != self.layers:
            raise ValueError(f"pattern must have layers {self.layers} blocks, it has {total}")

    @property
    def token(self) -> str:
        """Word for a token of a sample."""
        return "token"

    @property
    def counts_positions(self) -> bool:
        """Whether there are only so many positions."""
        return self.positions in ("learned", "sinusoidal")

    @property
    def usual_sequence(self) -> int:
        """Tokens of a sample unless they are given: SEQUENCE, or the model's longest if that is less."""
        return min(self.position_count or SEQUENCE, SEQUENCE)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.head_size or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.kv_heads * self.head_width

    @property
    def word_width(self) -> int:
        """Width of the word embedding."""
        return self.embedding_width or self.hidden

    @property
    def projected(self) -> bool:
        """Whether the word embedding is projected to the residual stream and back (OPT-350m)."""
        return self.word_width != self.hidden

    @property
    def position_rows(self) -> int:
        """Rows of the table of learned positions."""
        return self.position_count + self.position_offset if self.positions == "learned" else 0

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Kinds of the blocks in order, and how many of each follow each other."""
        return (("block", self.layers),) if self.pattern is None else runs_of(self.pattern)

    @property
    def blocks(self) -> Mapping[str, Block]:
        """Each kind of block by its name, in the order in which they come first."""
        return {kind: self._block(self._words(kind)) for kind, _ in self.runs}

    @property
    def mtp_kind(self) -> str:
        """Kind of the blocks that predict tokens further on."""
        return self.mtp_pattern or self.runs[-1][0]

    @property
    def mtp_block(self) -> Block:
        """Block of a layer that predicts tokens further on."""
        return self._block(self._words(self.mtp_kind))

    def _words(self, kind: str) -> tuple[str, ...]:
        """What mixes tokens and what works on each, in a kind of block."""
        return ("attention", "experts" if self.experts else "dense") if kind == "block" else words_of(kind)

    def _block(self, words: tuple[str, ...]) -> Block:
        feed_forward = None
        if "dense" in words:
            feed_forward = FeedForward(width=self.feed_forward, gated=self.gated, bias=self.feed_forward_bias)
        experts = self.experts if "experts" in words else None
        mixer = self._mixer(next((word for word in words if word in MIXERS), None))
        parts = (mixer is not None) + (feed_forward is not None or experts is not None)
        apart = 3 if feed_forward and experts else 0
        norms = 2 * parts + apart if self.norm_position == "both" else parts
        return Block(mixer, feed_forward, experts, norms)

    def _mixer(self, word: str | None) -> Mixer | None:
        if word in ("mamba", "delta", None):
            return {"mamba": self.mamba, "delta": self.delta}.get(word or "")
        own = self.window if word == "window" and self.window else None
        sizes = own.model_dump(exclude_none=True, exclude={"size"}) if own else {}
        plain = {
            "heads": self.heads, "key_value_heads": self.kv_heads, "head_size": self.head_width,
            "bias": self.attention_bias,
            "output_bias": self.attention_bias if self.output_bias is None else self.output_bias,
            "qk_norm": self.qk_norm, "sinks": self.sinks, "gate": self.attention_gate,
            "shared_kv": self.shared_kv, "latent": self.latent,
        }  # fmt: skip
        chunk = self.chunk if word == "chunk" else None
        chooses = word != "reuse"
        return Attention(**plain | sizes, window=own.size if own else None, chunk=chunk, chooses=chooses)

    @property
    def parameters(self) -> int:
        """Number of parameters as published: tied embeddings once, without a masked-lm head and without the
        layers that predict tokens further on.
        """
        return self.parameter_groups().total()

    @property
    def active_parameters(self) -> int:
        """Parameters that a token meets: of the experts of a layer those that it is sent to."""
        return self.parameter_groups(active=True).total()

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the layers that predict tokens further on; embedding and head are the model's."""
        block = self.mtp_block.parameters(self.hidden, self.norm_parameters(self.hidden)).total()
        joined = 2 * self.hidden**2 + 3 * self.norm_parameters(self.hidden)
        return self.mtp * (block + joined)

    def parameter_groups(self, *, active: bool = False) -> Counts:
        """Parameters by group, or only those that a token meets."""
        norm, found = self.norm_parameters(self.hidden), Counts()
        for kind, count in self.runs:
            for group, number in self.blocks[kind].parameters(self.hidden, norm, active=active).items():
                found[group] += count * number
        pooler = self.hidden * (self.hidden + 1) if self.pooler else 0
        lm = self.head == "lm"
        decoder = self.word_width * self.vocabulary if lm and not self.tied_embeddings else 0
        project_out = self.hidden * self.word_width if lm and self.projected else 0
        found["embedding"] += self.embedding_parameters
        found["head"] += pooler + decoder + project_out
        found["norm"] += norm if self.final_norm else 0
        return found

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first block."""
        project_in = self.word_width if self.projected else 0
        norm = self.norm_parameters(self.hidden) if self.embedding_norm else 0
        return (
            self.word_width * self.vocabulary
            + self.hidden * (self.position_rows + self.token_types + project_in)
            + norm
        )

    def norm_parameters(self, width: int) -> int:
        """Parameters of a normalisation of that width."""
        return (2 if self.norm == "layer_norm" else 1) * width

    def flops_per_token(self, sequence: int) -> TokenFlops:
        """FLOPs that training needs for a token, without recomputation.

        As papers have them 6N + 12LHQT with N parameters that a token meets, L layers, H heads of width Q, T
        tokens that it attends to, as if nothing were masked but windows (Chowdhery et al. 2022, PaLM,
        Appendix B).
        """
        scores = sum(
            count * one.heads * (one.query_size + one.value_size) * one.attended(sequence, causal=False)
            for kind, count in self.runs
            if (one := self.blocks[kind].attention) is not None
        )
        needed = 2.0 * self.trained_products_per_token(sequence, causal=self.causal)
        return TokenFlops(needed=needed, paper=6.0 * self.active_parameters + 6.0 * scores)

    def products_per_token(self, sequence: int, *, causal: bool) -> float:
        """Multiply-accumulates of a token in a forward pass; if `causal`, of what a causal mask leaves."""
        blocks = sum(
            count * self.blocks[kind].products(self.hidden, sequence, causal=causal)
            for kind, count in self.runs
        )
        head = (self.head != "none") * self.word_width * self.vocabulary
        projections = 2 * self.projected * self.hidden * self.word_width
        further = self.mtp_block.products(self.hidden, sequence, causal=causal)
        return blocks + head + projections + self.mtp * (further + 2 * self.hidden**2 + head)

    def trained_products_per_token(self, sequence: int, *, causal: bool) -> float:
        """Multiply-accumulates of a token in training: as many again twice backward, once with frozen
        weights, which have no gradients; those of the narrow matrices beside them are left out.
        """
        # Without anything attended to, only products with weights are left; both are linear in the sequence.
        one, two = (self.products_per_token(tokens, causal=False) for tokens in (1, 2))
        frozen = 2 * one - two if self.lora else 0.0
        return 3.0 * self.products_per_token(sequence, causal=causal) - frozen

    def divides(self, width: int) -> bool:
        """Whether blocks can be cut into that many slices."""
        return width > 0 and all(size % width == 0 for size in self._sliced().values())

    def divides_scans(self, tp: int, cp: int) -> bool:
        """Whether blocks that scan the sequence can be cut so."""
        return all(scan.divides(tp, cp) for scan in (self.mamba, self.delta) if scan)

    def _sliced(self) -> dict[str, int]:
        """Sizes that a TMP width divides."""
        sizes = {"heads": self.heads, "key_value_heads": self.kv_heads, "feed_forward": self.feed_forward}
        if self.latent is not None:
            del sizes["key_value_heads"]
        if self.mamba is not None:
            sizes |= {"mamba.heads": self.mamba.heads, "mamba.groups": self.mamba.groups}
        if self.delta is not None:
            sizes |= {"delta.key_heads": self.delta.key_heads}
        return sizes

    def check_tensor_width(self, width: int, where: str) -> None:
        """Raise PhazeError unless blocks can be cut into that many slices; `where` says who asked."""
        for key, size in self._sliced().items():
            if width < 1 or size % width:
                raise PhazeError(
                    f"{where}: tensor: {width} must be > 0 and divide {key} {size} of model {self.name}"
                )

    def check_sequence(self, sequence: int, where: str) -> None:
        """Raise PhazeError unless the model has positions for that many tokens; `where` says who asked."""
        limit = self.position_count if self.counts_positions else sequence
        if not 1 <= sequence <= limit:
            raise PhazeError(
                f"{where}: sequence: {sequence} must be > 0 and at most position_count of model {self.name}, "
                f"which is {self.position_count or 'unlimited'}"
            )

    def check_chain(self, where: str) -> None:
        """Raise PhazeError unless every layer reads only the one before, which is so."""

    def without_head(self) -> Model:
        """Base model: without logits and loss, with the norm or pooler after its last block."""
        plain = {"head": "none", "head_transform": True, "sentence_head": False}
        return self.model_copy(update=plain)

    def distinct(self) -> Model:
        """Model with as few blocks as have all of its distinct layers, and without K."""
        few = {"layers": len(self.blocks), "pattern": self.pattern and " ".join(self.blocks)}
        return self.model_copy(update={**few, "hyper_operators": None})
