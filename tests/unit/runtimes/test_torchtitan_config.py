"""Changes for torchtitan give a recipe, in Python and, for schedules that it has no name for, in CSV.

Reading them, or flags, gives the written recipe, or torchtitan's defaults.
"""

import ast
import re
from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import (
    default_split,
    emit_torchtitan,
    modules,
    read_torchtitan,
    schedule_csv,
    torchtitan_differences,
)
from phaze.spec.models import load_transformer
from phaze.spec.systems import load_stack
from tests.unit.runtimes.examples import SMALL
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
        layout, settings = recipe.layout, changes(emit_torchtitan(recipe).files["plan.py"])
        degrees = [
            settings[f"parallelism.{kind}_parallel_degree"] for kind in ("tensor", "context", "pipeline")
        ]
        copies = [settings[f"parallelism.data_parallel_{kind}_degree"] for kind in ("replicate", "shard")]
        assert degrees == [layout.tp, layout.cp, layout.pp]
        assert copies == ([layout.dp, 1] if layout.zero == 0 else [1, layout.dp])
        steps = recipe.global_batch // (settings["training.local_batch_size"] * layout.dp)
        pieces = settings["training.local_batch_size"] // layout.microbatch
        assert steps * pieces == layout.microbatches(recipe.global_batch)
        assert 1 in (steps, pieces)
        if layout.pp > 1:
            assert settings["parallelism.module_fqns_per_model_part"] == modules(recipe.blocks)


def test_stages_hold_the_modules_of_a_decoder() -> None:
    assert modules((0, 2, 1)) == [
        ["tok_embeddings"],
        ["layers.0", "layers.1"],
        ["layers.2", "norm", "lm_head"],
    ]


def test_a_plan_is_a_function_of_a_configuration() -> None:
    layout = Layout(tp=2, pp=3, dp=2, microbatch=2, zero=3, recompute="full")
    emitted = emit_torchtitan(small(layout, "1f1b", (2, 2, 2), (2, 2, 2)))
    settings = changes(emitted.files["plan.py"])
    assert emitted.differences == ()
    assert settings["activation_checkpoint"] == "FullAC.Config()"
    assert settings["parallelism.fsdp_reshard_after_forward"] == "always"
    assert settings["parallelism.enable_sequence_parallel"] is False
    assert settings["parallelism.pipeline_parallel_schedule"] == "1F1B"
    assert settings["training.local_batch_size"] == 12
    assert settings["training.disable_cuda_graphs"] is True


def test_torchtitan_recomputes_all_blocks_or_none() -> None:
    layout = Layout(pp=2, recompute="full")
    assert emit_torchtitan(small(layout, "gpipe", (3, 3), (3, 3))).differences == ()
    with pytest.raises(
        PhazeError, match=r"torchtitan: recomputed must be .* all blocks, such as 3\*2, got 3 1"
    ):
        emit_torchtitan(small(layout, "gpipe", (3, 3), (3, 1)))


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
    match = re.fullmatch(r"(\d+)([FIW])(\d+)", cell)
    assert match
    stage, kind, m = int(match[1]), match[2], int(match[3])
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


DEALT = "--parallelism.expert_parallel_degree 4"
BATCH = "--training.seq_len 240 --training.local-batch-size=2 --training.global_batch_size 24"


TRAINED = (("llama-3.1-8b", 64, 512), ("qwen3-30b-a3b", 64, 512), ("deepseek-v3", 256, 2048))
"""Models with device counts and batch sizes: dense, with experts, and also with latent attention."""


@pytest.mark.slow
def test_layouts_are_written_read_and_priced_as_they_are() -> None:
    questions: dict[tuple[str, str], PlanQuestion] = {}
    same = 0
    of_row = "scales of float8: of rows instead of whole tensors"
    for recipe in drawn(TORCHTITAN, 16, TRAINED, TORCHTITAN.computes):
        emitted = emit_torchtitan(recipe, load_stack("torchtitan"))
        reread, unread = read_torchtitan(emitted.files["plan.py"], recipe.model, recipe.layout.devices)
        assert unread == ()
        assert set(emitted.differences) == {
            *recipe.differences(reread),
            *[of_row] * (recipe.layout.compute == "fp8-cs"),
        }
        named = {sentence.partition(":")[0] for sentence in recipe.differences(reread)}
        assert named <= ({"recomputed"} if any(recipe.recomputed) else {"recompute"})
        if named:
            continue
        same += 1
        key = recipe.model.name, recipe.layout.compute
        machine = load_machine("b200", devices=recipe.layout.devices, stack="torchtitan")
        question = questions.setdefault(key, PlanQuestion(recipe.task, machine, TORCHTITAN))
        priced, before = PricedLayout.of_recipe(question, reread), PricedLayout.of_recipe(question, recipe)
        assert priced.price.time_s == before.price.time_s
        assert [rank.peak_gib for rank in priced.memory] == [rank.peak_gib for rank in before.memory]


def test_zero_bubbles_are_read_by_their_file() -> None:
    recipe = small(Layout(pp=3, dp=4, zero=2), "zb-h1", (2, 2, 2))
    assert read_torchtitan(emit_torchtitan(recipe).files["plan.py"], SMALL, 12) == (recipe, ())


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
            "--parallelism.data_parallel_replicate_degree 2",
            4, Layout(dp=4, microbatch=2, zero=3, replicate=2, recompute="selective"), (6,),
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
        (
            ("--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 6 "
            "--parallelism.pipeline_parallel_first_stage_less_layers 3"),
            8, Layout(pp=2, dp=4, zero=2, recompute="selective"), (2, 4),
        ),
    ],
)  # fmt: skip
def test_flags_are_read_with_what_torchtitan_does_without(
    flags: str, devices: int, layout: Layout, blocks: tuple[int, ...]
) -> None:
    recipe, _ = read_torchtitan(f"{BATCH} {flags}", SMALL, devices)
    recomputed = blocks if layout.recompute == "full" else (0,) * len(blocks)
    schedule = "interleaved" if layout.vp > 1 else "1f1b"
    assert recipe == Recipe(SMALL, 240, 24, layout, schedule, blocks, recomputed)


def test_models_with_experts_deal_them_out_or_cut_them_by_tp() -> None:
    model = load_transformer("deepseek-v2", "test")
    tp = f"{BATCH} --parallelism.tensor_parallel_degree 2"
    (cut, _), (dealt, _) = (read_torchtitan(f"{tp} {dispatch}", model, 8) for dispatch in ("", DEALT))
    assert (cut.layout.ep, cut.layout.etp) == (1, 2)
    assert (dealt.layout.ep, dealt.layout.etp) == (4, 1)


REGISTERED = """
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig

def mine() -> Trainer.Config:
    config = Trainer.Config(
        model_spec=model_registry("8B", converters=[MXFP8LinearConverter.Config(fqns=["layers"])]),
        training=TrainingConfig(local_batch_size=4, seq_len=240, steps=10, global_batch_size=32),
        parallelism=ParallelismConfig(tensor_parallel_degree=2, fsdp_reshard_after_forward="never"),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, components=["loss"]),
    )
    config.parallelism.enable_sequence_parallel = False
    return config
"""


def test_a_configuration_is_read_as_it_is_registered() -> None:
    model = SMALL.model_copy(update={"hidden": 256, "heads": 8, "feed_forward": 512})
    recipe, unread = read_torchtitan(REGISTERED, model, 16)
    layout = Layout(tp=2, dp=8, microbatch=4, zero=2, recompute="full", compute="mxfp8")
    assert (recipe.layout, recipe.global_batch, recipe.sequence) == (layout, 32, 240)
    assert unread == ("training.steps",)
    assert "with compile.enable True, not False" in torchtitan_differences(
        REGISTERED, recipe, load_stack("torchtitan")
    )


def test_what_a_stack_and_numbers_stand_for_is_said() -> None:
    stack = load_stack("torchtitan").model_copy(update={"overlap": ("dp", "tp")})
    layout = Layout(tp=2, dp=4, sequence_parallel=True, zero=3, compute="fp8-cs")
    recipe = replace(small(layout, "1f1b", (6,)), model=SMALL.model_copy(update={"lora": 8}))
    text = emit_torchtitan(recipe, stack).files["plan.py"]
    rows = "with float8 scaled by whole tensors, not by rows"
    assert read_torchtitan(text, SMALL, 8) == (recipe, ())
    assert torchtitan_differences(text, recipe, stack) == (rows,)
    plain = f"{BATCH} --parallelism.tensor_parallel_degree 2 --optimizer.lr 1"
    read, unread = read_torchtitan(plain, SMALL, 8)
    assert (read.model.lora, read.layout.compute, unread) == (None, "bf16", ("optimizer.lr",))
    assert torchtitan_differences(plain, recipe, stack)[:2] == (
        "with compile.enable True, not False",
        "with compile.enable_async_tensor_parallel True, not False",
    )
    head = text.replace("'lm_head', ", "")
    assert torchtitan_differences(head, recipe, stack) == (
        "with Float8LinearConverter.filter_fqns ['lm_head', 'router.gate'], not ['router.gate']",
        rows,
    )


def test_stages_that_torchtitan_makes_count_the_ends_as_blocks() -> None:
    assert default_split(126, 128) == (0, *(1,) * 126, 0)
    assert default_split(32, 4) == (8, 9, 8, 7)
    assert default_split(6, 1) == (6,)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--training.enable_cpu_offload", "enable_cpu_offload: is modelled only as False, got True"),
        ("--training.dtype bfloat16", "training.dtype: is modelled only as float32, got 'bfloat16'"),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_layers_per_stage 3",
            "layers_per_stage: must give a multiple of pp 2 stages, got 3",
        ),
        ("--training.local_batch_size many", "local_batch_size: must be a whole number >= 1, got 'many'"),
        (
            "--parallelism.tensor_parallel_degree 3",
            "devices: must be a multiple of 3, the product of degrees",
        ),
        (
            "--parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 2",
            "devices: must be 4, the product of degrees, got 8",
        ),
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
        ("config.parallelism.x = (", "changes: cannot be parsed as Python"),
        (
            (
                "config.parallelism.pipeline_parallel_degree = 2\n"
                "config.parallelism.module_fqns_per_model_part = [['layers.1'], ['layers.0']]"
            ),
            "must contain layers.0 to layers.5 in order",
        ),
        (
            "config = llama3_8b()\nconfig.training.seq_len = 240",
            "config must be created by Trainer.Config in this file, got 'llama3_8b.*'",
        ),
        (
            "def one():\n config.training.x = 1\ndef two():\n config.training.x = 2",
            "changes: must define one function, got one, two",
        ),
        (
            "config.model_spec = registry('8B', converters=[RotatedLinearConverter.Config()])",
            "RotatedLinearConverter: is not modelled; known are Float8Grouped",
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
