"""What is read of torchtitan's changes and flags is what was written, or what torchtitan does without."""

from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import emit_torchtitan
from phaze.runtimes.torchtitan_read import made_stages, read_torchtitan
from tests.unit.runtimes.examples import SMALL
from tests.unit.runtimes.recipes import drawn, small

BATCH = "--training.seq_len 240 --training.local-batch-size=2 --training.global_batch_size 24"


def test_what_is_read_is_what_was_written() -> None:
    for recipe in drawn(TORCHTITAN, 40):
        every = any(recipe.recomputed)
        whole = replace(recipe, recomputed=recipe.blocks) if every else recipe
        text = emit_torchtitan(whole).files["plan.py"]
        found = read_torchtitan(text, recipe.model, recipe.layout.devices)
        assert found == whole or (recipe.layout.recompute == "full" and not every)


def test_zero_bubbles_are_read_by_their_file() -> None:
    recipe = small(Layout(pp=3, dp=4, zero=2), "zb-h1", (2, 2, 2))
    assert read_torchtitan(emit_torchtitan(recipe).files["plan.py"], SMALL, 12) == recipe


@pytest.mark.parametrize(
    ("flags", "devices", "layout", "blocks"),
    [
        ("", 4, Layout(dp=4, microbatch=2, zero=3, recompute="selective"), (6,)),
        (
            ("--parallelism.tensor_parallel_degree 2 --parallelism.no-enable-sequence-parallel "
            "--activation_checkpoint.mode none"),
            4, Layout(tp=2, dp=2, microbatch=2, zero=3), (6,),
        ),
        (
            "--parallelism.data_parallel_replicate_degree 3 --activation_checkpoint.mode=full",
            3, Layout(dp=3, microbatch=2, recompute="full"), (6,),
        ),
        (
            ("--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 6 "
            "--parallelism.fsdp_reshard_after_forward always"),
            8, Layout(pp=2, dp=4, zero=3, recompute="selective"), (3, 3),
        ),
        (
            ("--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 6 "
            "--parallelism.pipeline_parallel_schedule Interleaved1F1B"),
            8, Layout(pp=2, vp=2, dp=4, zero=2, recompute="selective"), (1, 2, 2, 1),
        ),
    ],
)  # fmt: skip
def test_flags_are_read_with_what_torchtitan_does_without(
    flags: str, devices: int, layout: Layout, blocks: tuple[int, ...]
) -> None:
    found = read_torchtitan(f"{BATCH} {flags}", SMALL, devices)
    again = blocks if layout.recompute == "full" else (0,) * len(blocks)
    schedule = "interleaved" if layout.vp > 1 else "1f1b"
    assert found == Recipe(SMALL, 240, 24, layout, schedule, blocks, again)


def test_stages_that_torchtitan_makes_count_the_ends_as_blocks() -> None:
    assert made_stages(126, 128) == (0, *(1,) * 126, 0)
    assert made_stages(32, 4) == (8, 9, 8, 7)
    assert made_stages(6, 1) == (6,)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--parallelism.expert_parallel_degree 2", "expert_parallel_degree: is not modelled, got '2'"),
        ("--training.local_batch_size many", "local_batch_size: must be a whole number >= 1, got 'many'"),
        (
            "--parallelism.tensor_parallel_degree 3",
            "devices: must be a multiple of 3, the product of degrees",
        ),
        ("--parallelism.data_parallel_replicate_degree 2", "hybrids are not modelled, got 2"),
        ("--parallelism.fsdp_reshard_after_forward often", "one of default, always, never, got 'often'"),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule LoopedBFS",
            "must be one of 1F1B, .*got 'LoopedBFS'",
        ),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.module_fqns_per_model_part layers.0",
            "must be lists of modules, a multiple of pp 2",
        ),
        ("--training.global_batch_size 9", "torchtitan: microbatch . dp must divide the global batch 9"),
    ],
)
def test_a_setting_that_cannot_be_is_named(flags: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        read_torchtitan(f"{BATCH} {flags}", SMALL, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("config.parallelism.x = (", "changes: cannot be read as Python"),
        (
            (
                "config.parallelism.pipeline_parallel_degree = 2\n"
                "config.parallelism.module_fqns_per_model_part = [['layers.1'], ['layers.0']]"
            ),
            "must hold layers.0 to layers.5 in order",
        ),
        (
            "config.training.seq_len = 2 ** 10",
            r"training.seq_len: must be a whole number >= 1, got '2 \*\* 10'",
        ),
    ],
)
def test_a_change_that_cannot_be_is_named(change: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        read_torchtitan(change, SMALL, 8)
