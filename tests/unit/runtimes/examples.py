"""Models for tests of rules."""

from phaze.spec.model import Model

SMALL = Model(
    name="small", layers=6, hidden=96, heads=12, key_value_heads=4, feed_forward=288, vocabulary=1000,
    positions="rotary", position_count=4096, tied_embeddings=False,
)  # fmt: skip
"""Model with widths that have few divisors."""
