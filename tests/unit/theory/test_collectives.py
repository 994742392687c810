"""The ring all-reduce."""

import numpy as np
import pytest

from phaze.theory.collectives import gradient_sync_s, reduced_elements, ring_all_reduce_s, sent_bytes

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
