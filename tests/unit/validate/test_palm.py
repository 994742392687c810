"""PaLM 540B on 6,144 TPU v4 (Chowdhery et al., JMLR 2023, Sections 4 and 5): nothing is fitted to this run.

Two pods of 3,072 chips, tensor parallelism of 12, 256-way sharded data parallelism in each pod, no pipeline;
238,300 tokens/s at a batch of 2,048 × 2,048 tokens, 46.2 % of the peak. Hardware FLOPs with what is computed
again are 57.8 %: three quarters of a forward pass, which full recomputation without a block's last product
is nearest to.
"""

from pathlib import Path

import pytest

from phaze.validate.rows import RunRow, read_rows
from phaze.validate.table import measured_of, predict_rows

ROWS: tuple[RunRow, ...] = read_rows(Path(__file__).resolve().parents[2] / "data" / "palm" / "runs.csv")[1]
TOKENS_PER_S = 238.3e3
PARAMETERS = 540.35e9


def test_the_printed_figures_agree() -> None:
    """Step time, tokens/s, and model FLOP/s by the paper's count: 6 N + 12 L H Q T a token."""
    assert measured_of(ROWS, "measured_s") == pytest.approx(2048 * 2048 / TOKENS_PER_S, rel=1e-3)
    flops = 6 * PARAMETERS + 12 * 118 * 48 * 256 * 2048
    assert flops * TOKENS_PER_S / (6144 * 275e12) == pytest.approx(0.462, abs=5e-4)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.stack))
def test_a_step_of_palm_is_met(row: RunRow) -> None:
    """Within 15 %, with kernels of the as-built TPU v4 and under a static schedule: 16.3 and 16.9 s."""
    predicted = predict_rows([row], None)
    error = predicted["time_s"].item() / measured_of([row], "measured_s").item() - 1
    assert abs(error) < 0.15
    assert error == pytest.approx({"maxtext": -0.074, "chip": -0.041}[row.stack], abs=0.005)
