"""`phaze chip` answers which chip to build, in words and as a file, and refuses what cannot be answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

import phaze
from phaze.base.errors import PhazeError
from phaze.commands.chip import ChosenChip
from phaze.spec.chip_choice import ChipChoice
from phaze.spec.documents import read_as
from tests.commands import invoke

if TYPE_CHECKING:
    from phaze.plan.answer.chip_choice import ChipChooser

SMALL = ["gpt2", "--devices", "4", "--sequence", "512", "--gbs", "8", "--gap", "0.05"]
GRID = ["--sweep", "pe_x=128", "--sweep", "pe_y=128", "--sweep", "num_tc=2,4", "--sweep", "num_vc=16,64"]
MISTAKES = {
    ("--area-limit", "1mm2"): ("no design of the grid has 30 to 100 % of that area", "designs take 3.36 to"),
    ("--area-limit", "90000mm2", "--sweep", "num_tc=2", "--sweep", "num_vc=2"): (
        "--area-limit 90000.0: no design of the grid has 30 to 100 % of that area",
        "designs take",
    ),
    ("--area-limit", "1mm2", "--objective", "area"): ("no design of the grid has 0 to 100 %", "designs take"),
    ("--network", "2@1e9"): ("--network: has 2 devices, and --devices asks for 4", "at least 4 devices"),
    ("--network", "4"): ("must be DEVICES@BYTES_PER_S of every level, got 4", "8@450e9"),
    (
        "--sweep",
        "num_tc=1",
        "--sweep",
        "num_vc=1",
        "--sweep",
        "pe_x=8",
        "--sweep",
        "pe_y=8",
        "--sweep",
        "glb_mib=2",
    ): (
        "the space has only the design tc1-vc1-8x8-glb2",
        "pass more values with --sweep",
    ),
    ("--hbm", "x"): ("--hbm: must be GiB separated by commas, got x", "--hbm 64,96"),
    ("--hbm", "0"): ("--hbm: must be positive, got 0", "--hbm 64,96"),
    ("--sweep", "pe_z=3"): ("--sweep: pe_z: is not a size of a design", "did you mean"),
    ("--explain", "glb_mib"): ("--explain: must be KEY=VALUE", ""),
    ("--technology", "3nm"): ("there is no technology '3nm'", "known are"),
    ("--objective", "cost"): ("--objective cost: needs the prices of a mm2", "--price-mm2 0.3USD"),
    ("--price-mm2", "1"): ("--price-gib is missing", "pass both prices"),
    ("--price-mm2", "1USD", "--price-gib", "1EUR"): (
        "--price-gib: must have the currency of --price-mm2, USD, got EUR",
        "",
    ),
    ("--price-mm2", "0", "--price-gib", "1"): ("--price-mm2: must be a finite number > 0, got 0", ""),
}


@pytest.mark.parametrize(("options", "texts"), MISTAKES.items(), ids="".join)
def test_mistakes_are_told_before_the_search(options: tuple[str, ...], texts: tuple[str, str]) -> None:
    with pytest.raises(PhazeError) as error:
        invoke("chip", *SMALL, *options)
    assert texts[0] in str(error.value)
    assert texts[1] in error.value.fix


def test_models_are_named_once() -> None:
    with pytest.raises(PhazeError, match="models must be distinct"):
        invoke("chip", "gpt2,gpt2")


@pytest.mark.slow
def test_the_answer_fits_a_terminal_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "CHIP.json"
    options = ["--hbm", "8,16", "--explain", "glb_mib=2", "--fix", "cp=1,vp=1"]
    told = invoke("chip", *SMALL, *GRID, *options, "-o", str(file)).stdout
    assert all(len(line) <= 80 for line in told.splitlines())
    choice = read_as(ChipChoice, file)
    assert choice.designs > 1
    assert choice.question.hbm_gib == (8, 16)
    assert [row.role for row in choice.others] == ["glb_mib=2", "built", "template"]
    assert choice.chosen.chip.name in told
    assert "With glb_mib=2" in told
    assert "At the edge of the grid: num_tc 4 is the largest" in " ".join(told.split())
    (bound,) = choice.bounds
    assert bound.bound <= bound.score
    assert choice.gap <= 0.06
    for row in (choice.chosen, *choice.others):
        for on_chip in row.plans:
            assert on_chip.plan is not None
            assert on_chip.plan.layout.cp == 1
            assert on_chip.plan.by("prudent") >= bound.bound or row.role != "all"
    answer = phaze.ChipAnswer(ChosenChip(choice, cast("ChipChooser", None)))
    assert str(answer) in told
    table = answer.table()
    assert list(table["role"]) == ["all", "glb_mib=2", "built", "template"]
    assert table["step_s"][0] == pytest.approx(bound.score, rel=0.01)
    assert answer.to_json() == file.read_text()


def test_a_call_from_python_is_checked_like_the_command() -> None:
    with pytest.raises(PhazeError, match="--network: has 2 devices"):
        phaze.chip("gpt2", devices=4, network="2@1e9")
    with pytest.raises(PhazeError, match="2 networks are cases of --robust, which is not given"):
        phaze.chip("gpt2", devices=4, network=["4@1e9", "4@2e9"])
    with pytest.raises(TypeError, match="no option area_limits; did you mean area_limit"):
        phaze.chip("gpt2", area_limits="1mm2")  # type: ignore[call-arg]
