"""A runtime refuses the layouts that its own checks refuse, with their values, and runs neighbouring ones."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from phaze.layout import Layout
from phaze.runtimes.deepspeed import DEEPSPEED
from phaze.runtimes.maxtext import MAXTEXT
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import Runtime, TrainingTask
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.spec.blocks import Experts, Latent
from phaze.spec.model import Model
from phaze.spec.scans import DeltaNet, Mamba
from tests.unit.runtimes.examples import SMALL

UNEVEN = SMALL.model_copy(update={"feed_forward": 282})
TIED = SMALL.model_copy(update={"tied_embeddings": True})
BOTH = (MEGATRON, TORCHTITAN)


class Refused(NamedTuple):
    """Layout with its schedule that breaks one rule, and a valid neighbour."""

    runtimes: tuple[Runtime, ...]
    rule: str
    wrong: Layout
    right: Layout
    reason: str
    """End of the message."""
    model: Model = SMALL
    global_batch: int = 24
    schedules: tuple[str, str] = ("1f1b", "1f1b")


EXPERTS = Experts(count=6, per_token=2, width=30, shared_width=40)
SPARSE = SMALL.model_copy(update={"experts": EXPERTS})
SCANNING = SMALL.model_copy(update={"mamba": Mamba(heads=8, head_size=8, state=16, groups=2)})
SHARING = SMALL.model_copy(update={"mamba": Mamba(heads=12, head_size=8, state=16, groups=2)})
DELTA = DeltaNet(key_heads=4, value_heads=4, key_size=8, value_size=8)
LATENT = SMALL.model_copy(
    update={"mtp": 1, "latent": Latent(query_rank=32, kv_rank=16, nope_size=8, rope_size=4, value_size=8)}
)
LOW = Layout(microbatch=4, compute="mxfp8")
CASES = [
    Refused((DEEPSPEED,), "expert tokens", Layout(tp=2, etp=1), Layout(tp=2, etp=2),
        "without sequence_parallel each of tp 2 ranks has all tokens: experts must be sharded by tp, so "
        "etp 2, or with ep >= 2 be whole, so etp 1; got ep 1 and etp 1", model=SPARSE),
    Refused((DEEPSPEED,), "expert tokens", Layout(tp=4, ep=3, dp=3, etp=2), Layout(tp=4, ep=3, dp=3, etp=1),
        "got ep 3 and etp 2", model=SPARSE),
    Refused(BOTH, "low precision", replace(LOW, tp=2), LOW,
        "products in mxfp8 need rows in multiples of 32, and shards of hidden, attention and feed-forward "
        "widths in multiples of 32; got 960 rows, hidden 96, feed-forward 288 and experts 0 with tp 2 and "
        "etp 1"),
    Refused(BOTH, "scans", Layout(tp=4), Layout(tp=2),
        "heads of scans must be a multiple of tp * cp, their groups a multiple of tp, and groups / tp a "
        "multiple or a divisor of cp, got tp 4 and cp 1", model=SCANNING),
    Refused(BOTH, "scans", Layout(cp=3, zero=3), Layout(cp=4, zero=3), "got tp 1 and cp 3", model=SHARING),
    Refused(BOTH, "experts", Layout(dp=4, ep=4, zero=3), Layout(dp=4, ep=2, zero=3),
        "ep must divide the 6 experts of a layer, got 4", model=SPARSE),
    Refused(BOTH, "expert ranks", Layout(dp=4, ep=3, zero=3), Layout(dp=3, ep=3, zero=3),
        "ep * etp must divide tp * cp * dp 4, got 3", model=SPARSE),
    Refused(BOTH, "expert slices", Layout(tp=3, ep=3, sequence_parallel=True),
        Layout(tp=4, ep=2, sequence_parallel=True),
        "the expert width 30 must be a multiple of etp, got 1, and the width of shared experts 40 a "
        "multiple of tp, got 3", model=SPARSE.model_copy(update={"key_value_heads": 12})),
    Refused((MEGATRON,), "expert slices", Layout(dp=4, etp=4), Layout(dp=4, etp=2),
        "the expert width 30 must be a multiple of etp, got 4, and the width of shared experts 40 a "
        "multiple of tp, got 1", model=SPARSE),
    Refused((MEGATRON,), "context heads", Layout(tp=2, cp=5, cp_kind="a2a"),
        Layout(tp=2, cp=2, cp_kind="a2a"),
        "the key-value heads 4 of one of tp 2 ranks must be a multiple of the ranks that exchange heads "
        "(cp, or k of a2a+p2p:k, which divides cp), got a2a with cp 5"),
    Refused((MEGATRON,), "context heads", Layout(cp=6, cp_kind="a2a+p2p:4"),
        Layout(cp=4, cp_kind="a2a+p2p:2"), "got a2a+p2p:4 with cp 6"),
    Refused((MEGATRON,), "expert sequences", Layout(tp=2, dp=2, ep=2),
        Layout(tp=2, dp=2, ep=2, sequence_parallel=True),
        "experts with tp 2 need sequence_parallel, got false", model=SPARSE),
    Refused((MEGATRON,), "expert bias", Layout(tp=2, etp=2, sequence_parallel=True),
        Layout(tp=2, sequence_parallel=True), "experts with biases need etp 1, got 2",
        model=SMALL.model_copy(update={"experts": EXPERTS.model_copy(update={"bias": True})})),
    Refused((MEGATRON,), "whole sequences", Layout(cp=2), Layout(tp=2),
        "delta rules and sparse attention need cp 1, got 2", model=SMALL.model_copy(update={"delta": DELTA})),
    Refused((MEGATRON,), "delayed scaling", Layout(compute="fp8", recompute="layernorm"),
        Layout(compute="fp8", recompute="mlp"),
        "fp8 does not support recomputing moe_act or layernorm, got layernorm"),
    Refused((TORCHTITAN,), "expert mesh", Layout(dp=2, ep=2), Layout(dp=2, ep=2, zero=2),
        "ep must divide cp * tp without sharding over replicas (zero 0), got ep 2, cp 1 and tp 1",
        model=SPARSE),
    Refused((TORCHTITAN,), "expert widths", Layout(tp=2, ep=2, etp=2, dp=2, zero=2),
        Layout(tp=2, etp=2, dp=2, zero=2),
        "experts are sharded whole with ep >= 2, else by tp, so etp must be 1 or tp, got ep 2, etp 2 and "
        "tp 2", model=SPARSE),
    Refused((TORCHTITAN,), "further tokens", Layout(pp=2), Layout(),
        "layers of multi-token prediction need latent attention, pp 1 and cp 1, got 1 with pp 2 and cp 1",
        model=LATENT),
    Refused(BOTH, "virtual stages", Layout(pp=2), Layout(pp=2, vp=2),
        "vp must be >= 2 under interleaved, got 1", schedules=("interleaved",) * 2),
    Refused(BOTH, "virtual stages", Layout(pp=2, vp=2), Layout(pp=2), "vp must be 1 under 1f1b, got 2"),
    Refused((TORCHTITAN,), "pipeline", Layout(), Layout(pp=2),
        "zb-h1 needs a pipeline, pp must be >= 2, got 1", schedules=("zb-h1",) * 2),
    Refused(BOTH, "heads", Layout(tp=8), Layout(tp=4), "heads 12 must be a multiple of tp, got 8"),
    Refused((MEGATRON,), "key-value heads", Layout(tp=6), Layout(tp=4),
        "key-value heads 4 must be a multiple or a divisor of tp, and their width 32 a multiple of tp, got "
        "6"),
    Refused((MEGATRON,), "key-value heads", Layout(tp=6), Layout(tp=4),
        "key-value heads 2 must be a multiple or a divisor of tp, and their width 40 a multiple of tp, got 6",
        model=SMALL.model_copy(update={"key_value_heads": 2, "head_size": 20})),
    Refused((TORCHTITAN,), "key-value heads", Layout(tp=12), Layout(tp=4),
        "key-value heads 4 must be a multiple of tp, got 12"),
    Refused(BOTH, "feed-forward", Layout(tp=4), Layout(tp=2),
        "the feed-forward width 282 must be a multiple of tp, got 4", model=UNEVEN),
    Refused(BOTH, "sequence parallel", Layout(sequence_parallel=True), Layout(tp=2, sequence_parallel=True),
        "sequence_parallel shards activations over tp, so tp must be >= 2, got 1"),
    Refused((MEGATRON,), "context parallel", Layout(cp=16), Layout(cp=15),
        "the sequence 240 must be a multiple of 2 * cp, got cp 16"),
    Refused((MEGATRON,), "sequence slices", Layout(tp=4, cp=24, sequence_parallel=True), Layout(tp=4, cp=24),
        "the sequence 240 must be a multiple of cp * tp with sequence_parallel, got cp 24 and tp 4"),
    Refused((TORCHTITAN,), "sequence slices", Layout(tp=4, cp=4, zero=3, sequence_parallel=True),
        Layout(tp=4, cp=4, zero=3),
        "the sequence 240 must be a multiple of tp with sequence_parallel, and of 2 * cp * tp with cp >= "
        "2, got tp 4 and cp 4"),
    Refused(BOTH, "batch", Layout(dp=5, microbatch=2), Layout(dp=4, microbatch=2),
        "microbatch * dp must divide the global batch 24, got 10"),
    Refused(BOTH, "stages", Layout(pp=3, vp=3), Layout(pp=2, vp=4),
        "pp * vp must be at most 8: no stage may be empty, and there are 6 layers, an embedding and a "
        "head; got 9", schedules=("interleaved",) * 2),
    Refused((MEGATRON,), "microbatch groups", Layout(pp=4, vp=2, dp=8), Layout(pp=4, vp=2, dp=4),
        "microbatches of a replica must be at least pp 4 under schedule interleaved, got 3",
        schedules=("interleaved",) * 2),
    Refused((MEGATRON,), "sharded pipeline", Layout(pp=2, dp=2, zero=2), Layout(pp=2, dp=2, zero=1),
        "zero 2 and 3 are Megatron-FSDP, which has no pipeline, so pp must be 1, got 2"),
    Refused(BOTH, "replicated shards", Layout(dp=3, zero=2, replicate=2), Layout(dp=4, zero=2, replicate=2),
        "replicate 2 needs zero >= 1, and must divide dp and the ranks with the same experts; got zero 2, "
        "dp 3"),
    Refused((MEGATRON,), "moments", Layout(dp=2, optimizer="adam-bf16"),
        Layout(dp=2, zero=1, optimizer="adam-bf16"),
        "optimizer adam-bf16 needs a distributed optimizer, zero >= 1, got 0"),
    Refused((MEGATRON,), "offload", Layout(pp=2, offload="layers:2"), Layout(dp=2, offload="layers:2"),
        "offload of k layers needs pp 1, recompute none and more than k layers; offloaded modules must not "
        "be fully recomputed; attn_proj needs core_attn, expert_fc1 and moe_act need experts, optimizer "
        "needs zero 1; got layers:2 with pp 2, recompute none, zero 0"),
    Refused((TORCHTITAN,), "few microbatches", Layout(pp=4, dp=8), Layout(pp=4, dp=8),
        "microbatches of a replica must be at least pp 4 under gpipe, got 3", schedules=("gpipe", "zb-h1")),
    Refused((TORCHTITAN,), "rounds", Layout(pp=3, vp=2), Layout(pp=4, vp=2),
        "microbatches of a replica must split into equal rounds of at least pp 3 under interleaved, got 20",
        schedules=("interleaved",) * 2, global_batch=20),
    Refused((TORCHTITAN,), "unfilled stages", Layout(pp=4, vp=2, dp=4), Layout(pp=4, vp=2, dp=4),
        "microbatches of a replica must be at least the number of stages, 8, under dualpipev, got 6",
        schedules=("dualpipev", "zbv")),
    Refused((TORCHTITAN,), "replicas", Layout(cp=2), Layout(cp=2, zero=2),
        "zero 0 replicates the weights, but cp shards them, so cp must be 1, got 2"),
    Refused((TORCHTITAN,), "tied pipeline", Layout(pp=2), Layout(tp=2),
        "weight tying is not supported with a pipeline, so pp must be 1 with tied embeddings, got 2",
        model=TIED),
    Refused((MAXTEXT,), "no pipeline", Layout(pp=2), Layout(tp=2),
        "plans have no stage axis, so pp must be 1, got 2"),
    Refused((MAXTEXT,), "key-value heads", Layout(tp=4), Layout(tp=2),
        "key-value heads 2 must be a multiple of tp, got 4",
        model=SMALL.model_copy(update={"key_value_heads": 2})),
    Refused((MAXTEXT,), "expert axis", Layout(tp=2, ep=2, etp=2), Layout(dp=2, ep=2, zero=3),
        "ep must divide dp 1, got 2", model=SPARSE),
    Refused((MAXTEXT,), "expert widths", Layout(tp=2), Layout(tp=2, etp=2),
        "tensor parallelism also shards the experts, so etp must be tp 2, got 1", model=SPARSE),
    Refused((MAXTEXT,), "sequence slices", Layout(cp=16, zero=3), Layout(cp=8, zero=3),
        "the sequence 240 must be a multiple of 2 * cp with cp >= 2, times tp with sequence_parallel, got "
        "tp 1 and cp 16"),
    Refused((MAXTEXT,), "fsdp", Layout(dp=2), Layout(dp=2, zero=3),
        "weights are sharded over dp * cp, so zero must be 3, got 0"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.runtimes[0].name}-{case.rule}")
def test_a_rule_names_what_it_refuses_and_lets_its_neighbour_pass(case: Refused) -> None:
    for runtime in case.runtimes:
        wrong, right = (
            TrainingTask(case.model, 240, case.global_batch, layout.devices)
            for layout in (case.wrong, case.right)
        )
        pairs = list(zip((case.wrong, case.right), case.schedules, strict=True))
        reason = runtime.why_not(wrong, *pairs[0]) or ""
        assert reason.startswith(f"{runtime.name}: ")
        assert reason.endswith(case.reason)
        assert runtime.why_not(right, *pairs[1]) is None
        grid = runtime.grid(case.model, pairs)
        assert runtime.illegal(wrong, grid)[case.rule].tolist() == [True, False]


def test_every_rule_has_a_case() -> None:
    for runtime in BOTH:
        assert {rule.name for rule in runtime.rules} == {
            case.rule for case in CASES if runtime in case.runtimes
        } | ({"pipeline"} if runtime is MEGATRON else set())


@pytest.mark.parametrize(
    ("layout", "schedule", "reason"),
    [
        (Layout(dp=2), "gpipe", "schedule must be one of 1f1b, interleaved, got gpipe"),
        (Layout(cp=2, cp_kind="a2a+p2p"), "1f1b", "cp_kind must be one of all_gather, p2p, a2a, got a2a+p2p"),
        (Layout(dp=3), "1f1b", "tp * cp * pp * dp must be the number of devices, 2, got 3"),
    ],
)
def test_what_megatron_has_no_word_for_is_refused(layout: Layout, schedule: str, reason: str) -> None:
    assert MEGATRON.why_not(TrainingTask(SMALL, 240, 24, 2), layout, schedule) == f"megatron: {reason}"


def test_torchtitan_has_no_sharded_optimizer_alone() -> None:
    task = TrainingTask(SMALL, 240, 24, 2)
    assert TORCHTITAN.why_not(task, Layout(dp=2, zero=1), "1f1b") == (
        "torchtitan: zero must be one of 0, 2, 3, got 1"
    )


def test_a_sequence_in_thousands_is_answered_with_one_that_is_allowed() -> None:
    for sequence, advice in ((8000, "; 8192 is one"), (8001, ""), (8192, None)):
        layout = Layout(cp=64, tp=2)
        task = TrainingTask(LLAMA_405B, sequence, 128, 128)
        reason = MEGATRON.why_not(task, layout, "1f1b")
        expected = f"megatron: the sequence {sequence} must be a multiple of 2 * cp, got cp 64{advice}"
        assert reason == (None if advice is None else expected)


LLAMA_405B = Model(
    name="llama-3.1-405b", layers=126, hidden=16384, heads=128, key_value_heads=8, feed_forward=53248,
    vocabulary=128256, positions="rotary", position_count=131072, tied_embeddings=False,
)  # fmt: skip
GPT_145B = Model(
    name="gpt-145b", layers=80, hidden=12288, heads=96, feed_forward=49152, vocabulary=51200,
    position_count=2048, fused_qkv=True,
)  # fmt: skip
GPT_1T = GPT_145B.model_copy(
    update={"name": "gpt-1t", "layers": 128, "hidden": 25600, "heads": 160, "feed_forward": 102400}
)


@pytest.mark.parametrize(
    ("model", "sequence", "global_batch", "layout", "schedule"),
    [
        # Llama 3 (Dubey et al. 2024, Table 4), here with a layer, or the embedding or head, a virtual stage.
        (LLAMA_405B, 8192, 2048, Layout(8, 1, 1, 1, 16, 8, 128, 1, True, 1), "interleaved"),
        (LLAMA_405B, 131072, 128, Layout(8, 16, 1, 1, 16, 8, 8, 1, True, 1), "interleaved"),
        # Narayanan et al. (SC 2021, Table 1).
        (GPT_145B, 2048, 2304, Layout(tp=8, pp=8, vp=2, dp=24, microbatch=2), "interleaved"),
        (GPT_1T, 2048, 3072, Layout(tp=8, pp=64, dp=6, microbatch=1), "1f1b"),
    ],
    ids=["llama-3-405b", "llama-3-405b-long", "gpt-145b", "gpt-1t"],
)
def test_published_layouts_are_legal(
    model: Model, sequence: int, global_batch: int, layout: Layout, schedule: str
) -> None:
    task = TrainingTask(model, sequence, global_batch, layout.devices)
    assert MEGATRON.why_not(task, layout, schedule) is None
