"""Blocks that pass a state along the sequence instead of attending to it, in chunks of tokens."""

from __future__ import annotations

from pydantic import model_validator

from phaze.spec.counts import Counts
from phaze.spec.noun import Noun
from phaze.spec.values import Flag, PositiveInt


class Mamba(Noun):
    """A selective state space over the sequence, in chunks (Dao and Gu, ICML 2024, Mamba-2)."""

    heads: PositiveInt
    """Heads of the state space."""
    head_size: PositiveInt
    """Width of a head."""
    state: PositiveInt
    """States of every element of a head."""
    groups: PositiveInt = 1
    """Groups of heads that share what writes to and reads from the state."""
    conv: PositiveInt = 4
    """Tokens that the convolution before the scan looks at."""
    conv_bias: Flag = True
    """Bias of the convolution."""
    bias: Flag = False
    """Biases of the projections."""
    chunk: PositiveInt = 128
    """Tokens of a chunk, inside which all tokens are multiplied with each other."""

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_size

    @property
    def convolved(self) -> int:
        """Width of what passes the convolution: heads, and what writes to and reads from the states."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the input projection: gate, what is convolved, and a step size a head."""
        return self.inner + self.convolved + self.heads

    def divides(self, tp: int, cp: int = 1) -> bool:
        """Whether slices have equal heads and groups, and their ranks that exchange heads for whole sequences
        have equal shares: of groups one share, or copies of one group (Megatron-Core, MambaContextParallel).
        """
        if self.heads % (tp * cp) or self.groups % tp:
            return False
        return self.groups // tp % cp == 0 or cp % (self.groups // tp) == 0

    def parameters(self, hidden: int) -> Counts:
        """Parameters of a layer, its gated norm among norms."""
        matrices = hidden * (self.projected + self.inner) + self.bias * (self.projected + hidden)
        conv = self.convolved * (self.conv + self.conv_bias)
        return Counts({"scan": matrices + conv + 3 * self.heads, "norm": self.inner})

    def products(self, hidden: int, attended: float) -> float:
        """Multiply-accumulates of a token: projections, convolution, its chunk and the states."""
        within = min(self.chunk / 2, attended) * (self.groups * self.state + self.inner)
        states = 2 * self.inner * self.state
        return hidden * (self.projected + self.inner) + self.convolved * self.conv + within + states


class DeltaNet(Noun):
    """A gated delta rule over the sequence, in chunks (Yang et al., ICLR 2025)."""

    key_heads: PositiveInt
    """Heads of queries and keys."""
    value_heads: PositiveInt
    """Heads of values, each with a state."""
    key_size: PositiveInt
    """Width of a head of queries or keys."""
    value_size: PositiveInt
    """Width of a head of values."""
    conv: PositiveInt = 4
    """Tokens that the convolution before the scan looks at."""
    chunk: PositiveInt = 64
    """Tokens of a chunk, inside which all tokens are multiplied with each other."""

    @model_validator(mode="after")
    def _shared(self) -> DeltaNet:
        if self.value_heads % self.key_heads:
            raise ValueError(f"key_heads {self.key_heads} must divide value_heads {self.value_heads}")
        return self

    @property
    def inner(self) -> int:
        """Width of all values."""
        return self.value_heads * self.value_size

    @property
    def convolved(self) -> int:
        """Width of queries, keys and values, which pass the convolution."""
        return 2 * self.key_heads * self.key_size + self.inner

    @property
    def projected(self) -> int:
        """Width of the input projections: what is convolved, the gate, a decay and a step a head."""
        return self.convolved + self.inner + 2 * self.value_heads

    def divides(self, tp: int, cp: int = 1) -> bool:
        """Whether slices, and their ranks that exchange heads for whole sequences, have equal heads."""
        return self.key_heads % (tp * cp) == 0

    def parameters(self, hidden: int) -> Counts:
        """Parameters of a layer, its gated norm among norms."""
        matrices = hidden * (self.projected + self.inner)
        return Counts(
            {"scan": matrices + self.convolved * self.conv + 2 * self.value_heads, "norm": self.value_size}
        )

    def products(self, hidden: int, attended: float) -> float:
        """Multiply-accumulates of a token: projections, convolution, its chunk and the states.

        Inside a chunk keys meet keys (to invert the update) and queries, and both meet values.
        """
        within = min(self.chunk / 2, attended) * self.value_heads * (3 * self.key_size + 2 * self.value_size)
        states = 3 * self.value_heads * self.key_size * self.value_size
        return hidden * (self.projected + self.inner) + self.convolved * self.conv + within + states
