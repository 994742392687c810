"""ZeRO and optimizers: stored, sent and moved bytes."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.cost.memory import Optimizer, parameter_bytes, state_bytes, update_bytes
from phaze.cost.network.network import sent_bytes
from phaze.formulas.flushing import Setting, sync_s
from phaze.layout import Layout, Zero
from tests.oracles.state_traffic import state_traffic

ADAM = parameter_bytes("adam", "mixed")


@pytest.mark.parametrize(("zero", "gib"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_memory_of_7_5_billion_parameters_is_that_of_the_paper(zero: Zero, gib: float) -> None:
    """Rajbhandari et al., SC 2020, Figure 1: mixed precision, Adam, 64 replicas; GB are 10^9."""
    assert state_bytes(7.5e9, ADAM, zero, 64) / 1e9 == pytest.approx(gib, abs=0.05)


@pytest.mark.parametrize("optimizer", ["sgd", "sgd-momentum", "adam"])
def test_one_replica_shares_nothing(optimizer: Optimizer) -> None:
    size = parameter_bytes(optimizer, "mixed")
    assert [state_bytes(3.0, size, zero, 1) for zero in (0, 1, 2, 3)] == [3.0 * size.static] * 4


def test_gradients_in_single_precision_take_two_bytes_more() -> None:
    """18 bytes without, 6 + 12/d with a distributed optimizer (Megatron-LM, dist_optimizer.md)."""
    size = parameter_bytes("adam", "mixed", 4)
    assert (state_bytes(1.0, size, 0, 8), state_bytes(1.0, size, 1, 8)) == (18, 6 + 12 / 8)
    assert parameter_bytes("adam", "half", 4) == parameter_bytes("adam", "half")


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    """ZeRO 1 sends the bytes of plain data parallelism; ZeRO 3 one and a half times as much for one
    microbatch.
    """
    plain, shared, all_shared = (state_traffic(1e6, "mixed", zero, 8) for zero in (0, 1, 3))
    assert plain.sync_bytes == sent_bytes("all_reduce", 2e6, 8) == shared.sync_bytes + shared.gather_bytes
    assert all_shared.per_batch_bytes(1) == pytest.approx(1.5 * plain.per_batch_bytes(1))


def test_shared_gradients_are_reduced_after_every_microbatch() -> None:
    """No device can store the sum of all gradients."""
    once = 7 / 8 * 2e6
    assert state_traffic(1e6, "mixed", 2, 8).per_batch_bytes(10) == pytest.approx(11 * once)
    assert state_traffic(1e6, "mixed", 3, 8).per_batch_bytes(10) == pytest.approx(30 * once)


def test_the_planners_factor_counts_both_directions() -> None:
    one_direction = state_traffic(1e6, "half", 0, 8).sync_bytes / 1e9
    paper = Setting(8, 8, bandwidth_bytes_per_s=1e9, memory_bytes=1e9)
    assert sync_s(np.array([2e6]), Layout(dp=8), paper) == pytest.approx(2 * one_direction)


@pytest.mark.parametrize(("optimizer", "moved"), [("sgd", 2 + 8 + 2), ("adam", 2 + 8 + 16 + 2)])
def test_the_update_also_moves_gradients_states_and_working_weights(optimizer: Optimizer, moved: int) -> None:
    assert update_bytes(1.0, optimizer, "mixed", 0, 4) == moved
    assert update_bytes(1.0, optimizer, "mixed", 1, 4) == moved / 4
    assert update_bytes(1.0, optimizer, "single", 0, 4) == 4 + 8 + (16 if optimizer == "adam" else 0)
