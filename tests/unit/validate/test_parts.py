"""Tables of measured kernels: parsing, refusals by line, and a device fitted to own kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.systems import load_device, system_of_device
from phaze.validate.parts.base import in_a_loop, site_of
from phaze.validate.parts.products import ProductsPart
from phaze.validate.parts.registry import PARTS, kernel_files
from tests.commands import assert_refused, invoke, invoke_json

HEAD = "device,gemm_dtype,m,n,k,latency_ms,source\n"
GOOD = "H100-SXM,bfloat16,4096,4096,4096,0.21,mine\n"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("H100-SXM,bfloat16,0,4096,4096,0.2,mine", "m must be a whole number from 1"),
        ("H100-SXM,bfloat16,-4,4096,4096,0.2,mine", "m must be a whole number from 1"),
        ("H100-SXM,bfloat16,1.5,4096,4096,0.2,mine", "m must be a whole number from 1"),
        ("H100-SXM,fp7,4096,4096,4096,0.2,mine", "gemm_dtype must be one of bf16, fp8"),
        ("H100-SXM,bfloat16,4096,4096,4096,nan,mine", "latency_ms must be a number > 0"),
        ("H100-SXM,bfloat16,16384,16384,16384,0.1,mine", "latency_ms must be at least 8.89"),
        (",bfloat16,4096,4096,4096,0.2,mine", "device must be given"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, row: str, said: str) -> None:
    table = tmp_path / "kernels.csv"
    table.write_text(HEAD + GOOD + row + "\n")
    assert_refused(f"kernels.csv: line 3: {said}", "validate --part products", table)


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "kernels.csv"
    table.write_text("device,m,n\nH100-SXM,1,1\n")
    assert_refused(r"columns gemm_dtype, k, latency_ms are missing", "validate --part products", table)
    assert_refused(r"--part must be one of products, .*, got kernels", "validate --part kernels", table)
    table.write_text(HEAD + GOOD.replace("H100-SXM", "RTX 9090"))
    assert_refused("no row of RTX 9090 can be priced", "validate --part products", table)


def test_errors_are_of_all_rows_and_by_device_and_precision(tmp_path: Path) -> None:
    """Rows of unknown devices are counted, but not answered."""
    table, out = tmp_path / "kernels.csv", tmp_path / "out.csv"
    table.write_text(HEAD + GOOD + GOOD.replace("bfloat16", "fp8") + GOOD.replace("H100-SXM", "RTX 9090"))
    found = invoke_json("validate --part products", table, "-o", out)
    assert (found["rows"], found["answered"]) == (3, 2)
    assert [(one["device"], one["precision"], one["answered"]) for one in found["groups"]] == [
        ("H100-SXM", "bf16", 1), ("H100-SXM", "fp8", 1), ("RTX 9090", "bf16", 0),
    ]  # fmt: skip
    assert {"median", "p90", "bias"} < set(found["groups"][0])
    assert "predicted_s" in out.read_text().splitlines()[0]


def test_tables_of_the_configuration_are_answered_whole() -> None:
    for part in PARTS.values():
        found = invoke_json("validate --part", part.name)
        assert found["rows"] == found["answered"] > 100, part.name
        assert found["median"] <= 0.1, part.name


def test_names_of_devices_are_those_of_tables() -> None:
    assert system_of_device("H100 (sglang)") == system_of_device("h100") == "h100"
    site = site_of("H100-SXM")
    assert site is not None
    assert site.device.name == "h100-80gb"
    assert in_a_loop(site).device.sustained_clock == 1.0
    assert site_of("RTX 9090") is None


def test_a_device_is_fitted_to_kernels_and_keeps_the_rest(tmp_path: Path) -> None:
    """From kernels that take a tenth longer than those of the H100."""
    part, slow, own = ProductsPart(), tmp_path / "slow.csv", tmp_path / "own.yaml"
    rows = part.read(kernel_files(part)[0])
    mine = rows[(rows["device"] == "H100-SXM") & (rows["precision"] == "bf16")]
    mine = mine.assign(part="products", latency_ms=1.1e3 * part.predicted(mine))
    mine[["part", "device", "precision", "m", "n", "k", "latency_ms"]].to_csv(slow, index=False)
    found = invoke_json("calibrate --kernels", slow, "--device", "h100-80gb", "-o", own)
    assert found["products"]["before"]["bias"] == pytest.approx(1 / 1.1 - 1, abs=1e-6)
    assert found["products"]["after"]["median"] < 0.02
    before, after = load_device("h100-80gb"), load_device(str(own))
    assert after.products["bf16"].reached == pytest.approx(before.products["bf16"].reached / 1.1, rel=0.03)
    assert after.sustained_clock == before.sustained_clock
    assert after.attention == before.attention


def test_kernels_of_several_devices_are_fitted_to_none(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    with pytest.raises(PhazeError, match="must have kernels of one device, got A100"):
        invoke("calibrate --kernels", kernel_files(ProductsPart())[0], "--device", "h100-80gb", "-o", own)
    with pytest.raises(PhazeError, match="--kernels needs --device"):
        invoke("calibrate --kernels", kernel_files(ProductsPart())[0], "-o", own)
    assert_refused(r"give RUNS.csv with --system, or --kernels with --device", "calibrate -o", own)
    assert not own.exists()


def test_only_published_sources_can_be_left_out() -> None:
    assert_refused("--leave-out must be all or one of bloom-topology-sweep", "validate --leave-out mine")
