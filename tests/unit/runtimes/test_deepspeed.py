"""DeepSpeed's configuration has batch, ZeRO and precision as planned; the script has the rest."""

import json

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.runtimes.deepspeed import DEEPSPEED
from phaze.runtimes.deepspeed_config import OPTIONS, deepspeed_software, emit_deepspeed, read_deepspeed
from phaze.runtimes.recipe import Recipe
from phaze.spec.system import Stack
from tests.unit.runtimes.examples import SMALL
from tests.unit.runtimes.recipes import drawn, small

STACK = Stack(overlap=("dp",), gradient_bytes=4)


def told(recipe: Recipe, stack: Stack = STACK) -> dict[str, object]:
    sections: dict[str, object] = json.loads(emit_deepspeed(recipe, stack).files["deepspeed.json"])
    return sections


def test_batches_and_gradients_are_as_deepspeed_checks_them() -> None:
    for recipe in drawn(DEEPSPEED, 60):
        sections, layout = told(recipe), recipe.layout
        sizes = sections["train_micro_batch_size_per_gpu"], sections["gradient_accumulation_steps"], layout.dp
        assert sections["train_batch_size"] == sizes[0] * sizes[1] * sizes[2] == recipe.global_batch
        assert sections["zero_optimization"]["stage"] == layout.zero
        assert sections["bf16"] == {"enabled": True}
        mixed = sections["data_types"]["grad_accum_dtype"] != "bf16"
        assert mixed == (layout.zero > 0)  # without ZeRO another mix is refused
        assert layout.zero < 2 or layout.pp == 1


def test_what_the_script_has_to_say_is_named_with_its_values() -> None:
    layout = Layout(
        tp=2, pp=3, dp=2, microbatch=2, sequence_parallel=True, zero=1, recompute="full"
    )  # fmt: skip
    full = emit_deepspeed(small(layout, "1f1b", (2, 2, 2), (2, 2, 2)), STACK)
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
    assert full.user_settings == widths
    assert json.loads(full.files["deepspeed.json"])["pipeline"] == {"activation_checkpoint_interval": 1}
    part = emit_deepspeed(small(layout, "1f1b", (2, 2, 2), (2, 1, 1)), STACK)
    assert part.user_settings == (*widths, "recompute full", "recomputed 2 1*2")
    assert "pipeline" not in json.loads(part.files["deepspeed.json"])
    turns = emit_deepspeed(small(Layout(cp=4, cp_kind="a2a", zero=3), "1f1b", (6,)), STACK)
    assert turns.user_settings == (
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
    assert "bytes of a gradient: 2 instead of 4" in emit_deepspeed(replicas, STACK).differences
    assert len(emit_deepspeed(pipeline, STACK).differences) == 1
    assert "bytes of a gradient: 4 instead of 2" in emit_deepspeed(pipeline, Stack()).differences


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


def script(elsewhere: tuple[str, ...]) -> dict[str, object]:
    """What the script must set, as options."""
    pairs = (sentence.partition(" ") for sentence in elsewhere)
    return {name: value for name, _, value in pairs if name in OPTIONS}


def test_what_is_written_is_read_with_what_the_script_sets() -> None:
    for recipe in drawn(DEEPSPEED, 60):
        emitted = emit_deepspeed(recipe, STACK)
        text = emitted.files["deepspeed.json"]
        reread, unread = read_deepspeed(
            text, recipe.model, recipe.layout.devices, script(emitted.user_settings)
        )
        assert reread == recipe
        assert set(unread) == {"gradient_clipping"}
        software = deepspeed_software(text, reread, Stack())
        assert software.unmodelled == ()
        assert software.stack.overlap == ("dp",)
        assert (software.stack.gradient_bytes == 4) == (recipe.layout.zero > 0 or recipe.layout.pp > 1)


PUBLISHED: dict[str, object] = {
    "train_batch_size": 48, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 10,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "none"}},
    "fp16": {"enabled": True, "loss_scale": 0}, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    "wall_clock_breakdown": False,
}  # fmt: skip
"""Form of the configurations in DeepSpeed's examples."""


@pytest.mark.parametrize(
    ("change", "options", "layout"),
    [
        ({}, {}, Layout(dp=8, microbatch=2, zero=2)),
        ({"train_batch_size": None, "gradient_accumulation_steps": 3}, {},
         Layout(dp=8, microbatch=2, zero=2)),
        ({"train_micro_batch_size_per_gpu": None}, {}, Layout(dp=8, microbatch=6, zero=2)),
        ({"train_micro_batch_size_per_gpu": "auto"}, {"microbatch": 3}, Layout(dp=8, microbatch=3, zero=2)),
        ({"zero_optimization": {"stage": 1}}, {"tp": 2, "pp": 2, "sequence_parallel": 1},
         Layout(tp=2, pp=2, dp=2, microbatch=2, zero=1, sequence_parallel=True)),
        ({"tensor_parallel": {"autotp_size": 4}}, {}, Layout(tp=4, dp=2, microbatch=2, zero=2)),
        ({"sequence_parallel_size": 4}, {}, Layout(cp=4, cp_kind="a2a", dp=2, microbatch=2, zero=2)),
        ({"fp16": None}, {}, Layout(dp=8, microbatch=2, zero=2, precision="single")),
        ({"fp16": {"enabled": "auto"}}, {"precision": "mixed"}, Layout(dp=8, microbatch=2, zero=2)),
        ({"zero_optimization": {"stage": 1}, "pipeline": {"activation_checkpoint_interval": 1}}, {"pp": 2},
         Layout(pp=2, dp=4, microbatch=2, zero=1, recompute="full")),
    ],
)  # fmt: skip
def test_published_configurations_are_read(
    change: dict[str, object], options: dict[str, object], layout: Layout
) -> None:
    text = json.dumps(PUBLISHED | change)
    recipe, unread = read_deepspeed(text, SMALL, 8, {"sequence": 240, **options})
    assert recipe.layout == layout
    assert recipe.global_batch == 48
    assert recipe.sequence == 240
    assert "optimizer.params.lr" in unread


def test_overlap_is_the_default_of_the_stage() -> None:
    for stage, settings, overlaps in ((2, {}, False), (3, {}, True), (3, {"overlap_comm": False}, False)):
        text = json.dumps(PUBLISHED | {"zero_optimization": {"stage": stage, **settings}})
        recipe = read_deepspeed(text, SMALL, 8, {})[0]
        software = deepspeed_software(text, recipe, Stack(overlap=("dp", "pp")))
        assert software.stack.overlap == (*["dp"] * overlaps, "pp")
        assert software.unmodelled == ("fp16.enabled True",)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"train_batch_sise": 48}, {}, "train_batch_sise: is unknown; did you mean train_batch_size"),
        ({"zero_optimization": {"stag": 3}}, {}, "zero_optimization.stag: is unknown; did"),
        ({"zero_optimization": True}, {}, "zero_optimization: must be a section with settings, got True"),
        ({"zero_optimization": {"stage": 4}}, {}, "zero_optimization.stage: must be one of .* got '4'"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, {},
         "zero_optimization.offload_optimizer.device: is modelled only as none, got 'cpu'"),
        ({"sparse_attention": {"mode": "x"}}, {}, "sparse_attention.mode: is not modelled, got 'x'"),
        ({"fp16": {"enabled": "auto"}}, {}, "fp16.enabled: is set by the training script, got auto; pass"),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}, {},
         "train_batch_size: must be given, .* such as --layout microbatch=1,global_batch=256"),
        ({"gradient_accumulation_steps": 4}, {}, r"must be .* 2 \* gradient.* 4 \* 8 replicas, got 48"),
        ({}, {"microbatch": 1}, "--layout: microbatch is set by the file, train_micro.* 2, got 1"),
        ({}, {"tp": 3}, r"devices: must be a multiple of tp \* cp \* pp 3, got 8"),
        ({"zero_optimization": {"stage": 1}}, {"pp": 4}, "blocks: must be given where pp 4 does not"),
        ({}, {"blocks": "two"}, "blocks: must be numbers with spaces .* got 'two'"),
        ({}, {"pp": 2}, "deepspeed: zero 2 and 3 are incompatible with a pipeline"),
        (dict.fromkeys(PUBLISHED), {}, "DeepSpeed: neither layout nor batch is set; pass DeepSpeed's JSON"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_read_is_refused(
    change: dict[str, object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(PhazeError, match=message):
        read_deepspeed(json.dumps(PUBLISHED | change), SMALL, 8, options)


@pytest.mark.parametrize("text", ["[]", "{", "hello = 1"])
def test_a_text_that_is_no_section_is_refused(text: str) -> None:
    with pytest.raises(PhazeError, match=r"settings: (is not valid JSON|must be sections)"):
        read_deepspeed(text, SMALL, 8, {})
