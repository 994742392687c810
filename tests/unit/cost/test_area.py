"""Areas of chips."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.cost.space import area_um2, buffer_area_um2, describe
from phaze.spec.architecture import Architecture, load_technology
from phaze.spec.config import load_architecture

ROOT = Path(__file__).resolve().parents[3]
FIGURES = load_technology("22nm", ROOT / "config").area_um2
TPU_V4_MM2 = 278.82667631216
"""Eight 128 × 128 cores with 256 KiB, two of 128 lanes with 2 KiB, a global buffer of 128 MiB."""


def test_tpu_v4_has_the_published_area() -> None:
    """The area limit of the paper: 278.82668 mm²."""
    assert area_um2(load_architecture("tpu-v4", ROOT / "config"), FIGURES) == pytest.approx(
        TPU_V4_MM2 * 1e6, rel=1e-12
    )
    assert round(TPU_V4_MM2, 5) == 278.82668


def test_areas_are_sums_of_the_technologys_figures() -> None:
    """On random architectures of the space, the sum of components agrees to 1e-9."""
    rng = np.random.default_rng(0)
    chips, expected = [], []
    for number in range(300):
        tc, vc = (int(2**x) for x in rng.integers(0, 13, 2))
        x, y = (int(2**x) for x in rng.integers(1, 9, 2))
        glb = int(2 ** rng.integers(1, 8))
        expected.append(
            tc * (x * y * FIGURES.mac_tc + FIGURES.l2[max(1, x * y // 64)])
            + vc * (x * FIGURES.mac_vc + FIGURES.l2[max(1, x // 64)])
            + FIGURES.glb[glb]
        )
        chips.append(Architecture(name=f"a{number}", num_tc=tc, num_vc=vc, pe_x=x, pe_y=y, glb_mib=glb))
    assert describe(chips, FIGURES)["area_um2"].tolist() == pytest.approx(expected, rel=1e-9)


def test_a_published_capacity_has_its_published_area() -> None:
    """Published capacities are looked up, not interpolated."""
    sizes = np.array(sorted(FIGURES.l2))
    areas, between = buffer_area_um2(sizes, FIGURES.l2)
    assert areas.tolist() == [FIGURES.l2[size] for size in sizes]
    assert not between.any()


def test_between_capacities_the_area_is_log_linear() -> None:
    """At the geometric mean of two capacities the area is the geometric mean, marked as interpolated."""
    areas, between = buffer_area_um2(np.array([np.sqrt(64.0 * 128.0)]), FIGURES.l2)
    assert areas[0] == pytest.approx(np.sqrt(FIGURES.l2[64] * FIGURES.l2[128]))
    assert between.all()


def test_beyond_the_capacities_the_last_slope_goes_on() -> None:
    """Twice the largest capacity has the growth of the last doubling; likewise below the smallest."""
    (large, small), between = buffer_area_um2(np.array([2048.0, 0.5]), FIGURES.l2)
    assert large / FIGURES.l2[1024] == pytest.approx(FIGURES.l2[1024] / FIGURES.l2[512])
    assert FIGURES.l2[1] / small == pytest.approx(FIGURES.l2[2] / FIGURES.l2[1])
    assert between.all()


@given(st.floats(0.1, 1e6), st.floats(1.0001, 10.0))
def test_a_larger_buffer_is_larger(capacity: float, factor: float) -> None:
    """At published capacities, between them and beyond."""
    for figures in (FIGURES.l2, FIGURES.glb):
        (small, large), _ = buffer_area_um2(np.array([capacity, capacity * factor]), figures)
        assert small < large
