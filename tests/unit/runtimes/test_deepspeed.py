"""DeepSpeed's configuration has batch, ZeRO and precision as planned; the rest is listed for the script."""

import json

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.runtimes.deepspeed import DEEPSPEED, emit_deepspeed
from phaze.runtimes.recipe import Recipe
from phaze.spec.system import Stack
from tests.unit.runtimes.recipes import drawn, small

STACK = Stack(overlap=("dp",), gradient_bytes=4)


def told(recipe: Recipe, stack: Stack = STACK) -> dict[str, object]:
    found: dict[str, object] = json.loads(emit_deepspeed(recipe, stack).files["deepspeed.json"])
    return found


def test_batches_and_gradients_are_as_deepspeed_checks_them() -> None:
    for recipe in drawn(DEEPSPEED, 60):
        said, layout = told(recipe), recipe.layout
        sizes = said["train_micro_batch_size_per_gpu"], said["gradient_accumulation_steps"], layout.dp
        assert said["train_batch_size"] == sizes[0] * sizes[1] * sizes[2] == recipe.global_batch
        assert said["zero_optimization"]["stage"] == layout.zero
        assert said["bf16"] == {"enabled": True}
        mixed = said["data_types"]["grad_accum_dtype"] != "bf16"
        assert mixed == (layout.zero > 0)  # without ZeRO another mix is refused
        assert layout.zero < 2 or layout.pp == 1


def test_what_the_script_has_to_say_is_named_with_its_values() -> None:
    layout = Layout(
        tp=2, pp=3, dp=2, microbatch=2, sequence_parallel=True, zero=1, recompute="full"
    )  # fmt: skip
    whole = emit_deepspeed(small(layout, "1f1b", (2, 2, 2), (2, 2, 2)), STACK)
    widths = (
        "model small",
        "rotary base",
        "norm epsilon",
        "sequence 240",
        "tp 2",
        "pp 3",
        "sequence_parallel True",
        "blocks 2*3",
    )
    assert whole.elsewhere == widths
    assert json.loads(whole.files["deepspeed.json"])["pipeline"] == {"activation_checkpoint_interval": 1}
    part = emit_deepspeed(small(layout, "1f1b", (2, 2, 2), (2, 1, 1)), STACK)
    assert part.elsewhere == (*widths, "recompute full of 2 1*2 blocks")
    assert "pipeline" not in json.loads(part.files["deepspeed.json"])
    turns = emit_deepspeed(small(Layout(cp=4, cp_kind="a2a", zero=3), "1f1b", (6,)), STACK)
    assert turns.elsewhere == (
        "model small",
        "rotary base",
        "norm epsilon",
        "sequence 240",
        "cp 4",
        "cp_kind a2a",
    )


def test_gradients_of_a_stack_that_deepspeed_adds_up_otherwise_are_named() -> None:
    replicas, pipeline = (small(layout, "1f1b", blocks) for layout, blocks in (
        (Layout(dp=4), (6,)), (Layout(pp=2, dp=2), (3, 3)),
    ))  # fmt: skip
    assert "bytes of a gradient: 2 instead of 4" in emit_deepspeed(replicas, STACK).beyond
    assert len(emit_deepspeed(pipeline, STACK).beyond) == 1
    assert "bytes of a gradient: 4 instead of 2" in emit_deepspeed(pipeline, Stack()).beyond


@pytest.mark.parametrize(
    ("layout", "schedule", "blocks", "message"),
    [
        (Layout(pp=2, dp=2, zero=2), "1f1b", (3, 3), "incompatible with a pipeline, pp must be 1, got 2"),
        (Layout(pp=2, vp=2), "interleaved", (2, 2, 1, 1), "schedule must be one of 1f1b, got interleaved"),
        (Layout(cp=2), "1f1b", (6,), "cp_kind must be a2a, .* got all_gather with cp 2"),
        (
            Layout(cp=8, cp_kind="a2a"),
            "1f1b",
            (6,),
            "key-value heads 4 / tp must be multiples of cp, .* with cp 8",
        ),
        (Layout(compute="mxfp8"), "1f1b", (6,), "compute must be one of bf16, got mxfp8"),
        (Layout(dp=2, zero=1, offload="optimizer"), "1f1b", (6,), "offload must be one of none, got opti"),
    ],
)
def test_what_deepspeed_cannot_run_is_not_written(
    layout: Layout, schedule: str, blocks: tuple[int, ...], message: str
) -> None:
    with pytest.raises(PhazeError, match=f"deepspeed: .*{message}"):
        emit_deepspeed(small(layout, schedule, blocks), STACK)
