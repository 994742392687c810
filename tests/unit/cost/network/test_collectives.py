"""Collectives by kind: around one ring, and level by level."""

import numpy as np
import pytest

from phaze.cost.network.collectives import (
    EXCHANGES,
    collective_s,
    factor,
    network_s,
    reaches,
    reduced_elements,
    sent_bytes,
)

SIZES = np.array([0.0, 1e9])


def test_a_ring_takes_the_paper_s_time() -> None:
    """Tensor size / devices · (devices − 1) · 4 over the bandwidth (paper, C.2)."""
    found = network_s(sent_bytes("all_reduce", SIZES, 4), 2e9, 4.0)
    assert found == pytest.approx([0.0, 1e9 / 4 * 3 * 4 / 2e9])


def test_a_single_device_needs_no_ring() -> None:
    """With t = 1 nothing is sent, added or waited for."""
    for kind in EXCHANGES:
        assert factor(kind, 1) == 0
        assert (reduced_elements(kind, SIZES, 1) == 0).all()
        assert collective_s(kind, 1e9, reaches(1, 1, NODES)) == 0


def test_a_device_sends_reduce_scatter_and_all_gather() -> None:
    """Each device sends (t − 1)/t of the tensor twice, and adds it up once."""
    assert sent_bytes("all_reduce", SIZES, 8)[1] == pytest.approx(2 * 7 / 8 * 1e9)
    assert reduced_elements("all_reduce", SIZES, 8)[1] == pytest.approx(7 / 8 * 1e9)


def test_the_halves_of_an_all_reduce_send_half_and_one_of_them_adds() -> None:
    halves = [sent_bytes(kind, SIZES, 8)[1] for kind in ("reduce_scatter", "all_gather")]
    assert halves == [sent_bytes("all_reduce", SIZES, 8)[1] / 2] * 2
    assert reduced_elements("reduce_scatter", SIZES, 8)[1] == reduced_elements("all_reduce", SIZES, 8)[1]
    assert not reduced_elements("all_gather", SIZES, 8).any()
    assert not reduced_elements("all_to_all", SIZES, 8).any()


def test_the_halves_of_an_all_reduce_take_half_of_its_time_on_levels() -> None:
    group = reaches(16, 1, NODES)
    whole, *halves = (
        collective_s(kind, 1e9, group) for kind in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert halves == [whole / 2] * 2


def test_an_all_to_all_sends_every_part_over_the_level_on_which_two_ranks_meet() -> None:
    """Of 16 ranks, 8 in a node, a rank sends 7 parts of 16 over NVLink and 8 parts between nodes."""
    part = 1e9 / 16
    expected = 7 * part / 300e9 + 8 * part / 25e9
    assert collective_s("all_to_all", 1e9, reaches(16, 1, NODES)) == pytest.approx(expected)
    assert expected > 3 * collective_s("reduce_scatter", 1e9, reaches(16, 1, NODES))


def test_an_all_to_all_on_one_level_sends_its_factor() -> None:
    assert collective_s("all_to_all", 1e9, reaches(8, 1, NODES)) == pytest.approx(
        factor("all_to_all", 8) * 1e9 / 300e9
    )


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
    assert collective_s("all_reduce", 1e9, reaches(8, 1, NODES)) == pytest.approx(2 * 7 / 8 * 1e9 / 300e9)


def test_between_nodes_an_all_reduce_sends_what_the_node_leaves() -> None:
    """NVLink's share first, then 1/g of the bytes per device."""
    inside, between = 2 * 7 / 8 * 1e9 / 300e9, 2 * 1 / 2 * 1e9 / 8 / 25e9
    assert collective_s("all_reduce", 1e9, reaches(16, 1, NODES)) == pytest.approx(inside + between)


def test_equal_levels_send_what_one_ring_sends() -> None:
    """With equal bandwidths all levels together carry (n − 1)/n of the tensor."""
    levels = ((4, 1e9, 0.0), (16, 1e9, 0.0), (64, 1e9, 0.0))
    assert collective_s("reduce_scatter", 1.0, reaches(64, 1, levels)) == pytest.approx(63 / 64 / 1e9)


def test_a_step_has_its_latency() -> None:
    levels = ((8, 1e30, 1e-6), (64, 1e30, 5e-6))
    assert collective_s("all_reduce", 1.0, reaches(32, 1, levels)) == pytest.approx(2 * (7 * 1e-6 + 3 * 5e-6))
