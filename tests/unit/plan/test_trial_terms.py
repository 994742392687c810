"""Two further terms: padding of buckets, and gathers that start one operator late."""

import pytest

from phaze.plan.terms.overlap import gathered_after_s
from phaze.plan.terms.state import StateTerms
from phaze.spec.system import Stack


def test_buckets_of_sharded_states_are_padded() -> None:
    state = StateTerms("adam", "mixed", Stack(), 1e12)
    shards = [state.device_bytes(100.0, zero, 4, pipelined=False) for zero in (0, 1)]
    assert shards == pytest.approx([1600, 400 + 1200 / 4 + 0.01 * 200])


def test_two_operators_wait_for_their_weights() -> None:
    assert gathered_after_s(8.0, 9.0, share=1.0, lost=0.0, operators=4) == 4.0
