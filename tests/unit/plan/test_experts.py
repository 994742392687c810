"""Experts in given plans: states by replica group, overlapping dispatch, and published measurements."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.cost.network.network import Levels
from phaze.layout import Layout, Zero
from phaze.plan.layers.costs import HBM, NETWORK
from phaze.plan.machines import load_machine
from phaze.plan.pricing.lowering import Lowering
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import Run, plan_of_run
from phaze.plan.pricing.stage_costs import pipeline_of
from phaze.spec.models import load_transformer

MACHINE = load_machine("h100", stack="megatron-core-2024")


def run_of(model: str, layout: Layout, **changes: object) -> Run:
    spec = load_transformer(model, "test")
    sizes = {"hidden": spec.hidden, "heads": spec.heads, "layers": spec.layers, "vocab": spec.vocabulary}
    whole = {"seq": 4096, "gpus": layout.devices, "global_batch": 64 * layout.dp, "gradients": "bf16"}
    run = Run(**sizes, **whole, layout=layout, spec=spec, flash_attention=True, overlap=("dp",))  # type: ignore[arg-type]
    return replace(run, **changes)  # type: ignore[arg-type]


QWEN = run_of("qwen3-30b-a3b", Layout(ep=16, dp=16, zero=1), global_batch=1024)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_states_are_shared_by_the_replicas_of_each_group(zero: Zero) -> None:
    """2 bytes of weights, 2 of gradients, 12 of the optimizer; experts have 2 replicas, all other weights
    4.
    """
    layout = Layout(tp=2, ep=4, dp=8, zero=zero, sequence_parallel=True)
    run = replace(QWEN, layout=replace(layout, dp=4), gpus=8)
    stage = plan_of_run(run, MACHINE).stages[0]
    workload, *_ = Lowering(run.training_on(MACHINE), replace(MACHINE, stack=run.stack_of(MACHINE))).layers(
        run.layout
    )
    experts = workload.parameters("expert")
    assert experts == 48 * 128 // 4 * 3 * 2048 * 768
    rest = workload.parameters() - experts
    assert (run.layout.group("dp-cp").ranks, run.layout.edp) == (4, 2)
    expected = 0.0
    for number, replicas in ((rest, 4), (experts, 2)):
        parts = ((2, zero >= 3), (2, zero >= 2), (12, zero >= 1))
        expected += number * sum(size / (replicas if shared else 1) for size, shared in parts)
    assert stage.fixed_bytes == pytest.approx(expected)
    memory = price(plan_of_run(run, MACHINE), MACHINE).memory
    assert memory.weight_bytes + memory.optimizer_bytes == pytest.approx(expected)


def test_gradients_and_weights_of_experts_go_over_their_own_replicas() -> None:
    layout = Layout(ep=8, dp=64, zero=1)
    run = replace(QWEN, layout=layout, gpus=64, overlap=())
    whole = replace(MACHINE, stack=MACHINE.stack.model_copy(update={"bucket_parameters": (0.0, 0.0)}))
    plan = plan_of_run(run, whole)
    workload = Lowering(run.training_on(whole), whole).layers(layout).workload
    experts = 2 * workload.parameters("expert")
    rest = 2 * workload.parameters() - experts
    network, found = whole.network, pipeline_of(plan, whole).stages[0]
    assert isinstance(network, Levels)
    for kind, seconds in (("reduce_scatter", found.sync_s), ("all_gather", found.gather_s)):
        dense_s = network.seconds(kind, rest, layout.group("dp-cp"))  # type: ignore[arg-type]
        expert_s = network.seconds(kind, experts, layout.group("edp"))  # type: ignore[arg-type]
        assert seconds == pytest.approx(dense_s + expert_s)


def test_without_sequence_parallelism_experts_are_sharded_as_dense_layers_are() -> None:
    """Two of sixteen ranks have the same shard of an expert; another number of shards is refused."""
    own = Layout(tp=8, dp=2, zero=1)
    assert [own.group(axis).ranks for axis in ("etp", "ep", "edp")] == [8, 1, 2]
    assert replace(own, sequence_parallel=True).edp == 16
    run = Run(
        4096,
        32,
        32,
        4096,
        32000,
        16,
        64,
        own,
        flash_attention=True,
        spec=load_transformer("mixtral-8x7b", ""),
    )
    machine = load_machine("h100")
    with pytest.raises(PhazeError, match="sequence_parallel must be true with experts, tp 8 and etp 1"):
        plan_of_run(run, machine)
    sharded = replace(run, layout=replace(own, etp=8))
    assert price(plan_of_run(sharded, machine), machine).memory.peak_bytes > 60 * GIB


def test_experts_that_every_rank_has_once_are_not_exchanged() -> None:
    assert QWEN.layout.edp == 1
    assert MACHINE.network.seconds("all_reduce", 1e9, QWEN.layout.group("edp")) == 0


@pytest.mark.parametrize(("fixed", "held"), [(False, 0.1), (True, 0.5)])
def test_exchanges_hide_behind_pieces_of_the_other_microbatch_of_a_pair(*, fixed: bool, held: float) -> None:
    """Of 64 microbatches 63 are in a pair. By hand: an exchange takes as long as it needs, or as what is
    computed beside it, on the processors that it leaves and after it on all, with the part bound by HBM as
    much longer as its bytes take; where shares of processors are fixed, those that it holds do theirs in a
    second round.
    """
    stack = MACHINE.stack.model_copy(update={"held_processors": 13.2, "gradient_bytes": 2})
    machine = replace(MACHINE, stack=stack)
    assert machine.device is not None
    machine = machine.with_device(machine.device.model_copy(update={"fixed_shares": fixed}))
    plain, paired = (plan_of_run(replace(QWEN, overlap=over), machine).stages[0] for over in ((), ("ep",)))
    cost = Lowering(QWEN.training_on(MACHINE), machine).layers(QWEN.layout).costs["block"]
    passes = [float(one.sum() - one[NETWORK]) for one in (cost.forward_s, cost.backward_s)]
    inner = cost.experts_s
    outer = [one - part for one, part in zip(passes, inner, strict=True)]
    beside = [(cost.exchanges_s[0, 0], inner[1]), (cost.exchanges_s[0, 1], outer[1])]
    beside += [(cost.exchanges_s[1, 0], outer[0]), (cost.exchanges_s[1, 1], inner[0])]
    row = 2 * QWEN.layout.microbatch * 4096 * 2048 * 8  # bytes of all rows, of which one of ep stays
    waited_s = cost.hbm_share * 2 * row * (1 - 1 / QWEN.layout.ep) / machine.hbm_bytes_per_s
    together_s = sum(max(sent, work + held * sent + waited_s) for sent, work in beside)
    saved_s = passes[0] + passes[1] + cost.exchanges_s.sum() - together_s
    before, after = (one.forward_s + one.backward_s for one in (plain, paired))
    assert before - after == pytest.approx(48 * saved_s * 63 / 64)
    assert 0 < inner[0] < inner[1] < passes[1]
    assert paired.work_bytes - plain.work_bytes == pytest.approx(cost.kept_bytes("none")[0])
    assert cost.forward_s[HBM] > 0


def test_tokens_that_go_once_to_a_rank_take_less() -> None:
    stack = MACHINE.stack.model_copy(update={"dispatch": "tokens"})
    once = (
        Lowering(QWEN.training_on(MACHINE), replace(MACHINE, stack=stack)).layers(QWEN.layout).costs["block"]
    )
    rows = Lowering(QWEN.training_on(MACHINE), MACHINE).layers(QWEN.layout).costs["block"]
    nodes = 2 * (1 - comb(64, 8) / comb(128, 8))
    inside, between = MACHINE.network.tiers  # type: ignore[attr-defined]
    sent = 4096 * 2048 * 2 * nodes / 2 / between.bandwidth_bytes_per_s + between.latency_s
    sent += max(inside.start_s, between.start_s)
    assert once.exchanges_s == pytest.approx(sent, rel=1e-3)
    assert once.exchanges_s[0, 0] < rows.exchanges_s[0, 0] / 3
    start_s = max(inside.start_s, between.start_s)
    assert once.links_s[:, 1] == pytest.approx(2 * (sent - start_s), rel=1e-3)
    assert (once.links_s[:, 1] < rows.links_s[:, 1] / 3).all()


def test_overlap_of_exchanges_gains_what_nvidia_measured_without_being_fitted() -> None:
    """Qwen3-30B-A3B on 16 H100, EP 16 over two nodes, all-to-all, a batch of 1,024: 41.25 s, paired 31.31
    (Megatron-Bridge, skills/mbridge-perf-expert-parallel-overlap, 2026-05-18).
    """
    usual, nodes = QWEN.stack_of(MACHINE).overlap, MACHINE.of_size(16)
    times = [
        price(plan_of_run(replace(QWEN, overlap=over), nodes), nodes).time_s
        for over in (usual, (*usual, "ep"))
    ]
    assert times[0] == pytest.approx(41.25, rel=0.05)
    assert times[1] == pytest.approx(31.31, rel=0.07)
    assert times[0] / times[1] == pytest.approx(41.25 / 31.31, rel=0.05)


def test_peak_of_qwen3_is_near_the_published_one() -> None:
    """62.166 GiB on H100 with overlapping dispatch (Megatron-Bridge, skills, August 2026); pools of CUDA
    graphs, buffers of HybridEP and natural imbalance are not modelled.
    """
    run = replace(QWEN, overlap=("dp", "ep"))
    peak = price(plan_of_run(run, MACHINE), MACHINE).memory.peak_bytes / GIB
    assert 0.94 * 62.166 < peak < 62.166


@pytest.mark.parametrize(
    ("module", "without", "saved_gb"), [("moe_act", "none", 4.194), ("moe+layernorm", "moe", 1.014)]
)
def test_modules_free_what_nvidia_measured(module: str, without: str, saved_gb: float) -> None:
    """Nemotron-3-Nano with EP 8 and 8,192 tokens (Megatron-Bridge, skills, August 2026): within 1 %."""
    layout = Layout(ep=8, dp=8, zero=1)
    recomputed = "layernorm+moe" if module == "moe+layernorm" else module
    peaks = [
        price(plan_of_run(run, MACHINE), MACHINE).memory.peak_bytes
        for run in (
            run_of("nemotron-3-nano-30b-a3b", replace(layout, recompute=again), seq=8192)
            for again in (without, recomputed)
        )
    ]
    assert (peaks[0] - peaks[1]) / 1e9 == pytest.approx(saved_gb, rel=0.01)


def test_full_recomputation_of_some_blocks_lies_between() -> None:
    layout = Layout(ep=16, dp=16, zero=1, recompute="full")
    blocks = (0, 12, 48)
    stages = [plan_of_run(replace(QWEN, layout=layout, recomputed=k), MACHINE).stages[0] for k in blocks]
    stash, again = (
        np.array([getattr(one, name) for one in stages]) for name in ("stash_bytes", "recompute_s")
    )
    assert np.diff(stash)[1] == pytest.approx(3 * np.diff(stash)[0])
    assert np.diff(again)[1] == pytest.approx(3 * np.diff(again)[0])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"spec": None}, "ep must be 1 for a model without experts, got 16"),
        (
            {"overlap": ("ep",), "layout": Layout(ep=16, dp=16, recompute="full")},
            "overlap: ep needs ep > 1, .*full",
        ),
        ({"overlap": ("ep",), "layout": Layout(dp=16)}, "overlap: ep needs ep > 1, .* got ep 1"),
        ({"layout": Layout(ep=32, dp=16)}, "ep [*] etp must divide tp [*] cp [*] dp 16, got 32"),
        ({"layout": Layout(cp=2, dp=8, cp_kind="a2a+p2p:2")}, "must have 1 < k < cp 2 that divides it"),
        ({"division": ("E" + "t" * 47 + "L",)}, "pipeline_layout must have layers = 48 entries t, got 47"),
        ({"division": ("Et", "t" * 47 + "L")}, "pipeline_layout must have pp [*] chunks = 1 stages, got 2"),
        ({"division": ("E" + "t" * 48 + "mL",)}, "pipeline_layout must have mtp = 0 entries m, got 1"),
    ],
)
def test_what_a_run_cannot_be_is_one_message(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(PhazeError, match=problem):
        plan_of_run(replace(QWEN, **changes), MACHINE)  # type: ignore[arg-type]


def test_multi_token_prediction_is_behind_the_first_rank() -> None:
    layout = Layout(pp=2, vp=2, ep=4, dp=4)
    stages = ("Et", "t", "t" * 24 + "m", "t" * 22 + "L")
    run = replace(
        QWEN, layout=layout, gpus=8, mtp=1, division=stages, schedule="interleaved", global_batch=64
    )
    with pytest.raises(
        PhazeError, match="m in the last chunk of a pipeline rank behind the first, got stage 3"
    ):
        run.check()
    replace(run, division=("Et", "t", "t" * 24, "t" * 22 + "mL")).check()
