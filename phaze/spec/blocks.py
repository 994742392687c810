"""Kinds of transformer blocks: token mixers along the sequence, and networks applied to each token.

Nouns count their parameters by group, and their multiply-accumulates per token in a forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import model_validator

from phaze.spec.counts import Counts
from phaze.spec.noun import Noun
from phaze.spec.scans import DeltaNet, Mamba
from phaze.spec.values import Flag, PositiveInt, Seed

Balancing = Literal["loss", "biases", "none"]
"""Method by which training balances the experts of a router."""


class Indexer(Noun):
    """Small attention heads that score all earlier tokens for sparse attention (DeepSeek-V3.2).
    Attention goes to the tokens with the highest scores.
    """

    heads: PositiveInt
    """Number of heads of the indexer."""
    head_size: PositiveInt
    """Dimension of a head; all heads share one key."""
    top: PositiveInt
    """Maximum number of tokens that a token attends to."""


class Latent(Noun):
    """Latent attention: keys and values of all heads from one narrow vector per token (DeepSeek-V2, 2.1)."""

    query_rank: PositiveInt | None = None
    """Width of the compressed queries; default: queries are projected from the residual stream."""
    kv_rank: PositiveInt
    """Width of the compressed keys and values."""
    nope_size: PositiveInt
    """Dimension per head of queries and keys without position."""
    rope_size: PositiveInt
    """Dimension per head of queries with rotary position, and of the single rotary key of all heads."""
    value_size: PositiveInt
    """Dimension per head of values."""
    index: Indexer | None = None
    """Sparse attention to tokens that an indexer chooses; default: attention to all tokens."""


class Experts(Noun):
    """Mixture of experts: a router sends each token to a few of several feed-forward networks."""

    count: PositiveInt
    """Experts per layer, E."""
    per_token: PositiveInt
    """Routed experts per token, k."""
    width: PositiveInt
    """Inner width of an expert's feed-forward network."""
    gated: Flag = True
    """Experts multiply two projections, one of them activated (SwiGLU)."""
    bias: Flag = False
    """Experts and router have biases (GPT-OSS)."""
    clamped: Flag = False
    """Both projections of a gated expert are clamped before the activation (GPT-OSS)."""
    shared_width: Seed = 0
    """Total inner width of the shared experts, which process all tokens; 0: no shared experts."""
    shared_gate: Flag = False
    """A gate scales the output of the shared expert (Qwen)."""
    latent_width: PositiveInt | None = None
    """Width to which tokens are projected before dispatch, and from which results are projected back;
    default: `hidden`."""
    scales: Flag = False
    """The router scales its input and the output of each expert (Gemma 4)."""
    balancing: Balancing = "loss"
    """How training balances the router: an auxiliary loss, biases of the scores for the choice of experts
    (DeepSeek-V3), or none. Natural routing depends on it."""
    choice_bias: Flag = False
    """The router's parameters include a bias for the choice of experts (ERNIE 4.5)."""
    groups: PositiveInt = 1
    """Number of groups of experts; a token first chooses `top_groups` groups, then experts inside them."""
    top_groups: PositiveInt = 1
    """Maximum number of groups that a token's experts come from."""

    @model_validator(mode="after")
    def _possible(self) -> Experts:
        if self.per_token > self.count:
            raise ValueError(f"per_token {self.per_token} must be at most count {self.count}")
        if self.count % self.groups or self.top_groups > self.groups:
            raise ValueError(
                f"groups {self.groups} must divide count {self.count} and be at least top_groups "
                f"{self.top_groups}"
            )
        if self.shared_gate and not self.shared_width:
            raise ValueError("shared_gate needs shared_width")
        return self

    def sent_width(self, hidden: int) -> int:
        """Number of elements per token that token dispatch sends to an expert."""
        return self.latent_width or hidden

    def expert_parameters(self, hidden: int) -> int:
        """Number of parameters of one expert."""
        sent, matrices = self.sent_width(hidden), 3 if self.gated else 2
        # Projections into an expert have a bias as wide as its inside, the one out of it a bias as wide as a
        # row.
        biases = (matrices - 1) * self.width + sent
        return matrices * sent * self.width + self.bias * biases

    def parameters(self, hidden: int, *, active: bool = False) -> Counts:
        """Number of parameters of a layer's experts and router; `active`: only those that one token uses."""
        experts = self.per_token if active else self.count
        shared = (3 if self.gated else 2) * hidden * self.shared_width + self.shared_gate * hidden
        # Tokens are projected once before dispatch and results once after it, whichever experts they visit.
        projections = 2 * hidden * self.latent_width if self.latent_width else 0
        biases = (self.bias + self.choice_bias) * self.count
        # Gemma 4 scales each channel of the router's input, and the output of each expert.
        router = hidden * self.count + biases + self.scales * (hidden + self.count)
        routed = experts * self.expert_parameters(hidden) + projections
        return Counts({"experts": routed, "shared_experts": shared, "router": router})


class Attention(Noun):
    """Attention over the tokens of a sequence."""

    heads: PositiveInt
    """Number of query heads, a."""
    key_value_heads: PositiveInt
    """Number of key and value heads, g."""
    head_size: PositiveInt
    """Head dimension."""
    bias: Flag = False
    """The projections of queries, keys and values have biases."""
    output_bias: Flag = False
    """The output projection has a bias."""
    qk_norm: Literal["none", "heads", "all"] = "none"
    """Norms of queries and keys with a learned scale: none, one per head (Qwen3), or one over all heads
    (MiniMax)."""
    sinks: Flag = False
    """Each head has a learned score that takes part in the softmax (GPT-OSS)."""
    gate: Flag = False
    """A gate as wide as the queries scales the output (Qwen3-Next)."""
    shared_kv: Flag = False
    """Values are the same as keys (Gemma 4)."""
    window: PositiveInt | None = None
    """Sliding window: maximum number of tokens that a token attends to."""
    chunk: PositiveInt | None = None
    """Chunk length in tokens; a token attends only inside its chunk."""
    latent: Latent | None = None
    """Keys and values from a narrow vector; `key_value_heads` and `head_size` then have no effect."""
    chooses: Flag = True
    """With an indexer: this block chooses the tokens; false: it reuses the choice of an earlier block."""

    @property
    def index(self) -> Indexer | None:
        """Indexer that runs in this block; None if there is none."""
        return self.latent.index if self.latent and self.chooses else None

    @property
    def query_width(self) -> int:
        """Total width of a token's queries."""
        return self.heads * self.query_size

    @property
    def query_size(self) -> int:
        """Dimension of a query or key head."""
        return self.latent.nope_size + self.latent.rope_size if self.latent else self.head_size

    @property
    def value_size(self) -> int:
        """Dimension of a value head."""
        return self.latent.value_size if self.latent else self.head_size

    @property
    def kv_heads(self) -> int:
        """Number of computed key and value heads; latent attention has one per query head."""
        return self.heads if self.latent else self.key_value_heads

    @property
    def kv_width(self) -> int:
        """Total width of a token's keys."""
        return self.kv_heads * self.query_size

    def matrices(self, hidden: int) -> int:
        """Elements of all weight matrices, equal to the multiply-accumulates of a token's projections."""
        latent, out = self.latent, self.heads * self.value_size * hidden
        if latent is None:
            copies = 1 if self.shared_kv else 2
            return hidden * ((1 + self.gate) * self.query_width + copies * self.kv_width) + out
        rank = latent.query_rank
        # Down to the narrow vector, then up to all heads. The rotary key is projected along with the narrow
        # vector of keys and values, since all heads share it.
        queries = (hidden + self.query_width) * rank if rank else hidden * self.query_width
        down = hidden * (latent.kv_rank + latent.rope_size)
        return queries + down + latent.kv_rank * self.heads * (latent.nope_size + latent.value_size) + out

    def parameters(self, hidden: int) -> Counts:
        """Number of parameters per layer; norms of queries, keys and compressed vectors count as norms."""
        latent = self.latent
        weights = self.matrices(hidden) + self.output_bias * hidden + self.sinks * self.heads
        if latent is None:
            copies = 1 if self.shared_kv else 2
            weights += self.bias * ((1 + self.gate) * self.query_width + copies * self.kv_width)
            # Norms of heads share one scale: a vector for queries, and one for keys.
            normed = {"none": 0, "heads": 2 * self.head_size, "all": self.query_width + self.kv_width}
            norms = normed[self.qk_norm]
        else:
            # Narrow vectors are normed before they are projected up; only the projections down have biases.
            norms = (latent.query_rank or 0) + latent.kv_rank
            weights += self.bias * ((latent.query_rank or 0) + latent.kv_rank + latent.rope_size)
        index = self.index
        if latent and index:
            index_width = index.heads * index.head_size
            weights += (latent.query_rank or hidden) * index_width + hidden * (index.head_size + index.heads)
            # The indexer's single key has a layer norm, with scale and bias.
            norms += 2 * index.head_size
        return Counts({"attention": weights, "norm": norms})

    def attended(self, sequence: int, *, causal: bool) -> float:
        """Mean number of tokens to which a token attends, within window, chunk, indexer and causal mask.

        Of s tokens a causal window of w tokens leaves w − w²/2s, chunks of w tokens leave w/2.
        """
        reach = float(min(self.window or self.chunk or sequence, sequence))
        if self.latent and self.latent.index:
            reach = float(min(self.latent.index.top, sequence))
        if not causal:
            return reach
        # The first w tokens see w/2 tokens on average, the other s − w see w; in a chunk all see half of it.
        return reach / 2 if self.chunk else reach - reach**2 / (2 * sequence)

    def score_products(self, sequence: int, *, causal: bool) -> float:
        """Number of multiply-accumulates per token of scores and of the values that they weight."""
        return self.attended(sequence, causal=causal) * self.heads * (self.query_size + self.value_size)

    def products(self, hidden: int, sequence: int, *, causal: bool) -> float:
        """Number of multiply-accumulates per token in a forward pass, scores included."""
        scores = self.score_products(sequence, causal=causal)
        index = self.index
        if self.latent and index:
            # The indexer scores all earlier tokens; only attention is limited to its choice.
            scored_tokens = sequence / 2 if causal else sequence
            index_width = index.heads * index.head_size
            scores += scored_tokens * index_width + (self.latent.query_rank or hidden) * index_width
            scores += hidden * (index.head_size + index.heads)
        return self.matrices(hidden) + scores


class FeedForward(Noun):
    """Dense feed-forward network."""

    width: PositiveInt
    """Inner width."""
    gated: Flag = False
    """Two projections are multiplied, one of them activated (SwiGLU)."""
    bias: Flag = False
    """The matrices have biases."""

    def parameters(self, hidden: int) -> Counts:
        """Number of parameters per layer."""
        inner = 2 if self.gated else 1
        biases = self.bias * (inner * self.width + hidden)
        return Counts({"feed_forward": (inner + 1) * hidden * self.width + biases})


Mixer: TypeAlias = Attention | Mamba | DeltaNet


@dataclass(frozen=True)
class Block:
    """One kind of block: an optional token mixer, and optional networks applied to each token."""

    mixer: Mixer | None
    feed_forward: FeedForward | None
    experts: Experts | None
    norms: int
    """Number of norms of the residual stream."""

    @property
    def attention(self) -> Attention | None:
        """Attention, if the block's mixer is attention; otherwise None."""
        return self.mixer if isinstance(self.mixer, Attention) else None

    def parameters(self, hidden: int, norm: int, *, active: bool = False) -> Counts:
        """Number of parameters by group, with `norm` per norm; `active`: only those that one token uses."""
        counts = Counts({"norm": self.norms * norm})
        for part in (self.mixer, self.feed_forward):
            if part is not None:
                counts.update(part.parameters(hidden))
        if self.experts is not None:
            counts.update(self.experts.parameters(hidden, active=active))
        return counts

    def products(self, hidden: int, sequence: int, *, causal: bool) -> float:
        """Number of multiply-accumulates per token in a forward pass."""
        total = 0.0
        if self.attention is not None:
            total += self.attention.products(hidden, sequence, causal=causal)
        elif isinstance(self.mixer, Mamba | DeltaNet):
            # A scan is causal: on average half of the sequence precedes a token.
            total += self.mixer.products(hidden, sequence / 2)
        if self.feed_forward is not None:
            total += (3 if self.feed_forward.gated else 2) * hidden * self.feed_forward.width
        if self.experts is not None:
            # Each weight of a matrix multiplies a token once, so the weights that a token uses are its
            # products.
            matrices = {"bias": False, "choice_bias": False, "scales": False}
            total += self.experts.model_copy(update=matrices).parameters(hidden, active=True).total()
        return total


class HeadSizes(Noun):
    """Head sizes of one kind of attention, where they differ from the model's."""

    heads: PositiveInt | None = None
    """Number of query heads; default: as in the model."""
    key_value_heads: PositiveInt | None = None
    """Number of key and value heads; default: as in the model."""
    head_size: PositiveInt | None = None
    """Head dimension; default: as in the model."""
    shared_kv: Flag | None = None
    """Values are the same as keys; default: as in the model."""


class Window(HeadSizes):
    """Sliding-window attention, optionally with its own head sizes."""

    size: PositiveInt
    """Maximum number of tokens that a token attends to."""
