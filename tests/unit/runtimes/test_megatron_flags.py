"""Flags for Megatron-LM say a recipe, and what is read from them is the same recipe."""

from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.replay import priced_recipe
from phaze.plan.machines import load_machine
from phaze.runtimes.flags import parse_flags
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_flags import emit_megatron, read_megatron, software_unlike
from phaze.spec.blocks import Experts
from phaze.spec.models import load_transformer
from phaze.spec.system import Stack
from tests.unit.runtimes.examples import SMALL
from tests.unit.runtimes.recipes import OF_TODAY, drawn, of_model, small

FULL, LAYOUT = "--recompute-granularity full", "--pipeline-model-parallel-layout"
FLAGS = """
torchrun --nnodes 2 --nproc-per-node=8 pretrain_gpt.py   # of somebody
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab_size 50257 \\
    --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer
    --lr 1e-4 --min-lr -1 --bf16
"""


def test_what_is_read_is_what_was_written() -> None:
    for recipe in drawn(MEGATRON, 60):
        emitted = emit_megatron(recipe)
        again = recipe.layout.recompute != "full" or any(recipe.recomputed)
        assert emitted.beyond == () or not again
        assert read_megatron(emitted.files["megatron.txt"], recipe.layout.devices, recipe.model.name) == (
            recipe,
            (),
        )


def test_models_of_today_are_written_read_and_priced_as_they_are() -> None:
    questions: dict[tuple[str, str], PlanQuestion] = {}
    for number, recipe in enumerate(drawn(MEGATRON, 25, OF_TODAY, ("bf16", "mxfp8"))):
        emitted = emit_megatron(recipe)
        named = {sentence.partition(":")[0] for sentence in emitted.beyond}
        assert named <= ({"recomputed"} if any(recipe.recomputed) else {"recompute"})
        again, unread = read_megatron(emitted.files["megatron.txt"], recipe.layout.devices)
        assert unread == ()
        if number % 5 or named:
            continue
        key = recipe.model.name, recipe.layout.compute
        machine = load_machine("b200", devices=recipe.layout.devices, stack="megatron-core")
        question = questions.setdefault(key, PlanQuestion(recipe.task, machine, MEGATRON))
        asked = replace(question, task=again.task)
        priced, before = priced_recipe(again, asked), priced_recipe(recipe, question)
        assert priced.price.time_s == before.price.time_s
        assert [rank.peak_gib for rank in priced.memory] == [rank.peak_gib for rank in before.memory]


def test_what_a_software_stack_stands_for_is_said() -> None:
    layout = Layout(tp=2, dp=2, ep=2, sequence_parallel=True, zero=1)
    model = SMALL.model_copy(update={"experts": Experts(count=4, per_token=2, width=96)})
    recipe = replace(small(layout, "1f1b", (6,)), model=model)
    stack = Stack(overlap=("dp", "tp", "ep"), gradient_bytes=2, dispatch="tokens")
    text = emit_megatron(recipe, stack).files["megatron.txt"]
    assert {
        "--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap", "--grad-reduce-in-bf16",
        "--overlap-moe-expert-parallel-comm", "--moe-enable-deepep",
    } <= set(parse_flags(text))  # fmt: skip
    assert software_unlike(text, recipe, stack) == ()
    plain = stack.model_copy(update={"overlap": ("tp", "pp"), "dispatch": "rows"})
    assert software_unlike(text, recipe, plain) == (
        "with --moe-token-dispatcher-type alltoall, which is not among the flags",
        "without --moe-enable-deepep",
        "without --moe-token-dispatcher-type flex",
        "without --overlap-grad-reduce",
        "without --overlap-moe-expert-parallel-comm",
        "without --overlap-param-gather",
    )


NEMOTRON = """
--hybrid-layer-pattern MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME
--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --hidden-size 2688 --squared-relu
--num-attention-heads 32 --group-query-attention --num-query-groups 2 --kv-channels 128 --mamba-num-heads 64
--ffn-hidden-size 1856 --num-experts 128 --moe-router-topk 6 --moe-ffn-hidden-size 1856
--moe-shared-expert-intermediate-size 3712 --disable-bias-linear --untie-embeddings-and-output-weights
--normalization RMSNorm --position-embedding-type none --attention-dropout 0.0 --hidden-dropout 0.0
"""
"""Of Nemotron 3 Nano as it is trained with Megatron-LM."""
DEEPSEEK = """
--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128
--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
--v-head-dim 128 --qk-layernorm --num-experts 256 --moe-layer-freq ([0]*3+[1]*58) --moe-router-topk 8
--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-router-num-groups 8
--moe-router-group-topk 4 --mtp-num-layers 1 --swiglu --disable-bias-linear --normalization RMSNorm
--untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0
--hidden-dropout 0
"""
"""Of DeepSeek-V3 as Megatron-LM's guide to experts has them."""


@pytest.mark.parametrize(
    ("flags", "vocabulary", "name"),
    [(NEMOTRON, 131072, "nemotron-3-nano-30b-a3b"), (DEEPSEEK, 129280, "deepseek-v3")],
)
def test_flags_that_models_of_today_are_trained_with_say_these(
    flags: str, vocabulary: int, name: str
) -> None:
    batch = "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64"
    recipe, unread = read_megatron(f"{flags} {batch} --vocab-size {vocabulary}", 64, name)
    model = load_transformer(name, "test")
    assert unread == ()
    assert recipe.model.parameter_groups() == model.parameter_groups()
    assert recipe.model.flops_per_token(4096) == model.flops_per_token(4096)
    assert recipe.model.runs == model.runs


@pytest.mark.parametrize(
    ("more", "compute"),
    [
        ("--fp8-format hybrid", "fp8"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8-cs"),
        ("--fp4-format e2m1", "nvfp4"),
    ],
)
def test_precision_is_read(more: str, compute: str) -> None:
    assert read_megatron(f"{FLAGS} {more} --seq-length 1024")[0].layout.compute == compute


def test_capacity_of_padded_experts_is_the_load() -> None:
    padded = "--num-experts 8 --moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1.25"
    layout = read_megatron(f"{FLAGS} {padded} --sequence-parallel --disable-bias-linear")[0].layout
    assert (layout.load, layout.etp) == (1.25, 2)


def test_flags_are_those_of_megatron() -> None:
    layout = Layout(
        tp=2, cp=2, pp=2, vp=2, dp=2, microbatch=3, sequence_parallel=True, zero=1, recompute="full"
    )
    flags = parse_flags(
        emit_megatron(small(layout, "interleaved", (0, 3, 2, 1), (0, 1, 1, 1))).files["megatron.txt"]
    )
    assert flags["--pipeline-model-parallel-layout"] == ("E|ttt|tt|tL",)
    assert flags["--recompute-num-layers"] == ("1",)
    assert flags["--num-query-groups"] == ("4",)
    assert {
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--untie-embeddings-and-output-weights",
    } <= set(flags)
    sharded = parse_flags(emit_megatron(small(Layout(dp=8, zero=3), "1f1b", (6,))).files["megatron.txt"])
    assert sharded["--data-parallel-sharding-strategy"] == ("optim_grads_params",)
    assert "--pipeline-model-parallel-layout" not in sharded


def test_what_megatron_cannot_say_is_named() -> None:
    uneven = small(Layout(pp=2, dp=2, recompute="full"), "1f1b", (3, 3), (3, 1))
    assert emit_megatron(uneven).beyond == ("recomputed: 3*2 instead of 3 1",)
    norms = SMALL.model_copy(update={"norm_position": "post", "activation": "relu"})
    assert emit_megatron(of_model(norms)).beyond == (
        "model.activation: gelu instead of relu",
        "model.norm_position: pre instead of post",
    )


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "llama2-70b", "llama-3.1-70b", "megatron-gpt-8.3b"])
def test_megatron_can_say_the_models_that_are_trained_with_it(name: str) -> None:
    model = load_transformer(name, "test")
    assert emit_megatron(of_model(model)).beyond == ()


def test_flags_of_a_run_are_read_with_what_megatron_does_without() -> None:
    recipe, others = read_megatron(FLAGS)
    assert recipe.layout == Layout(tp=2, pp=2, dp=4, microbatch=2, zero=1)
    assert (recipe.schedule, recipe.blocks, recipe.global_batch) == ("1f1b", (12, 12), 64)
    assert others == ("--lr", "--min-lr")
    model = recipe.model
    assert (model.feed_forward, model.gated, model.tied_embeddings, model.fused_qkv) == (
        4096,
        False,
        True,
        True,
    )
    assert (model.residual_dropout, model.attention_dropout, model.norm) == (0.1, 0.1, "layer_norm")


@pytest.mark.parametrize(
    ("more", "blocks", "recompute", "recomputed"),
    [
        ("--num-layers-per-virtual-pipeline-stage 4", (4,) * 6, "none", (0,) * 6),
        ("--num-virtual-stages-per-pipeline-rank 2", (6,) * 4, "none", (0,) * 4),
        ("--recompute-activations", (12, 12), "selective", (0, 0)),
        ("--decoder-first-pipeline-num-layers 10", (10, 14), "none", (0, 0)),
        (
            "--decoder-last-pipeline-num-layers 8 --num-virtual-stages-per-pipeline-rank 2",
            (8, 4, 8, 4),
            "none",
            (0,) * 4,
        ),
        (
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            (12, 12),
            "none",
            (0, 0),
        ),
        ("--mtp-num-layers 1", (12, 13), "none", (0, 0)),
        ("--recompute-granularity selective", (12, 12), "selective", (0, 0)),
        (f"{FULL} --recompute-method uniform --recompute-num-layers 1", (12, 12), "full", (12, 12)),
        (
            f"{FULL} --recompute-method block --recompute-num-layers 12 {LAYOUT} Et*14|t*10L",
            (14, 10),
            "full",
            (12, 10),
        ),
    ],
)
def test_stages_and_recomputation_are_read(
    more: str, blocks: tuple[int, ...], recompute: str, recomputed: tuple[int, ...]
) -> None:
    recipe, _ = read_megatron(f"{FLAGS} {more}")
    assert (recipe.blocks, recipe.layout.recompute, recipe.recomputed) == (blocks, recompute, recomputed)
    assert recipe.layout.vp == len(blocks) // 2


def test_two_levels_of_context_parallelism_are_written_and_read() -> None:
    recipe = small(Layout(cp=4, cp_kind="a2a+p2p:2"), "1f1b", (6,))
    text = emit_megatron(recipe).files["megatron.txt"]
    assert "--hierarchical-context-parallel-sizes 2 2" in text
    assert read_megatron(text, 4)[0].layout == recipe.layout


@pytest.mark.parametrize("offload", ["layers:4", "core_attn+attn_proj+optimizer"])
def test_what_waits_in_the_memory_of_the_host_is_written_and_read(offload: str) -> None:
    recipe = small(Layout(dp=2, zero=1, offload=offload), "1f1b", (6,))
    emitted = emit_megatron(recipe)
    assert emitted.beyond == ()
    assert read_megatron(emitted.files["megatron.txt"], 2)[0].layout == recipe.layout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4",
            "--hierarchical-context-parallel-sizes: must be two numbers with product 4, got 2 4",
        ),
        ("--fine-grained-activation-offloading --offload-modules mlp", "--offload-modules: .*got mlp"),
        ("--optimizer-cpu-offload", "--optimizer-cpu-offload: is not modelled"),
        ("--fp8-format hybrid --fp8-recipe custom", "--fp8-recipe: must be one of delayed, tensorwise, "),
        ("--num-experts 8 --moe-layer-freq [1]*8+[2]*16", "--moe-layer-freq: must be a number or a list"),
        ("--num-experts 8 --moe-layer-freq [1]*8", "--moe-layer-freq: must have 24 entries, .* got 8"),
        ("--num-experts 8 --moe-layer-freq [1]*9**9", "--moe-layer-freq: must be a number or a list"),
        ("--window-size 128,128", "--window-size: must be tokens before one and 0 after it"),
        ("--hybrid-layer-pattern M*X", "--hybrid-layer-pattern: must be letters M, .* got 'M.X'"),
        ("--decoder-first-pipeline-num-layers 24 --decoder-last-pipeline-num-layers 1",
         "decoder-first-pipeline-num-layers: must cut the 24 layers into equal stages, got 24"),
        ("--micro-batch-size two", "--micro-batch-size: must be a whole number >= 1, got 'two'"),
        ("--micro-batch-size 2 4", "--micro-batch-size: must have one value, got 2"),
        ("--tensor-model-parallel-size 3", r"devices: must be a multiple of tp \* cp \* pp 6, got 16"),
        ("--pipeline-model-parallel-layout Et*24L", "layout: must have a multiple of pp 2 stages, got 1"),
        ("--pipeline-model-parallel-layout Et*10|t*10L", "blocks: must be 2 numbers with sum 24, got 10[*]2"),
        ("--num-layers-per-virtual-pipeline-stage 5", "must cut the 24 layers into equal stages, got 5"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy half", "no_shard, optim, .*got 'half'"),
        ("--pipeline-model-parallel-size 16 --tensor-model-parallel-size 1",
         "pipeline-model-parallel-size: must cut the 24 layers into equal stages, got 16"),
        (f"{FULL} --recompute-method uniform --recompute-num-layers 2", "must be 1 with uniform, got 2"),
        (f"{FULL} --recompute-num-layers 2", "--recompute-method: must be given"),
        ("--recompute-granularity selective --recompute-modules router", "--recompute-modules: .*router"),
        ("--position-embedding-type yarn", "must be one of learned_absolute, rope, none, got 'yarn'"),
        ("--hidden-dropout 1", "--hidden-dropout: must be a number >= 0 and < 1, got '1'"),
        ("--seq-length 2048", "sequence: 2048 must be > 0 and at most position_count"),
        ("--global-batch-size 60", "megatron: microbatch . dp must divide the global batch 60, got 8"),
        ("'", "flags: cannot be read as words of a shell: No closing quotation"),
    ],
)  # fmt: skip
def test_a_flag_that_cannot_be_is_named(more: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        read_megatron(f"{FLAGS} {more}")


def test_devices_have_to_be_said() -> None:
    alone = FLAGS.partition("pretrain_gpt.py")[2].replace("# of somebody", "")
    assert read_megatron(alone, 32)[0].layout.dp == 8
    with pytest.raises(PhazeError, match="--nproc-per-node: must be given"):
        read_megatron(alone)


@pytest.mark.parametrize(
    ("blocks", "again", "message"),
    [
        ((3, 2), (0, 0), "blocks: must be 2 numbers with sum 6, got 3 2"),
        ((6,), (0,), "blocks: must be 2 numbers with sum 6, got 6"),
        ((3, 3), (1, 0), "recomputed: must be at most 0[*]2, got 1 0"),
    ],
)
def test_a_recipe_holds_the_model(blocks: tuple[int, ...], again: tuple[int, ...], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        emit_megatron(small(Layout(pp=2), "1f1b", blocks, again))


def test_what_megatron_cannot_run_is_not_written() -> None:
    with pytest.raises(PhazeError, match="megatron: heads 12 must be a multiple of tp, got 8"):
        emit_megatron(small(Layout(tp=8), "1f1b", (6,)))
    with pytest.raises(PhazeError, match="blocks: only the ends may be without, got 3 0 3"):
        emit_megatron(small(Layout(pp=3), "1f1b", (3, 0, 3)))
