"""The ring all-reduce."""

import numpy as np
import pytest

from phaze.theory.collectives import (
    all_reduce_s,
    gradient_sync_s,
    reaches,
    reduce_scatter_s,
    reduced_elements,
    ring_all_reduce_s,
    sent_bytes,
)

SIZES = np.array([0.0, 1e9])


def test_a_ring_takes_the_paper_s_time() -> None:
    """Tensor size / devices · (devices − 1) · 4 over the bandwidth (paper, C.2)."""
    assert ring_all_reduce_s(SIZES, 4, 2e9) == pytest.approx([0.0, 1e9 / 4 * 3 * 4 / 2e9])


def test_a_single_device_needs_no_ring() -> None:
    """With t = 1 nothing is sent, added or waited for."""
    for found in (ring_all_reduce_s(SIZES, 1, 1.0), sent_bytes(SIZES, 1), reduced_elements(SIZES, 1)):
        assert (found == 0).all()


def test_gradients_are_synchronised_by_the_same_ring() -> None:
    """Equation (18): 4 (d − 1)/d · weights / bandwidth."""
    assert gradient_sync_s(SIZES, 8, 1e10)[1] == pytest.approx(4 * 7 / 8 * 1e9 / 1e10)


def test_a_device_sends_reduce_scatter_and_all_gather() -> None:
    """Each device sends (t − 1)/t of the tensor twice, and adds it up once."""
    assert sent_bytes(SIZES, 8)[1] == pytest.approx(2 * 7 / 8 * 1e9)
    assert reduced_elements(SIZES, 8)[1] == pytest.approx(7 / 8 * 1e9)


NODES = ((8, 300e9, 0.0), (512, 25e9, 0.0))
"""Nodes of eight devices, and links between them."""


def test_a_group_inside_a_node_meets_there_only() -> None:
    assert [reach.ranks for reach in reaches(8, 1, NODES)] == [8, 1]
    assert [reach.ranks for reach in reaches(2, 4, NODES)] == [2, 1]


def test_ranks_a_node_apart_meet_between_nodes_only() -> None:
    assert [reach.ranks for reach in reaches(6, 8, NODES)] == [1, 6]


def test_a_group_wider_than_a_node_meets_on_both_levels() -> None:
    assert [reach.ranks for reach in reaches(16, 1, NODES)] == [8, 2]
    assert [reach.ranks for reach in reaches(32, 2, NODES)] == [4, 8]


def test_an_all_reduce_on_one_level_takes_twice_its_share_per_direction() -> None:
    """2 (n − 1)/n of the tensor over the bandwidth of one direction."""
    assert all_reduce_s(1e9, reaches(8, 1, NODES)) == pytest.approx(2 * 7 / 8 * 1e9 / 300e9)


def test_between_nodes_an_all_reduce_sends_what_the_node_leaves() -> None:
    """NVLink's share first, then 1/g of the bytes per device."""
    inside, between = 2 * 7 / 8 * 1e9 / 300e9, 2 * 1 / 2 * 1e9 / 8 / 25e9
    assert all_reduce_s(1e9, reaches(16, 1, NODES)) == pytest.approx(inside + between)


def test_equal_levels_send_what_one_ring_sends() -> None:
    """With equal bandwidths all levels together carry (n − 1)/n of the tensor."""
    levels = ((4, 1e9, 0.0), (16, 1e9, 0.0), (64, 1e9, 0.0))
    assert reduce_scatter_s(1.0, reaches(64, 1, levels)) == pytest.approx(63 / 64 / 1e9)


def test_a_step_has_its_latency() -> None:
    levels = ((8, 1e30, 1e-6), (64, 1e30, 5e-6))
    assert all_reduce_s(1.0, reaches(32, 1, levels)) == pytest.approx(2 * (7 * 1e-6 + 3 * 5e-6))
