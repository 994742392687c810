"""Linear-time token mixers that carry a state along the sequence, in chunks of tokens."""

from __future__ import annotations

from pydantic import model_validator

from phaze.spec.counts import Counts
from phaze.spec.noun import Noun
from phaze.spec.values import Flag, PositiveInt


class Mamba(Noun):
    """Selective state-space mixer that runs in chunks (Dao and Gu, ICML 2024, Mamba-2)."""

    heads: PositiveInt
    """Number of heads."""
    head_size: PositiveInt
    """Head dimension."""
    state: PositiveInt
    """State size per element of a head."""
    groups: PositiveInt = 1
    """Groups of heads that share their projections into and out of the state."""
    conv: PositiveInt = 4
    """Kernel width in tokens of the convolution before the scan."""
    conv_bias: Flag = True
    """The convolution has a bias."""
    bias: Flag = False
    """The projections have biases."""
    chunk: PositiveInt = 128
    """Chunk length in tokens; inside a chunk all pairs of tokens are multiplied."""

    @property
    def inner(self) -> int:
        """Total width of all heads."""
        return self.heads * self.head_size

    @property
    def convolved(self) -> int:
        """Width of the convolution: all heads, and the projections into and out of the state."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the input projection: gate, input of the convolution, and one step size per head."""
        return self.inner + self.convolved + self.heads

    def divides(self, tp: int, cp: int = 1) -> bool:
        """True if heads and groups split evenly over tp ranks, and then over cp ranks.

        Context-parallel ranks exchange heads for whole sequences; each needs an equal share of the groups, or
        a copy of one group (Megatron-Core, MambaContextParallel).
        """
        if self.heads % (tp * cp) or self.groups % tp:
            return False
        return self.groups // tp % cp == 0 or cp % (self.groups // tp) == 0

    def parameters(self, hidden: int) -> Counts:
        """Number of parameters per layer; the gated norm counts as a norm."""
        matrices = hidden * (self.projected + self.inner) + self.bias * (self.projected + hidden)
        conv = self.convolved * (self.conv + self.conv_bias)
        # Three numbers per head: decay, skip connection and bias of the step size.
        return Counts({"scan": matrices + conv + 3 * self.heads, "norm": self.inner})

    def products(self, hidden: int, attended: float) -> float:
        """Multiply-accumulates per token: projections, convolution, products within a chunk, and states."""
        # Half a chunk precedes a token on average. Scores are shared by the heads of a group, values are not.
        within = min(self.chunk / 2, attended) * (self.groups * self.state + self.inner)
        # One product into the state and one out of it.
        states = 2 * self.inner * self.state
        return hidden * (self.projected + self.inner) + self.convolved * self.conv + within + states


class DeltaNet(Noun):
    """Gated delta-rule mixer that runs in chunks (Yang et al., ICLR 2025)."""

    key_heads: PositiveInt
    """Number of query and key heads."""
    value_heads: PositiveInt
    """Number of value heads, each with its own state."""
    key_size: PositiveInt
    """Dimension of a query or key head."""
    value_size: PositiveInt
    """Dimension of a value head."""
    conv: PositiveInt = 4
    """Kernel width in tokens of the convolution before the scan."""
    chunk: PositiveInt = 64
    """Chunk length in tokens; inside a chunk all pairs of tokens are multiplied."""

    @model_validator(mode="after")
    def _shared(self) -> DeltaNet:
        if self.value_heads % self.key_heads:
            raise ValueError(f"key_heads {self.key_heads} must divide value_heads {self.value_heads}")
        return self

    @property
    def inner(self) -> int:
        """Total width of a token's values."""
        return self.value_heads * self.value_size

    @property
    def convolved(self) -> int:
        """Width of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_size + self.inner

    @property
    def projected(self) -> int:
        """Width of the input projections: convolved part, gate, and a decay and a step size per head."""
        return self.convolved + self.inner + 2 * self.value_heads

    def divides(self, tp: int, cp: int = 1) -> bool:
        """True if heads split evenly over tp × cp ranks."""
        return self.key_heads % (tp * cp) == 0

    def parameters(self, hidden: int) -> Counts:
        """Number of parameters per layer; the gated norm counts as a norm."""
        matrices = hidden * (self.projected + self.inner)
        # Two numbers per head: decay and its bias.
        scan = matrices + self.convolved * self.conv + 2 * self.value_heads
        return Counts({"scan": scan, "norm": self.value_size})

    def products(self, hidden: int, attended: float) -> float:
        """Multiply-accumulates per token: projections, convolution, products within a chunk, and states.

        Inside a chunk keys are multiplied by keys (to invert the update) and by queries, and both results by
        values.
        """
        within = min(self.chunk / 2, attended) * self.value_heads * (3 * self.key_size + 2 * self.value_size)
        # The state is read by keys, for the correction, and by queries, and is written once.
        states = 3 * self.value_heads * self.key_size * self.value_size
        return hidden * (self.projected + self.inner) + self.convolved * self.conv + within + states
