"""Accelerators side by side, and variants of one."""

from tests.commands import invoke_json

SMALL = "place -m gpt2 --devices 8 --global-batch 32 --tensor 1 --microbatch 1"


def rows(*arguments: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = invoke_json(SMALL, *arguments)
    return found


def test_a_row_is_the_placement_on_that_accelerator() -> None:
    found = rows("-a", "tpu-v4,phaze-common")
    assert [row["architecture"] for row in found] == ["tpu-v4", "phaze-common", "tpu-v4-as-built"]
    alone = invoke_json(SMALL, "-a", "tpu-v4")
    assert found[0]["step_s"] == alone["time_per_batch_s"]
    assert found[0]["mfu"] == alone["mfu"]
    assert all(row["watts"] > 0 and row["area_mm2"] > 0 for row in found)


def test_a_sweep_has_every_combination() -> None:
    found = rows("-a", "tpu-v4", "--sweep", "num_tc=1,2", "--sweep", "glb_mib=64,128")
    named = [f"tpu-v4-num_tc{tc}-glb_mib{glb}" for tc in (1, 2) for glb in (64, 128)]
    assert [row["architecture"] for row in found] == [*named, "tpu-v4-as-built"]
    assert found[0]["step_s"] > found[2]["step_s"], "two cores are faster than one"
    assert found[0]["area_mm2"] < found[1]["area_mm2"] < found[3]["area_mm2"]
