"""Expert networks compared with measured ones, and constants fitted to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.experts import products_s
from phaze.cost.products import Products
from phaze.spec.speeds.experts import ExpertSpeed
from phaze.spec.system import Device
from phaze.spec.systems import load_device
from phaze.validate.constants import Site
from phaze.validate.parts.base import in_a_loop, site_of
from phaze.validate.parts.products import ExpertsPart, network_named
from phaze.validate.parts.registry import kernel_files
from phaze.validate.parts.scores import ComparedKernels, compare
from tests.unit.validate.expert_products import fitted_each

PART = ExpertsPart()
OWN = kernel_files(PART)
SHARED = Path("../shared/data/kernels/experts_forward.csv")


def the_site(device: str) -> Site:
    """Site of a device at its full clock."""
    site = site_of(device)
    assert site is not None
    return in_a_loop(site)


def with_speed(site: Site, speed: ExpertSpeed) -> Site:
    """Site whose kernel for all experts has these constants in half precision."""
    device: Device = site.device.model_copy(update={"experts": {"grouped": {"bf16": speed}}})
    return Site(site.cluster, device, site.stack, site.folder)


def test_networks_of_experts_are_as_long_as_measured() -> None:
    """Half of all within 10 %, nine of ten within 25 %."""
    score = compare(PART, OWN).score
    assert score.answered == score.rows
    assert score.median <= 0.07
    assert score.p90 <= 0.2


@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared tables")
def test_networks_of_experts_are_as_long_as_measured_in_the_whole_table() -> None:
    """Kernels without a price are not answered."""
    found = compare(PART, [SHARED])
    assert found.score.median <= 0.07
    assert found.score.p90 <= 0.2
    answered = np.isfinite(found.predicted_s)
    assert not answered[found.rows["kernel"].str.startswith("sglang").to_numpy()].any()
    assert answered.sum() > 5000


def test_constants_hold_for_shapes_that_they_have_not_seen() -> None:
    """Every other shape is left out of the fit."""
    rows = PART.read(OWN[0])
    rows = rows[rows["device"] == "H100"].reset_index(drop=True)
    shapes = rows.groupby(["model", "ep", "tokens"], sort=True).ngroup().to_numpy()
    site = the_site("H100")
    seen = PART.fitted(rows[shapes % 2 == 0], site)
    hidden = rows[shapes % 2 == 1]
    score = ComparedKernels(PART, hidden, PART.predicted_s(hidden, seen)).score
    assert score.median <= 0.1
    assert score.p90 <= 0.25


def test_a_fit_recovers_planted_constants() -> None:
    planted = ExpertSpeed(reached=0.6, hbm=0.7, passes=0.5, start_s=2e-5)
    site = with_speed(the_site("B200"), planted)
    rows = PART.read(OWN[0])
    rows = rows[(rows["device"] == "B200") & (rows["precision"] == "bf16")].reset_index(drop=True)
    rows["measured_s"] = PART.predicted_s(rows, site)
    found = PART.fitted(rows, the_site("B200")).device.experts["grouped"]["bf16"]
    assert found.model_dump() == pytest.approx(planted.model_dump(), rel=0.01)


def test_models_are_known_by_the_beginning_of_their_name() -> None:
    hidden, own = network_named("nemotron-3-nano")
    assert (hidden, own.count, own.per_token, own.width, own.gated) == (2688, 128, 6, 1856, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama2-7b"}, "model llama2-7b has no experts"),
        ({"ep": "3"}, "ep must divide the 128 experts of qwen3-30b-a3b, got 3"),
        ({"distribution": "even"}, "load must be balanced"),
    ],
)
def test_bad_rows_are_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    row = {
        "device": "H100", "precision": "bf16", "model": "qwen3-30b-a3b", "kernel": "grouped", "ep": "8",
        "tokens": "4096", "distribution": "balanced", "latency_ms": "1",
    }  # fmt: skip
    table = tmp_path / "own.csv"
    pd.DataFrame([{**row, **changes}]).to_csv(table, index=False)
    with pytest.raises(PhazeError, match=message):
        PART.read(table)


def test_products_of_experts_one_by_one_reach_nearly_what_dense_ones_do() -> None:
    """Half within 10 %; for the constants of the B200, and of the A100."""
    grouped, dense = (
        pd.read_csv(OWN[0].with_name(f"{name}.csv")) for name in ("expert-products", "gradient-products")
    )
    for name, device, least in (("A100 PCIe", "a100-80gb", 0.93), ("B200", "b200", 0.9)):
        own = load_device(device)
        fit = fitted_each(*(table[table["device"] == name] for table in (grouped, dense)), own)
        assert fit.median <= 0.1
        assert least < fit.of_dense < 1
        speed = own.experts["each"]["bf16"]
        assert speed.reached == pytest.approx(fit.of_dense * own.products["bf16"].reached, abs=0.002)
        assert speed.hbm == pytest.approx(fit.speed.hbm, abs=0.005)


def test_experts_of_amd_devices_are_near() -> None:
    """Half of the rows that the constants are fitted to: median error ≤ 10 %, 90th percentile ≤ 25 %."""
    groups = compare(PART, [OWN[0].with_name("amd-experts.csv")]).by("device", "precision")
    precisions = {"MI300X": {"bf16", "fp8-block"}, "MI355X": {"bf16", "fp8", "fp8-block", "mxfp8"}}
    assert {(group["device"], group["precision"]) for group in groups} == {
        (device, precision) for device, of_device in precisions.items() for precision in of_device
    }
    for group in groups:
        assert group["answered"] == group["rows"]
        assert float(str(group["median"])) <= 0.10
        assert float(str(group["p90"])) <= 0.25


def test_a_kernel_with_smaller_blocks_pads_fewer_rows() -> None:
    """33 rows of each of 8 experts: two blocks of 32, or one of 128."""
    products = Products(np.array([[8, 33, 1024, 4096]]), np.array([False]), 2)
    speed = ExpertSpeed(reached=0.6, hbm=0.95, block=32)
    device = the_site("B200").device.model_copy(update={"num_tc": 1})
    small_s, large_s = (
        products_s(products, device, speed.model_copy(update={"block": block}))[0, 0] for block in (32, 128)
    )
    assert small_s == pytest.approx(large_s / 2, rel=0.05)


def test_sizes_stand_for_a_model_that_has_no_file() -> None:
    hidden, experts = network_named("7168x256x257x9")
    assert (hidden, experts.width, experts.count, experts.per_token, experts.gated) == (
        7168,
        256,
        257,
        9,
        True,
    )
