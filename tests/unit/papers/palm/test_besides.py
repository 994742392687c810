"""Printed tables on tiled accelerators, compared with ours."""

from __future__ import annotations

from pathlib import Path

from phaze.papers.palm.besides import SEEN, UNSEEN, besides
from phaze.papers.publications import MeasuredRun, PublishedTiled

PALM = PublishedTiled.from_file(Path("config/published/palm-2024.yaml"))
SMALL: dict[str, int | str] = {
    "hidden": 1024, "heads": 16, "layers": 2, "seq": 512, "vocab": 51200, "gpus": 1, "global_batch": 8,
    "microbatch": 8, "recompute": "full",
}  # fmt: skip


def test_table_iv_is_predicted_with_a_constant_that_has_seen_its_rows_and_with_one_that_has_not() -> None:
    """Other long runs show that kernels reach a small share of the HBM bandwidth."""
    row = PALM.gpus["t-18b"].model_copy(update={"run": SMALL})
    slow = MeasuredRun(measured_s=10.0, run={**SMALL, "layers": 4})
    rows = besides(
        ("IV",), PALM.model_copy(update={"gpus": {"t-18b": row}, "other_runs": {"slow": slow}})
    ).set_index("reading")
    assert set(rows.index) == {SEEN, UNSEEN}
    assert rows.loc[UNSEEN, "ours"] < rows.loc[SEEN, "ours"]
    assert "0.77 of HBM's bandwidth" in rows.loc[SEEN, "explanation"]
    assert "0.30 of HBM's bandwidth" in rows.loc[UNSEEN, "explanation"]
    alone = besides(("IV",), PALM.model_copy(update={"gpus": {"t-18b": row}, "other_runs": {}}))
    assert alone["reading"].tolist() == [SEEN]
