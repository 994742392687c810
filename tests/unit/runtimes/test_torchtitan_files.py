"""torchtitan's job files, functions of its registry and flags are read by one table of settings."""

import json
import tomllib
from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import read_torchtitan, torchtitan_software
from phaze.spec.models import load_transformer
from phaze.spec.systems import load_stack
from tests.unit.runtimes.examples import SMALL

JOB = """
[job]
dump_folder = "./outputs"
[model] # of 2025
name = "llama3"
flavor = "70B"
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
local_batch_size = 4
seq_len = 240
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
LAYOUT = Layout(tp=2, dp=4, microbatch=4, sequence_parallel=True, zero=3, recompute="full")
REGISTERED = """
def mine() -> Trainer.Config:
    model_spec = model_registry("8B", attn_backend="flex")
    compiled = CompileConfig(enable=True, components=["model"])
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=1000)),
        hf_assets_path="./assets/hf",
        model_spec=model_spec,
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=4 * 240, max_context_length=240, steps=1000
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=FullAC.Config(),
        compile=compiled,
    )
"""


def test_job_files_in_toml_and_json_are_read_as_flags() -> None:
    sections = tomllib.loads(JOB)
    flags = " ".join(
        f"--{s}.{name} {value}" for s, section in sections.items() for name, value in section.items()
    )
    for text in (JOB, json.dumps(sections), json.dumps(sections | {"quantize": {"linear": {}}}), flags):
        recipe, unread = read_torchtitan(text, SMALL, 8)
        assert (recipe.layout, recipe.sequence, recipe.global_batch) == (LAYOUT, 240, 16)
        assert set(unread) == {"job.dump_folder", "model.name", "model.flavor", "optimizer.lr"}
        assert not any("compile" in remark for remark in _named(text))


def _named(text: str, **stack: object) -> tuple[str, ...]:
    recipe = read_torchtitan(text, SMALL, 8)[0]
    return torchtitan_software(text, recipe, load_stack("torchtitan").model_copy(update=stack)).unmodelled


def test_a_function_of_the_registry_counts_its_batch_in_tokens() -> None:
    recipe, unread = read_torchtitan(REGISTERED, SMALL, 8)
    assert (recipe.layout, recipe.sequence, recipe.global_batch) == (LAYOUT, 240, 16)
    assert set(unread) == {"hf_assets_path", "loss.loss_fn", "optimizer.lr", "training.steps"}
    assert _named(REGISTERED) == ()
    stages = REGISTERED.replace(
        "tensor_parallel_degree=2", "pipeline_parallel_degree=2, num_pp_microbatches=3"
    )
    stages = stages.replace("steps=1000", "num_tokens_per_train_step=240 * 96")
    recipe = read_torchtitan(stages, SMALL, 8)[0]
    assert (recipe.layout.microbatch, recipe.global_batch, recipe.layout.pp) == (4, 96, 2)
    usual = read_torchtitan("config.training.max_context_length = 2048", SMALL, 2)[0]
    assert (usual.sequence, usual.layout.microbatch) == (2048, 8)


def test_a_loss_in_chunks_needs_less_memory_for_logits() -> None:
    model = load_transformer("llama-3.1-8b", "test")
    text = REGISTERED.replace("240", "8192").replace("FullAC.Config()", "None")
    machine = load_machine("h100", devices=8, stack="torchtitan")
    peaks = {}
    for chunks in (8, 1):
        changed = text.replace("loss_fn", f"num_chunks={chunks}, loss_fn") if chunks > 1 else text
        changed = changed if chunks > 1 else text.replace("ChunkedLossWrapper", "CrossEntropyLoss")
        recipe = read_torchtitan(changed, model, 8)[0]
        software = torchtitan_software(changed, recipe, machine.stack)
        assert software.stack.logit_bytes == 12 / chunks
        question = PlanQuestion(recipe.task, replace(machine, stack=software.stack), TORCHTITAN)
        (rank,) = PricedLayout.of_recipe(question, recipe).memory
        peaks[chunks] = rank.peak_gib
    logits = 4 * 8192 * model.vocabulary / 2
    assert peaks[1] - peaks[8] == pytest.approx(10 * logits / 2**30, rel=0.3)


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        ("training.batch_size", "training.local_batch_size"),
        ("training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"),
        ("training.data_parallel_degree", "parallelism.data_parallel_shard_degree"),
        ("training.compile", "compile.enable"),
        ("experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"),
    ],
)
def test_earlier_names_are_read(earlier: str, now: str) -> None:
    for value in ("2", "true") if earlier.endswith("compile") else ("2",):
        texts = [
            f"--training.seq_len 240 --training.global_batch_size 32 --{name} {value}"
            for name in (earlier, now)
        ]
        assert read_torchtitan(texts[0], SMALL, 2) == read_torchtitan(texts[1], SMALL, 2)


def test_converters_of_a_job_file_are_those_of_the_registry() -> None:
    wide = SMALL.model_copy(update={"hidden": 256, "heads": 8, "feed_forward": 512})
    for head, section, compute in (
        ("converters = ['float8']", "[float8]", "fp8-cs"),
        ("converters = 'quantize.linear.float8'", "[quantize.linear.float8]", "fp8-cs"),
        ("converters = ['mx']", "[quantize.linear.mx]", "mxfp8"),
        ("converters = []", "[float8]", "bf16"),
    ):
        text = JOB.replace("[model] # of 2025", f"[model]\n{head}") + f"{section}\nfilter_fqns = ['output']\n"
        recipe, unread = read_torchtitan(text, wide, 8)
        assert recipe.layout.compute == compute
        assert ("float8.filter_fqns" in unread) == (compute == "bf16")
    flags = "--training.seq_len 240 --model.converters=quantize.linear.float8,quantize.grouped_mm.float8"
    assert read_torchtitan(flags, wide, 2)[0].layout.compute == "fp8-cs"
    text = JOB + "[float8]\nenable_float8_linear = true\nenable_fsdp_float8_all_gather = true\n"
    recipe = read_torchtitan(text, wide, 8)[0]
    named = torchtitan_software(text, recipe, load_stack("torchtitan")).unmodelled
    assert recipe.layout.compute == "fp8-cs"
    assert named[0] == "Float8LinearConverter.enable_fsdp_float8_all_gather True"
    assert not any("by rows" in remark for remark in named)


SET = "config.training.seq_len = 8\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello = 1", "torchtitan: neither layout nor batch is set; pass a job file in TOML or JSON"),
        ("[training]\nsteps = 10", "torchtitan: neither layout nor batch is set"),
        ("[training]\nseq_len = ", "settings: is not valid TOML"),
        ('{"training": 1, "training": 2}', "settings: is not valid JSON: key 'training' is given twice"),
        (JOB.replace("seq_len", "seq_length"), "training.seq_length: is unknown; did you mean training.seq"),
        (JOB.replace("[parallelism]", "[parallelsm]"), "parallelsm.tensor_parallel_degree: is unknown"),
        (JOB.replace('"full"', '"selective"'), "selective_ac_option: is modelled only as op, got '2'"),
        (JOB.replace('mode = "full"', ""), "selective_ac_option: is modelled only as op, got '2'"),
        (JOB.replace('"full"', '"memory_budget"'), "checkpoint: must be one of .*got 'memory_budget'"),
        (JOB.replace("enable = true", "enable = true\n[training.x]\ny = 1"), "training.x.y: is unknown"),
        (JOB.replace('flavor = "70B"', "converters = ['fp6']"), "converters: must be of float8, .* 'fp6'"),
        ("--job.config_file x.toml --training.seq_len 5", "--job.config_file: takes settings from"),
        ("--module llama3 --config llama3_8b --training.seq_len 5", "--config: takes settings from"),
        ("--training.seq_len $SEQ", "training.seq_len: '[$]SEQ' is not set by a plain assignment"),
        (REGISTERED.replace("max_context_length=240", "max_context_length=7"), "multiple of .* 7, got 960"),
        (REGISTERED.replace("steps=1000", "seq_len=240"), "training.seq_len: must be left out"),
        (REGISTERED.replace("activation_checkpoint=", "activation_checkpoints="), "checkpoints: is unknown"),
        (SET + "if x:\n    config.training.seq_len = 9", "must be assignments, .* 'if x:'"),
        (SET + "enable_fused_swiglu(config)", "must be assignments, .* got 'enable_fused"),
        (SET + "config.training.seq_len *= 9", "must be assignments, .* got 'config.train"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_whole_is_refused(text: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        read_torchtitan(text, SMALL, 8)
