"""Megatron-LM flags of a recipe are read back as the same recipe."""

from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import OPTIMIZERS, Layout, Optimizer
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.runtimes.bridge import emit_bridge
from phaze.runtimes.flags import parse_flags
from phaze.runtimes.layout_string import equal_counts
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_flags import emit_megatron, megatron_software, read_megatron
from phaze.runtimes.megatron_model import hybrid_pattern, read_model
from phaze.runtimes.megatron_software import GROUP
from phaze.runtimes.untimed import UNTIMED_FLAGS
from phaze.spec.blocks import Balancing, Experts
from phaze.spec.models import load_transformer
from phaze.spec.system import Stack
from phaze.spec.systems import load_stack
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
        recomputes = recipe.layout.recompute != "full" or any(recipe.recomputed)
        assert emitted.differences == () or not recomputes
        timed = recipe.model.model_copy(update={"untimed": {}})
        assert read_megatron(emitted.files["megatron.txt"], recipe.layout.devices, recipe.model.name) == (
            replace(recipe, model=timed),
            (),
        )


@pytest.mark.slow
def test_models_of_today_are_written_read_and_priced_as_they_are() -> None:
    questions: dict[tuple[str, str], PlanQuestion] = {}
    for number, recipe in enumerate(drawn(MEGATRON, 25, OF_TODAY, ("bf16", "mxfp8"))):
        emitted = emit_megatron(recipe)
        named = {sentence.partition(":")[0] for sentence in emitted.differences}
        assert named <= ({"recomputed"} if any(recipe.recomputed) else {"recompute"})
        reread, unread = read_megatron(emitted.files["megatron.txt"], recipe.layout.devices)
        assert unread == ()
        if number % 8 or named:
            continue
        # No flag says that rotary embeddings have a factor: what is read has them without.
        fields = {} if recipe.model.scaled_rotary else recipe.model.untimed
        untimed = replace(recipe, model=recipe.model.model_copy(update={"untimed": fields}))
        key = recipe.model.name, recipe.layout.compute
        machine = load_machine("b200", devices=recipe.layout.devices, stack="megatron-core")
        question = questions.setdefault(key, PlanQuestion(untimed.task, machine, MEGATRON))
        request = replace(question, task=reread.task)
        priced, before = PricedLayout.of_recipe(request, reread), PricedLayout.of_recipe(question, untimed)
        assert priced.price.time_s == before.price.time_s
        assert [rank.peak_gib for rank in priced.memory] == [rank.peak_gib for rank in before.memory]


def test_what_a_software_stack_stands_for_is_said_and_read() -> None:
    layout = Layout(tp=2, dp=2, ep=2, sequence_parallel=True, zero=1)
    model = SMALL.model_copy(update={"experts": Experts(count=4, per_token=2, width=96), "gated": True})
    recipe = replace(small(layout, "1f1b", (6,)), model=model)
    stack = Stack(
        overlap=("dp", "tp", "ep"), gradient_bytes=2, dispatch="tokens", fused_gate=True,
        fused_gradients=True, attention=("cudnn", "2"),
    )  # fmt: skip
    text = emit_megatron(recipe, stack).files["megatron.txt"]
    assert {
        "--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap", "--grad-reduce-in-bf16",
        "--overlap-moe-expert-parallel-comm", "--moe-enable-deepep", "--cross-entropy-loss-fusion",
    } <= set(parse_flags(text))  # fmt: skip
    assert megatron_software(text, recipe, stack).stack == stack
    assert megatron_software(text, recipe, stack).unmodelled == ()
    # Whatever stack is asked for, the flags say what overlaps, and in which precision gradients are.
    plain = Stack(overlap=("pp",), gradient_bytes=4)
    assert megatron_software(text, recipe, plain).stack.overlap == ("dp", "tp", "pp", "ep")
    assert megatron_software(text, recipe, plain).stack.gradient_bytes == 2


def test_without_flags_nothing_is_hidden_but_messages_of_interleaved_stages() -> None:
    stack = load_stack("megatron-bridge")
    for further, overlap in (
        ("", ("pp",)),
        ("--num-virtual-stages-per-pipeline-rank 2", ("pp",)),
        ("--num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication", ()),
        ("--overlap-grad-reduce", ("pp",)),
        ("--overlap-grad-reduce --overlap-param-gather", ("dp", "pp")),
        ("--sequence-parallel --tp-comm-overlap", ("tp", "pp")),
    ):
        text = f"{FLAGS} {further}"
        read = megatron_software(text, read_megatron(text)[0], stack).stack
        assert {kind for kind in read.overlap if kind != "ep"} == set(overlap)
        assert (read.gradient_bytes, read.logit_bytes) == (4, 6)


@pytest.mark.parametrize(
    ("further", "flash", "attention"),
    [
        ("", True, ("cudnn", "2")),
        ("--attention-backend auto", True, ("cudnn", "2")),
        ("--attention-backend flash", True, ("2", "cudnn")),
        ("--use-flash-attn", True, ("2", "cudnn")),
        ("--attention-backend fused", True, ("cudnn", "2")),
        ("--attention-backend unfused", False, ("cudnn", "2")),
        ("--attention-backend local", False, ("cudnn", "2")),
        ("--transformer-impl local", False, ("cudnn", "2")),
    ],
)
def test_attention_is_by_the_kernels_that_flags_name(
    further: str, flash: bool, attention: tuple[str, ...]
) -> None:
    text = f"{FLAGS} {further}"
    software = megatron_software(text, read_megatron(text)[0], load_stack("megatron-core"))
    assert (software.flash, software.stack.attention) == (flash, attention)
    assert software.unmodelled == (("--transformer-impl local",) if "impl" in further else ())


def test_flags_that_change_time_or_memory_and_are_not_modelled_are_listed() -> None:
    text = f"{FLAGS} --use-distributed-optimizer --overlap-grad-reduce --deterministic-mode --optimizer muon"
    recipe, unread = read_megatron(text)
    assert megatron_software(text, recipe, Stack()).unmodelled == (
        "--deterministic-mode", "--optimizer muon", "--overlap-grad-reduce without --overlap-param-gather",
    )  # fmt: skip
    assert unread == ("--lr", "--min-lr")


@pytest.mark.parametrize(
    ("balancing", "flag"),
    [
        ("biases", "--moe-router-enable-expert-bias"),
        ("none", "--moe-router-load-balancing-type none"),
        ("loss", None),
    ],
)
def test_the_balancing_of_a_router_is_written_and_read(balancing: Balancing, flag: str | None) -> None:
    model = load_transformer("qwen3-30b-a3b", "model")
    assert model.experts
    experts = model.experts.model_copy(update={"balancing": balancing})
    emitted = emit_megatron(of_model(model.model_copy(update={"experts": experts})))
    text = emitted.files["megatron.txt"]
    assert text.count("balancing") + text.count("expert-bias") == (flag is not None)
    assert flag is None or flag in text
    assert not any("balancing" in difference for difference in emitted.differences)
    assert read_megatron(text, 1)[0].model.experts == experts


def test_published_biases_of_a_router_are_written_once() -> None:
    text = emit_megatron(of_model(load_transformer("deepseek-v3", "model"))).files["megatron.txt"]
    assert text.count("--moe-router-enable-expert-bias") == 1


def test_instances_of_the_distributed_optimizer_are_written_and_read() -> None:
    for zero in (1, 2, 3):
        recipe = small(Layout(dp=8, zero=zero, replicate=2), "1f1b", (6,))
        flags = emit_megatron(recipe).files["megatron.txt"]
        assert "--num-distributed-optimizer-instances 2" in flags
        assert read_megatron(flags, 8)[0].layout == recipe.layout


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_are_written_and_read(optimizer: Optimizer) -> None:
    recipe = small(Layout(dp=8, zero=1, optimizer=optimizer), "1f1b", (6,))
    emitted = emit_megatron(recipe)
    assert not emitted.differences
    assert read_megatron(emitted.files["megatron.txt"], 8)[0].layout == recipe.layout
    moments = optimizer.partition("-")[2]
    if optimizer.startswith("adam-"):
        field = f"exp_avg_dtype = torch.{ {'bf16': 'bfloat16', 'fp8': 'uint8'}[moments] }"
        assert field in emit_bridge(recipe).files["plan.py"]


def test_moments_of_two_formats_are_refused() -> None:
    flags = f"{FLAGS} --use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16"
    with pytest.raises(
        PhazeError, match="--exp-avg-sq-dtype: must be that of --exp-avg-dtype, bf16, got fp32"
    ):
        read_megatron(flags)


def test_defaults_that_are_spelled_out_change_nothing() -> None:
    defaults = "--num-distributed-optimizer-instances 1 --optimizer adam --expert-tensor-parallel-size 4"
    text = f"{FLAGS} {defaults}"
    assert read_megatron(text)[0] == read_megatron(FLAGS)[0]
    assert megatron_software(text, read_megatron(text)[0], Stack()).unmodelled == ()


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ("--vocab-file data/bpe/vocab.json --merge-file data/bpe/merges.txt", 50257),
        ("--tokenizer-type GPT2BPETokenizer", 50257),
        ("--vocab-file bert-large-cased-vocab.txt --tokenizer-type BertWordPieceCase", 28996),
        ("--vocab-file bert-large-cased-vocab.txt", 28996),
        ("--vocab-file bert-large-uncased-vocab.txt", 30522),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B", 128256),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-8B", 151936),
        ("--tokenizer-type GPT2BPETokenizer --make-vocab-size-divisible-by 1024", 51200),
    ],
)
def test_tokenizers_have_their_words(further: str, words: int) -> None:
    text = FLAGS.replace("--vocab_size 50257", "")
    assert read_megatron(f"{text} {further}")[0].model.vocabulary == words
    assert read_megatron(text, words=777)[0].model.vocabulary == 777
    with pytest.raises(PhazeError, match=r"--vocab-size: must be given, or --vocab N of `phaze read`"):
        read_megatron(text)


def test_the_vocabulary_of_bert_is_trained_as_bert() -> None:
    text = FLAGS.replace("--vocab_size 50257", "--vocab-file vocab.txt")
    model = read_megatron(text)[0].model
    assert (model.head, model.causal, model.token_types, model.pooler) == ("masked-lm", False, 2, True)
    assert not read_megatron(f"{text} --bert-no-binary-head")[0].model.pooler


def test_untimed_fields_of_a_configuration_are_written_or_named() -> None:
    """Each is written as a flag, or listed; without them Megatron-LM trains another model."""
    emitted = emit_megatron(of_model(load_transformer("llama-3.1-8b", "test")))
    flags = parse_flags(emitted.files["megatron.txt"])
    written = {flag: flags[flag] for flag in flags if flag in UNTIMED_FLAGS}
    assert written == {
        "--init-method-std": ("0.02",), "--norm-epsilon": ("1e-05",), "--use-rope-scaling": (),
        "--rope-scaling-factor": ("8.0",), "--rotary-base": ("500000",),
    }  # fmt: skip
    assert emitted.user_settings == ()
    deepseek = emit_megatron(of_model(load_transformer("deepseek-v3", "test")))
    flags = parse_flags(deepseek.files["megatron.txt"])
    assert flags["--moe-router-score-function"] == ("sigmoid",)
    assert flags["--moe-router-topk-scaling-factor"] == ("2.5",)
    assert (flags["--rope-type"], flags["--rotary-scaling-factor"]) == (("yarn",), ("40",))
    assert "--moe-router-enable-expert-bias" in flags
    oss = emit_megatron(of_model(load_transformer("gpt-oss-20b", "test")))
    assert parse_flags(oss.files["megatron.txt"])["--activation-func-clamp-value"] == ("7.0",)
    assert {name.partition(" ")[0] for name in oss.user_settings} == {
        "initial_context_length",
        "rope_scaling",
    }
    assert emit_megatron(of_model(SMALL)).user_settings == ("rotary base", "norm epsilon")


@pytest.mark.parametrize(
    ("layout", "blackwell", "line"),
    [
        (Layout(tp=2), False, "# Environment: CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (Layout(cp=2, cp_kind="p2p"), False, "# Environment: CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (Layout(tp=2), True, ""),
        (Layout(dp=2), False, ""),
        (Layout(dp=2, zero=3), False, "# Environment: CUDA_DEVICE_MAX_CONNECTIONS=32"),
    ],
)
def test_the_environment_of_a_layout_is_written_and_read(layout: Layout, blackwell: bool, line: str) -> None:
    recipe = small(layout, "1f1b", (6,))
    text = emit_megatron(recipe, blackwell=blackwell).files["megatron.txt"]
    assert [comment for comment in text.splitlines() if "CONNECTIONS" in comment] == ([line] if line else [])
    read_megatron(text, layout.devices, blackwell=blackwell)
    if blackwell:
        read_megatron(f"export CUDA_DEVICE_MAX_CONNECTIONS=32\n{text}", layout.devices, blackwell=True)
    wrong = "32" if line.endswith("=1") else "1"
    if line:
        with pytest.raises(PhazeError, match=f"CUDA_DEVICE_MAX_CONNECTIONS must .* got {wrong}"):
            read_megatron(text.replace(line, f"export CUDA_DEVICE_MAX_CONNECTIONS={wrong}"), layout.devices)


def test_collectives_of_slices_are_overlapped_with_sequence_parallelism_alone() -> None:
    with pytest.raises(PhazeError, match="megatron: --tp-comm-overlap needs --sequence-parallel"):
        read_megatron(f"{FLAGS} --tp-comm-overlap")
    text = emit_megatron(small(Layout(tp=2), "1f1b", (6,)), Stack(overlap=("tp",))).files["megatron.txt"]
    assert "--tp-comm-overlap" not in text


NEMOTRON = """
--hybrid-layer-pattern MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME
--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --hidden-size 2688 --squared-relu
--num-attention-heads 32 --group-query-attention --num-query-groups 2 --kv-channels 128 --mamba-num-heads 64
--ffn-hidden-size 1856 --num-experts 128 --moe-router-topk 6 --moe-ffn-hidden-size 1856
--moe-shared-expert-intermediate-size 3712 --disable-bias-linear --untie-embeddings-and-output-weights
--normalization RMSNorm --position-embedding-type none --attention-dropout 0.0 --hidden-dropout 0.0
"""
"""Flags of Nemotron 3 Nano as trained with Megatron-LM."""
DEEPSEEK = """
--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128
--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
--v-head-dim 128 --qk-layernorm --num-experts 256 --moe-layer-freq ([0]*3+[1]*58) --moe-router-topk 8
--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-router-num-groups 8
--moe-router-group-topk 4 --mtp-num-layers 1 --swiglu --disable-bias-linear --normalization RMSNorm
--untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0
--hidden-dropout 0
"""
"""Flags of DeepSeek-V3 from Megatron-LM's guide to experts."""


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
    ("further", "compute"),
    [
        ("--fp8-format hybrid", "fp8"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8-cs"),
        ("--fp4-format e2m1", "nvfp4"),
    ],
)
def test_precision_is_read(further: str, compute: str) -> None:
    assert read_megatron(f"{FLAGS} {further} --seq-length 1024")[0].layout.compute == compute


def test_capacity_of_padded_experts_is_the_load() -> None:
    padded = "--num-experts 8 --moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1.25"
    layout = read_megatron(f"{FLAGS} {padded} --sequence-parallel --disable-bias-linear")[0].layout
    assert (layout.load, layout.etp) == ("1.25", 2)


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


def test_one_number_of_recomputed_blocks_holds_for_all_virtual_stages() -> None:
    """Megatron-Core's `--recompute-num-layers`; layers of multi-token prediction have no such number."""
    layout = Layout(pp=2, dp=2, recompute="full")
    assert emit_megatron(small(layout, "1f1b", (4, 2), (3, 2))).differences == ()
    with pytest.raises(PhazeError, match=r"megatron: recomputed must be the same number .* 3\*2, got 3 1"):
        emit_megatron(small(layout, "1f1b", (3, 3), (3, 1)))
    assert equal_counts((2, 5, 3), 1, 2) == (2, 2, 2)
    assert equal_counts((2, 5, 3), 1, 9) == (2, 5, 2)
    assert equal_counts((2, 5, 0), 1, 9) == (2, 4, 0)


def test_what_megatron_cannot_say_is_named() -> None:
    norms = SMALL.model_copy(update={"norm_position": "post", "activation": "relu"})
    assert emit_megatron(of_model(norms)).differences == (
        "model.activation: gelu instead of relu",
        "model.norm_position: pre instead of post",
    )


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "llama2-70b", "llama-3.1-70b", "megatron-gpt-8.3b"])
def test_megatron_can_say_the_models_that_are_trained_with_it(name: str) -> None:
    model = load_transformer(name, "test")
    assert emit_megatron(of_model(model)).differences == ()


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
    ("further", "blocks", "recompute", "recomputed"),
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
    further: str, blocks: tuple[int, ...], recompute: str, recomputed: tuple[int, ...]
) -> None:
    recipe, _ = read_megatron(f"{FLAGS} {further}")
    assert (recipe.blocks, recipe.layout.recompute, recipe.recomputed) == (blocks, recompute, recomputed)
    assert recipe.layout.vp == len(blocks) // 2


def test_groups_of_microbatches_are_written_where_pp_does_not_divide_all() -> None:
    for dp, size in ((2, ""), (4, " 6")):
        layout = Layout(pp=4, vp=2, dp=dp, microbatch=1)
        recipe = small(layout, "interleaved", (0, 1, 1, 1, 1, 1, 1, 0))
        text = emit_megatron(recipe).files["megatron.txt"]
        assert (GROUP in text) == bool(size)
        assert f"{GROUP}{size}" in text or not size
        assert read_megatron(text, layout.devices)[0].layout == layout
        assert GROUP not in " ".join(megatron_software(text, recipe, load_stack("megatron-core")).unmodelled)
    with pytest.raises(
        PhazeError, match=f"{GROUP} must not leave a group of fewer than pp 4 of 6 microbatches"
    ):
        read_megatron(text.replace(f"{GROUP} 6", ""), layout.devices)


def test_two_levels_of_context_parallelism_are_written_and_read() -> None:
    recipe = small(Layout(cp=4, cp_kind="a2a+p2p:2"), "1f1b", (6,))
    text = emit_megatron(recipe).files["megatron.txt"]
    assert "--hierarchical-context-parallel-sizes 2 2" in text
    assert read_megatron(text, 4)[0].layout == recipe.layout


@pytest.mark.parametrize("offload", ["layers:4", "core_attn+attn_proj+optimizer"])
def test_what_waits_in_the_memory_of_the_host_is_written_and_read(offload: str) -> None:
    recipe = small(Layout(dp=2, zero=1, offload=offload), "1f1b", (6,))
    emitted = emit_megatron(recipe)
    assert emitted.differences == ()
    assert read_megatron(emitted.files["megatron.txt"], 2)[0].layout == recipe.layout


@pytest.mark.parametrize(
    ("further", "message"),
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
        ("--window-size 128,128", "--window-size: must be the tokens before a token and 0 after it"),
        ("--hybrid-layer-pattern M*X", "--hybrid-layer-pattern: must be letters M, .* got 'M.X'"),
        ("--decoder-first-pipeline-num-layers 24 --decoder-last-pipeline-num-layers 1",
         "decoder-first-pipeline-num-layers: must split the 24 layers into equal stages, got 24"),
        ("--micro-batch-size two", "--micro-batch-size: must be a whole number >= 1, got 'two'"),
        ("--micro-batch-size 2 4", "--micro-batch-size: must have one value, got 2"),
        ("--tensor-model-parallel-size 3", r"devices: must be a multiple of tp \* cp \* pp 6, got 16"),
        ("--pipeline-model-parallel-layout Et*24L", "layout: must have a multiple of pp 2 stages, got 1"),
        ("--pipeline-model-parallel-layout Et*10|t*10L", "blocks: must be 2 numbers with sum 24, got 10[*]2"),
        ("--num-layers-per-virtual-pipeline-stage 5", "must split the 24 layers into equal stages, got 5"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy half", "no_shard, optim, .*got 'half'"),
        ("--pipeline-model-parallel-size 16 --tensor-model-parallel-size 1",
         "pipeline-model-parallel-size: must split the 24 layers into equal stages, got 16"),
        (f"{FULL} --recompute-method uniform --recompute-num-layers 2", "must be 1 with uniform .*, got 2"),
        (f"{FULL} --recompute-num-layers 2", "--recompute-method: must be given"),
        ("--recompute-granularity selective --recompute-modules router", "--recompute-modules: .*router"),
        ("--position-embedding-type yarn", "must be one of learned_absolute, rope, none, got 'yarn'"),
        ("--hidden-dropout 1", "--hidden-dropout: must be a number >= 0 and < 1, got '1'"),
        ("--seq-length 2048", "sequence: 2048 must be > 0 and at most position_count"),
        ("--global-batch-size 60", "megatron: microbatch . dp must divide the global batch 60, got 8"),
        ("'", "flags: cannot be parsed as shell arguments: No closing quotation"),
    ],
)  # fmt: skip
def test_a_flag_that_cannot_be_is_named(further: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        read_megatron(f"{FLAGS} {further}")


def test_devices_that_nothing_says_are_the_fewest_that_the_layout_allows() -> None:
    alone = FLAGS.partition("pretrain_gpt.py")[2].replace("# of somebody", "")
    assert read_megatron(alone, 32)[0].layout.dp == 8
    assert read_megatron(alone)[0].layout.dp == 1
    experts = "--num-experts 8 --expert-model-parallel-size 8 --sequence-parallel --disable-bias-linear"
    layout = read_megatron(f"{alone} {experts} --expert-tensor-parallel-size 1")[0].layout
    assert (layout.dp, layout.devices) == (4, 16)


@pytest.mark.parametrize(
    ("blocks", "recomputed", "message"),
    [
        ((3, 2), (0, 0), "blocks: must be 2 numbers with sum 6, got 3 2"),
        ((6,), (0,), "blocks: must be 2 numbers with sum 6, got 6"),
        ((3, 3), (1, 0), "recomputed: must be at most 0[*]2, got 1 0"),
    ],
)
def test_a_recipe_holds_the_model(blocks: tuple[int, ...], recomputed: tuple[int, ...], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        emit_megatron(small(Layout(pp=2), "1f1b", blocks, recomputed))


def test_what_megatron_cannot_run_is_not_written() -> None:
    with pytest.raises(PhazeError, match="megatron: heads 12 must be a multiple of tp, got 8"):
        emit_megatron(small(Layout(tp=8), "1f1b", (6,)))
    with pytest.raises(
        PhazeError, match="blocks: only the first and the last stage may have none, got 3 0 3"
    ):
        emit_megatron(small(Layout(pp=3), "1f1b", (3, 0, 3)))


def test_layers_that_predict_further_tokens_may_be_unlike_the_last_of_a_hybrid() -> None:
    """Their letters follow a slash; all such layers must have the same ones."""
    flags = NEMOTRON.replace("MEMEMEME\n", "MEMEMEME/*E/*E\n") + " --vocab-size 131072 --seq-length 8192"
    flags += " --max-position-embeddings 8192"
    model, _ = read_model(parse_flags(flags), "x")
    assert (model.mtp, model.mtp_kind) == (2, "attention-experts")
    assert hybrid_pattern(model, (54,)) == "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME/*E/*E"
    with pytest.raises(PhazeError, match="multi-token prediction"):
        read_model(parse_flags(flags.replace("/*E/*E", "/*E/E")), "x")
