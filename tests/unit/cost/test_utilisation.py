"""Model FLOPs utilisation follows the formulas of PaLM, Appendix B."""

import pytest

from phaze.cost.utilisation import model_flops_utilisation, peak_flops_per_s


def test_palm_540b_reaches_the_utilisation_that_its_paper_states() -> None:
    # Chowdhery et al. 2022: 118 layers, 48 heads of 256, 2048 tokens, 6144 TPUv4 chips of 275 TFLOP/s,
    # 238.3 thousand tokens per second, 46.2 %.
    token_flops = 6.0 * 540_350_000_000 + 12.0 * 118 * 48 * 256 * 2048
    assert model_flops_utilisation(238.3e3, token_flops, 6144 * 275e12) == pytest.approx(0.462, abs=0.001)


def test_the_peak_of_tpu_v4_like_cores_is_that_of_its_multiply_accumulate_units() -> None:
    assert peak_flops_per_s(8, 128, 128, 1.05e9) == pytest.approx(2 * 131072 * 1.05e9)
