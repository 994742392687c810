"""Measured collectives compared with predictions, and NCCL's constants fitted to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.validate.constants import Site
from phaze.validate.parts.collectives import DIRECT, Collectives, fitted_speeds
from phaze.validate.parts.registry import kernel_files
from phaze.validate.parts.scores import compare
from tests.effort import if_every

PART = Collectives()
MEASURED = kernel_files(PART)[0]
FITTED = {
    "a100-selene": ("A100-SXM4-80GB",),
    "h100": ("H100-SXM", "H200-SXM"),
    "b200": ("B200-SXM", "GB200", "GB200 (2.23)", "GB300"),
    "a100-vtrain": ("A100-SXM4-80GB (vTrain)",),
}
"""Devices whose rows are used to fit a system's constants."""
GRID = [
    (kind, ranks, 2**power)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for ranks in (2, 4, 8)
    for power in range(8, 29)
]


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_most_collectives_are_near_what_was_measured() -> None:
    """For every device: large ones within 8 %, small ones within 25 %."""
    rows = PART.read(MEASURED)
    rows = rows.assign(error=np.abs(PART.predicted(rows) / rows["measured_s"] - 1), size=PART.kinds(rows))
    rows = rows[rows["source"] != "vTrain"]
    by_size = rows.groupby(["device", rows["size"].str.split(", ").str[1]])["error"].median().unstack()
    assert (by_size["≥ 8 MB"] <= 0.08).all()
    assert (by_size["≤ 256 KiB"] <= 0.10).all()
    assert (by_size["between"] <= 0.12).all()
    small = (
        rows[rows["size"].str.endswith("≤ 256 KiB")].groupby(["device", "kind", "ranks"])["error"].median()
    )
    assert (small <= 0.25).all()


def test_all_reduces_of_vtrain_are_near_what_it_measured() -> None:
    rows = PART.read(MEASURED)
    rows = rows[rows["source"] == "vTrain"]
    errors = np.abs(PART.predicted(rows, "a100-vtrain") / rows["measured_s"] - 1)
    assert np.median(errors) <= 0.03
    assert errors.max() <= 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    "system",
    ["h100", "a100-vtrain", *(pytest.param(name, marks=if_every) for name in ("a100-selene", "b200"))],
)
def test_constants_of_systems_are_those_that_a_fit_returns(system: str) -> None:
    rows, site = PART.read(MEASURED), Site.load(system)
    fitted = PART.fitted(rows[rows["device"].isin(FITTED[system])], site).cluster.levels[0].nccl
    assert fitted is not None
    known = site.cluster.levels[0].nccl
    assert dict(fitted) == pytest.approx(dict(known or {}), rel=2e-2)  # other builds of SciPy


def test_a_fit_finds_the_constants_that_rows_are_made_with() -> None:
    site = Site.load("h100")
    rows = pd.DataFrame(GRID, columns=["kind", "ranks", "elements"])
    rows = rows.assign(measured_s=PART.predicted_s(rows, site))
    fitted = fitted_speeds(rows, site.cluster.levels[0].bandwidth_bytes_per_s, switches_add=True)
    known = site.cluster.levels[0].nccl
    assert known is not None
    for name, value in fitted:
        if not name.startswith("ll128"):  # only a few sizes of it are fastest
            assert value == pytest.approx(getattr(known, name), rel=0.05), name


def test_a_fit_without_all_to_alls_keeps_their_constants() -> None:
    site = Site.load("h100")
    rows = pd.DataFrame(
        [row for row in GRID if row[0] != "all_to_all"], columns=["kind", "ranks", "elements"]
    )
    rows = rows.assign(measured_s=1.5 * PART.predicted_s(rows, site))
    before, after = site.cluster.levels[0].nccl, PART.fitted(rows, site).cluster.levels[0].nccl
    assert isinstance(before, NcclSpeeds)
    assert isinstance(after, NcclSpeeds)
    assert all(getattr(after, name) == getattr(before, name) for name in DIRECT)
    assert after.start_s > 1.2 * before.start_s


def test_collectives_over_several_nodes_are_predicted_and_those_beyond_all_are_not() -> None:
    site = Site.load("h100")
    rows = pd.DataFrame([("all_reduce", ranks, 2**20) for ranks in (8, 64, 2**20)])
    rows.columns = pd.Index(["kind", "ranks", "elements"])
    found = PART.predicted_s(rows, site)
    assert found[0] < found[1]
    assert np.isnan(found[2])


def test_tables_of_other_projects_are_read_by_their_own_columns(tmp_path: Path) -> None:
    head = "dev,op_name,nccl_dtype,num_gpus,message_size_as_given,latency_ms,source\n"
    path = table(tmp_path / "a.csv", f"{head}H100-SXM,alltoall,half,8,134217728,0.764,nccl-tests\n")
    found = compare(PART, [path])
    assert found.score.answered == 1
    assert found.score.median < 0.1
    assert found.by("kind")[0]["kind"] == "all_to_all of 8, ≥ 8 MB"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("H100-SXM,half,all_reduce,1,1024,0.01", "ranks must be at least 2"),
        ("H100-SXM,half,gather,8,1024,0.01", "kind must be one of all_reduce"),
        ("H100-SXM,half,all_gather,8,134217728,0.1", "latency_ms must be at least"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path: Path, row: str, message: str) -> None:
    path = table(tmp_path / "a.csv", f"device,precision,kind,ranks,elements,latency_ms\n{row}\n")
    with pytest.raises(PhazeError, match=message):
        PART.read(path)
