"""The blocks of a transformer by kind: what mixes the tokens of a sequence, and what works on each alone.

Every noun counts its parameters by group, and the multiply-accumulates of a token in a forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import model_validator

from phaze.spec.counts import Counts
from phaze.spec.noun import Noun
from phaze.spec.scans import DeltaNet, Mamba
from phaze.spec.values import Flag, PositiveInt, Seed


class Indexer(Noun):
    """Scores of all tokens before one by small heads, of which attention takes the best (DeepSeek-V3.2)."""

    heads: PositiveInt
    """Heads of the indexer."""
    head_size: PositiveInt
    """Width of a head; all heads share one key."""
    top: PositiveInt
    """Tokens that attention goes to at most."""


class Latent(Noun):
    """Keys and values of all heads from one narrow vector a token (DeepSeek-AI 2024, V2, Section 2.1)."""

    query_rank: PositiveInt | None = None
    """Width from which queries are made; straight from the residual stream unless given."""
    kv_rank: PositiveInt
    """Width from which keys and values are made."""
    nope_size: PositiveInt
    """Width of a head's queries and keys without position."""
    rope_size: PositiveInt
    """Width of a head's queries, and of the one key of all heads, with rotary position."""
    value_size: PositiveInt
    """Width of a head's values."""
    index: Indexer | None = None
    """Sparse attention to the tokens that an indexer chooses; to all unless given."""


class Experts(Noun):
    """Networks of which a router chooses some for every token."""

    count: PositiveInt
    """Experts of a layer, E."""
    per_token: PositiveInt
    """Experts that a token is sent to, k."""
    width: PositiveInt
    """Width of an expert's feed-forward network."""
    gated: Flag = True
    """An expert multiplies two projections, one activated."""
    bias: Flag = False
    """Biases of experts and router (GPT-OSS)."""
    clamped: Flag = False
    """Both projections of a gated expert are clamped before the activation (GPT-OSS)."""
    shared_width: Seed = 0
    """Width of the shared experts, which all tokens meet, summed."""
    shared_gate: Flag = False
    """A gate scales what the shared expert gives (Qwen)."""
    latent_width: PositiveInt | None = None
    """Width to which a token is projected before it is sent, and back after; `hidden` unless given."""
    scales: Flag = False
    """The router scales its input and what each expert gives (Gemma 4)."""
    choice_bias: Flag = False
    """The router has a bias of the choice among its parameters (ERNIE 4.5)."""
    groups: PositiveInt = 1
    """Groups of experts, of which a token chooses `top_groups` first."""
    top_groups: PositiveInt = 1
    """Groups that a token's experts come from at most."""

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
        """Elements of a token that are sent to an expert."""
        return self.latent_width or hidden

    def expert_parameters(self, hidden: int) -> int:
        """Parameters of one expert."""
        wide, matrices = self.sent_width(hidden), 3 if self.gated else 2
        biases = (matrices - 1) * self.width + wide
        return matrices * wide * self.width + self.bias * biases

    def parameters(self, hidden: int, *, active: bool = False) -> Counts:
        """Parameters of a layer's experts and router, or only those that a token meets."""
        met = self.per_token if active else self.count
        shared = (3 if self.gated else 2) * hidden * self.shared_width + self.shared_gate * hidden
        projections = 2 * hidden * self.latent_width if self.latent_width else 0
        biases = (self.bias + self.choice_bias) * self.count
        router = hidden * self.count + biases + self.scales * (hidden + self.count)
        return Counts(
            {
                "experts": met * self.expert_parameters(hidden) + projections,
                "shared_experts": shared,
                "router": router,
            }
        )


class Attention(Noun):
    """Heads that attend to the tokens of a sequence."""

    heads: PositiveInt
    """Heads of queries, a."""
    key_value_heads: PositiveInt
    """Heads of keys and values, g."""
    head_size: PositiveInt
    """Width of a head."""
    bias: Flag = False
    """Biases of queries, keys and values."""
    output_bias: Flag = False
    """Bias of the output."""
    qk_norm: Literal["none", "heads", "all"] = "none"
    """Norms of queries and keys with a scale: none, of each head (Qwen3), of all heads (MiniMax)."""
    sinks: Flag = False
    """A learned score a head that takes part in the softmax (GPT-OSS)."""
    gate: Flag = False
    """A gate as wide as the queries scales the output (Qwen3-Next)."""
    shared_kv: Flag = False
    """Values are the keys (Gemma 4)."""
    window: PositiveInt | None = None
    """Tokens before a token that it attends to at most."""
    chunk: PositiveInt | None = None
    """Tokens of a chunk, outside of which a token attends to none."""
    latent: Latent | None = None
    """Keys and values from a narrow vector; `key_value_heads` and `head_size` are then not used."""
    chooses: Flag = True
    """With an indexer, it chooses tokens here; otherwise those that a block before chose are taken."""

    @property
    def index(self) -> Indexer | None:
        """Indexer at work."""
        return self.latent.index if self.latent and self.chooses else None

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.query_size

    @property
    def query_size(self) -> int:
        """Width of a head of queries, and of keys."""
        return self.latent.nope_size + self.latent.rope_size if self.latent else self.head_size

    @property
    def value_size(self) -> int:
        """Width of a head of values."""
        return self.latent.value_size if self.latent else self.head_size

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values at work; latent attention makes them for all heads."""
        return self.heads if self.latent else self.key_value_heads

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token."""
        return self.kv_heads * self.query_size

    def matrices(self, hidden: int) -> int:
        """Elements of all matrices, which are the multiply-accumulates of a token's projections, too."""
        latent, out = self.latent, self.heads * self.value_size * hidden
        if latent is None:
            copies = 1 if self.shared_kv else 2
            return hidden * ((1 + self.gate) * self.query_width + copies * self.kv_width) + out
        rank = latent.query_rank
        queries = (hidden + self.query_width) * rank if rank else hidden * self.query_width
        down = hidden * (latent.kv_rank + latent.rope_size)
        return queries + down + latent.kv_rank * self.heads * (latent.nope_size + latent.value_size) + out

    def parameters(self, hidden: int) -> Counts:
        """Parameters of a layer, norms of queries, keys and ranks among norms."""
        latent = self.latent
        found = self.matrices(hidden) + self.output_bias * hidden + self.sinks * self.heads
        if latent is None:
            copies = 1 if self.shared_kv else 2
            found += self.bias * ((1 + self.gate) * self.query_width + copies * self.kv_width)
            normed = {"none": 0, "heads": 2 * self.head_size, "all": self.query_width + self.kv_width}
            norms = normed[self.qk_norm]
        else:
            norms = (latent.query_rank or 0) + latent.kv_rank
            found += self.bias * ((latent.query_rank or 0) + latent.kv_rank + latent.rope_size)
        index = self.index
        if latent and index:
            wide = index.heads * index.head_size
            found += (latent.query_rank or hidden) * wide + hidden * (index.head_size + index.heads)
            norms += 2 * index.head_size
        return Counts({"attention": found, "norm": norms})

    def attended(self, sequence: int, *, causal: bool) -> float:
        """Tokens that a token attends to, on average over a sequence; all of them unless `causal`.

        A window of w tokens leaves w − w²/2s of s, chunks of w tokens w/2.
        """
        reach = float(min(self.window or self.chunk or sequence, sequence))
        if self.latent and self.latent.index:
            reach = float(min(self.latent.index.top, sequence))
        if not causal:
            return reach
        return reach / 2 if self.chunk else reach - reach**2 / (2 * sequence)

    def products(self, hidden: int, sequence: int, *, causal: bool) -> float:
        """Multiply-accumulates of a token in a forward pass."""
        scores = self.attended(sequence, causal=causal) * self.heads * (self.query_size + self.value_size)
        index = self.index
        if self.latent and index:
            everyone = sequence / 2 if causal else sequence
            wide = index.heads * index.head_size
            scores += everyone * wide + (self.latent.query_rank or hidden) * wide
            scores += hidden * (index.head_size + index.heads)
        return self.matrices(hidden) + scores


class FeedForward(Noun):
    """A network that every token passes."""

    width: PositiveInt
    """Its inner width."""
    gated: Flag = False
    """It multiplies two projections, one activated."""
    bias: Flag = False
    """Biases of its matrices."""

    def parameters(self, hidden: int) -> Counts:
        """Parameters of a layer."""
        inner = 2 if self.gated else 1
        return Counts(
            {"feed_forward": (inner + 1) * hidden * self.width + self.bias * (inner * self.width + hidden)}
        )


Mixer: TypeAlias = Attention | Mamba | DeltaNet


@dataclass(frozen=True)
class Block:
    """A block of one kind: what mixes tokens, and what works on each, any of which may be absent."""

    mixer: Mixer | None
    feed_forward: FeedForward | None
    experts: Experts | None
    norms: int
    """Norms of the residual stream in it."""

    @property
    def attention(self) -> Attention | None:
        """Its attention, if that is what mixes tokens."""
        return self.mixer if isinstance(self.mixer, Attention) else None

    def parameters(self, hidden: int, norm: int, *, active: bool = False) -> Counts:
        """Parameters by group, those of a norm given; or only those that a token meets."""
        found = Counts({"norm": self.norms * norm})
        for part in (self.mixer, self.feed_forward):
            if part is not None:
                found.update(part.parameters(hidden))
        if self.experts is not None:
            found.update(self.experts.parameters(hidden, active=active))
        return found

    def products(self, hidden: int, sequence: int, *, causal: bool) -> float:
        """Multiply-accumulates of a token in a forward pass."""
        found = 0.0
        if self.attention is not None:
            found += self.attention.products(hidden, sequence, causal=causal)
        elif isinstance(self.mixer, Mamba | DeltaNet):
            found += self.mixer.products(hidden, sequence / 2)
        if self.feed_forward is not None:
            found += (3 if self.feed_forward.gated else 2) * hidden * self.feed_forward.width
        if self.experts is not None:
            plain = self.experts.model_copy(update={"bias": False, "choice_bias": False, "scales": False})
            found += plain.parameters(hidden, active=True).total()
        return found


class HeadSizes(Noun):
    """Heads of a kind of attention that differ from those of the model."""

    heads: PositiveInt | None = None
    """Heads of queries."""
    key_value_heads: PositiveInt | None = None
    """Heads of keys and values."""
    head_size: PositiveInt | None = None
    """Width of a head."""
    shared_kv: Flag | None = None
    """Values are the keys."""


class Window(HeadSizes):
    """Attention to the nearest tokens only, with heads of its own where they are given."""

    size: PositiveInt
    """Tokens that a token attends to at most."""
