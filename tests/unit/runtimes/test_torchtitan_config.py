"""Changes for torchtitan give a recipe, in Python and, for schedules that it has no name for, in CSV."""

import ast
import re

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import emit_torchtitan, schedule_csv
from phaze.runtimes.torchtitan_layout import modules
from tests.unit.runtimes.recipes import drawn, small


def changes(text: str) -> dict[str, object]:
    """Values of the settings that a file of changes assigns."""
    (function,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return {
        ast.unparse(line.targets[0]).removeprefix("config."): (
            ast.unparse(line.value) if isinstance(line.value, ast.Call) else ast.literal_eval(line.value)
        )
        for line in function.body
        if isinstance(line, ast.Assign)
    }


def test_the_degrees_and_batches_are_those_of_the_recipe() -> None:
    for recipe in drawn(TORCHTITAN, 40):
        layout, said = recipe.layout, changes(emit_torchtitan(recipe).files["plan.py"])
        degrees = [said[f"parallelism.{kind}_parallel_degree"] for kind in ("tensor", "context", "pipeline")]
        copies = [said[f"parallelism.data_parallel_{kind}_degree"] for kind in ("replicate", "shard")]
        assert degrees == [layout.tp, layout.cp, layout.pp]
        assert copies == ([layout.dp, 1] if layout.zero == 0 else [1, layout.dp])
        steps = recipe.global_batch // (said["training.local_batch_size"] * layout.dp)
        pieces = said["training.local_batch_size"] // layout.microbatch
        assert steps * pieces == layout.microbatches(recipe.global_batch)
        assert 1 in (steps, pieces)
        if layout.pp > 1:
            assert said["parallelism.module_fqns_per_model_part"] == modules(recipe.blocks)


def test_stages_hold_the_modules_of_a_decoder() -> None:
    assert modules((0, 2, 1)) == [
        ["tok_embeddings"],
        ["layers.0", "layers.1"],
        ["layers.2", "norm", "lm_head"],
    ]


def test_a_plan_is_a_function_of_a_configuration() -> None:
    layout = Layout(tp=2, pp=3, dp=2, microbatch=2, zero=3, recompute="full")
    emitted = emit_torchtitan(small(layout, "1f1b", (2, 2, 2), (2, 2, 2)))
    said = changes(emitted.files["plan.py"])
    assert emitted.beyond == ()
    assert said["activation_checkpoint"] == "FullAC.Config()"
    assert said["parallelism.fsdp_reshard_after_forward"] == "always"
    assert said["parallelism.enable_sequence_parallel"] is False
    assert said["parallelism.pipeline_parallel_schedule"] == "1F1B"
    assert said["training.local_batch_size"] == 12
    assert said["training.disable_cuda_graphs"] is True


def test_torchtitan_recomputes_all_blocks_or_none() -> None:
    emitted = emit_torchtitan(small(Layout(pp=2, recompute="full"), "gpipe", (3, 3), (3, 1)))
    assert emitted.beyond == ("recomputed: 3*2 instead of 3 1",)


def test_zero_bubbles_are_a_file_of_passes_that_do_not_wait_for_each_other() -> None:
    recipe = small(Layout(pp=3, dp=4), "zb-h1", (2, 2, 2))
    emitted = emit_torchtitan(recipe)
    assert changes(emitted.files["plan.py"])["parallelism.pipeline_parallel_schedule_csv"] == "schedule.csv"
    rows = [line.split(",") for line in emitted.files["schedule.csv"].splitlines()]
    expected = {(kind, m) for kind in "FIW" for m in range(6)}
    done: set[tuple[int, str, int]] = set()
    for rank, row in enumerate(rows):
        cells = [re.fullmatch(rf"{rank}([FIW])(\d+)", cell) for cell in row]
        assert sorted((cell[1], int(cell[2])) for cell in cells if cell) == sorted(expected)
    at = [0] * len(rows)
    while sum(at) < sum(map(len, rows)):
        ready = [r for r, row in enumerate(rows) if at[r] < len(row) and can_run(row[at[r]], done, len(rows))]
        assert ready, "all ranks wait for each other"
        for r in ready:
            stage, kind, m = re.fullmatch(r"(\d+)([FIW])(\d+)", rows[r][at[r]]).groups()  # type: ignore[union-attr]
            done.add((int(stage), kind, int(m)))
            at[r] += 1


def can_run(cell: str, done: set[tuple[int, str, int]], stages: int) -> bool:
    """True if all inputs of a pass are ready."""
    found = re.fullmatch(r"(\d+)([FIW])(\d+)", cell)
    assert found
    stage, kind, m = int(found[1]), found[2], int(found[3])
    if kind == "F":
        return stage == 0 or (stage - 1, "F", m) in done
    if kind == "W":
        return (stage, "I", m) in done
    return (stage, "F", m) in done and (stage == stages - 1 or (stage + 1, "I", m) in done)


def test_an_interleaved_order_goes_round_the_stages() -> None:
    rows = schedule_csv(small(Layout(pp=2, vp=2, dp=6), "interleaved", (2, 2, 1, 1))).splitlines()
    assert rows[0].startswith("0F0,0F1,2F0,2F1")
    assert rows[1].startswith("1F0,1F1,3F0,3B0")


def test_what_torchtitan_cannot_run_is_not_written() -> None:
    with pytest.raises(PhazeError, match="torchtitan: key-value heads 4 must be a multiple of tp, got 12"):
        emit_torchtitan(small(Layout(tp=12), "1f1b", (6,)))
