"""Accelerators side by side, and variants of one."""

import pytest

from tests.commands import invoke_json

FIXED = "--fix cp=1,tp=1,pp=1,zero=1"
SMALL = f"place -m gpt2 --devices 8 --global-batch 32 --sequence 512 {FIXED}"


def rows(*arguments: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = invoke_json(SMALL, *arguments)
    return found


@pytest.mark.slow
def test_a_row_is_the_plan_on_that_accelerator() -> None:
    found = rows("-a", "tpu-v4,phaze-common")
    assert [row["architecture"] for row in found] == ["tpu-v4", "phaze-common", "tpu-v4-as-built"]
    alone = invoke_json(SMALL, "-a", "tpu-v4")
    (phaze,) = (row for row in alone["planners"] if row["planner"] == "phaze")
    assert found[0]["step_s"] == alone["time_s"]
    assert found[0]["mfu"] == alone["mfu"]
    assert (found[0]["claimed_s"], found[0]["priced_s"]) == (phaze["planned_s"], phaze["time_s"])
    assert all(row["area_mm2"] > 0 for row in found)


@pytest.mark.slow
def test_a_sweep_has_every_combination() -> None:
    found = rows("-a", "tpu-v4", "--sweep", "num_tc=1,2", "--sweep", "glb_mib=64,128")
    named = [f"tpu-v4-num_tc{tc}-glb_mib{glb}" for tc in (1, 2) for glb in (64, 128)]
    assert [row["architecture"] for row in found] == [*named, "tpu-v4-as-built"]
    assert found[0]["step_s"] > found[2]["step_s"], "two cores are faster than one"
    assert found[0]["area_mm2"] < found[1]["area_mm2"] < found[3]["area_mm2"]
