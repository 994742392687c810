"""Communication that overlaps with compute, its conditions, and the slowdown of kernels meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Kind
from phaze.layout import Layout
from phaze.pipeline.stages import StageCost
from phaze.plan.machines import load_machine
from phaze.plan.plan import Machine
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import Run, plan_of_run
from phaze.plan.pricing.stage_costs import pipeline_of, with_exchanges
from phaze.plan.terms.overlap import kept_apart, longer_s, lost_share, lost_to_messages, moved_s
from phaze.spec.overlap import Overlap, Overlapped, OverlapShare
from phaze.spec.system import Stack
from phaze.spec.systems import load_stack
from tests.unit.plan.test_experts import MACHINE, QWEN
from tests.unit.validate.examples import SMALL, changed, ideal_network, machine

H100, GB300 = load_machine("h100"), load_machine("gb300")


def test_slices_hide_with_sequence_parallelism_inside_one_domain() -> None:
    hides = Layout(tp=8, dp=4, sequence_parallel=True)
    assert not kept_apart(hides, H100)
    assert "sequence parallelism" in kept_apart(replace(hides, sequence_parallel=False), H100)
    assert "one NVLink domain" in kept_apart(replace(hides, tp=16, dp=2), H100)
    assert not kept_apart(replace(hides, tp=16, dp=2), GB300)  # a domain of 72
    without = replace(H100, stack=H100.stack.model_copy(update={"overlap": ("dp",)}))
    assert "the stack does not" in kept_apart(hides, without)


def test_slices_and_shards_do_not_both_hide_before_blackwell() -> None:
    sharded = Layout(tp=8, dp=4, sequence_parallel=True, zero=3)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in kept_apart(sharded, H100)
    assert not kept_apart(sharded, GB300)


def test_a_collective_holds_sixteen_processors_and_a_message_two() -> None:
    assert lost_share(H100) == pytest.approx(16 / 132)
    assert lost_to_messages(H100) == pytest.approx(2 / 132)
    none = replace(H100, stack=H100.stack.model_copy(update={"held_processors": 0}))
    assert (lost_share(none), lost_to_messages(none)) == (0.0, 0.0)


def test_a_pass_is_longer_by_what_kernels_lose_until_the_exchange_is_longer() -> None:
    """Ten operators: nine overlap with the exchange of the next one."""
    stage = StageCost(forward_s=1.0, operators=10)
    short = with_exchanges(stage, 0.5, 0.0, lost_s=(0.05, 0.0))
    assert short.forward_s == pytest.approx(0.05 + 0.9 * (1.0 + 0.1 * 0.5) + 0.1)
    long = with_exchanges(stage, 2.0, 0.0, lost_s=(0.2, 0.0))
    assert long.forward_s == with_exchanges(stage, 2.0, 0.0).forward_s
    apart = with_exchanges(stage, 0.5, 0.0, overlap=False)
    assert apart.forward_s == pytest.approx(1.5)


def test_a_collective_moves_two_bytes_through_hbm_for_each_that_it_sends_and_three_where_it_adds() -> None:
    """NCCL's maintainer, NVIDIA/nccl issue 1428; an all-reduce scatters and gathers."""
    size, hbm = 8e9, H100.hbm_bytes_per_s
    moved = {"all_gather": 14e9, "reduce_scatter": 21e9, "all_reduce": 35e9, "all_to_all": 14e9, "send": 16e9}
    for kind, nbytes in moved.items():
        assert moved_s(H100, cast(Kind, kind), size, 8) == pytest.approx(nbytes / hbm)
        assert moved_s(H100, cast(Kind, kind), size, 1) == 0
    assert longer_s(lost_share(H100), 2.0, 0.5, 0.4) == pytest.approx(0.5 + 1.5 * 16 / 132 + 0.4)


def test_slower_kernels_cost_nothing_while_the_device_idles() -> None:
    """A pass that waits for its host for longer than collectives slow its kernels takes the same time."""
    slower_s = 1.5 * 0.1 + 0.4
    assert longer_s(0.1, 2.0, 0.5, 0.4, 0.2) == pytest.approx(0.5 + slower_s - 0.2)
    assert longer_s(0.1, 2.0, 0.5, 0.4, 1.0) == 0.5
    run = changed(SMALL, zero=3, tp=1, pp=1, dp=8, gpus=8, overlap=("dp",), microbatch=8, global_batch=64)
    own = replace(ideal_network(machine()), stack=Stack(held_processors=0))
    plan = plan_of_run(run, own)

    def passes_s(idle_s: float, *shares: float) -> tuple[float, float]:
        stage = replace(plan.stages[0], idle_s=(idle_s, idle_s), hbm_shares=shares)
        cost = pipeline_of(replace(plan, stages=(stage,)), own).stages[0]
        return cost.forward_s, cost.backward_s

    assert passes_s(0.0, 0.2, 0.0) > passes_s(0.0)
    assert passes_s(1.0, 0.2, 0.0) == passes_s(1.0) == passes_s(0.0)


def test_layers_bound_by_hbm_wait_for_what_replicas_exchange() -> None:
    """With ZeRO 3 by hand: a fifth of a layer is bound by HBM, and n − 1 of n blocks overlap with a
    gather.
    """
    run = changed(SMALL, zero=3, tp=1, pp=1, dp=8, gpus=8, overlap=("dp",), microbatch=8, global_batch=64)
    own = replace(ideal_network(machine()), stack=Stack(held_processors=0))
    plan = plan_of_run(run, own)
    stage = plan.stages[0]
    assert 0 < stage.hbm_shares[0] < 1

    def passes_s(shares: tuple[float, ...]) -> tuple[float, float]:
        other = replace(plan, stages=(replace(stage, hbm_shares=shares),))
        cost = pipeline_of(other, own).stages[0]
        return cost.forward_s, cost.backward_s

    gather_s = 0.2 * 2 * 7 / 8 * stage.weight_bytes / own.hbm_bytes_per_s
    reduce_s = 0.2 * 3 * 7 / 8 * stage.exchanged_bytes / own.hbm_bytes_per_s
    beside = 1 - 1 / run.layers
    (forward_s, backward_s), found = passes_s(()), passes_s((0.2, 0.0))
    assert found[0] - forward_s == pytest.approx(beside * gather_s)
    assert found[1] - backward_s == pytest.approx(beside * (gather_s + reduce_s))


def test_a_stack_says_how_much_of_its_communication_overlaps() -> None:
    file = {"overlap": ["dp", "pp"], "overlap_shares": {"dp": {"proven": 0.9}, "ep": {"expected": 0.8}}}
    stack = Stack.parse(file, "stack")
    kinds: tuple[Overlapped, ...] = get_args(Overlapped)
    shares = {kind: stack.overlap_share(kind) for kind in kinds}
    assert shares == {"dp": 1.0, "pp": 1.0, "cp": 1.0, "tp": 0.0, "ep": 0.0}
    assert stack.model_copy(update={"overlap": ("ep",)}).overlap_share("ep") == 0.8
    proven = {kind: stack.proven().overlap_share(kind) for kind in kinds}
    assert proven == {"dp": 0.9, "pp": 0.0, "cp": 0.0, "tp": 0.0, "ep": 0.0}
    for shares_of, refused in (({"dq": {}}, r"overlap_shares\.dq"), ({"dp": {"proven": 1.2}}, "proven")):
        with pytest.raises(PhazeError, match=refused):
            Stack.parse({"overlap_shares": shares_of}, "stack")


RING = changed(SMALL, seq=4096, tp=2, pp=1, dp=1, cp=4, gpus=8, cp_kind="p2p")
CASES: dict[str, tuple[Overlapped, Run, Machine]] = {
    **{f"ZeRO {zero}": ("dp", changed(SMALL, zero=zero), machine()) for zero in (0, 1, 2, 3)},
    "tensor parallelism": ("tp", changed(SMALL, sequence_parallel=True), machine()),
    "stages": ("pp", SMALL, machine()),
    "stages in chunks": ("pp", changed(SMALL, schedule="interleaved", vp=2), machine()),
    "experts": ("ep", QWEN, MACHINE),
    "ring": ("cp", replace(RING, flash_attention=True), replace(machine(), stack=Stack())),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_longer_the_less_overlaps_and_longest_as_without(name: str) -> None:
    kind, run, one = CASES[name]
    run = replace(run, overlap=(*{*one.stack.overlap, kind} - {"cp"},))  # type: ignore[arg-type]

    def time_s(run: Run, share: float) -> float:
        shares = {kind: OverlapShare(expected=share)}
        own = replace(one, stack=one.stack.model_copy(update={"overlap_shares": shares}))
        return price(plan_of_run(run, own), own).time_s

    times = [time_s(run, share) for share in (0.0, 0.3, 0.6, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[1] > times[3] * (1 + 1e-6)
    without = tuple(each for each in run.overlap or () if each != kind)
    if kind != "cp":
        assert times[0] == pytest.approx(time_s(replace(run, overlap=cast(Overlap, without)), 1.0))


def test_published_measurements_prove_shares_of_stacks() -> None:
    for name, kind, share in (("torchtitan", "dp", 0.78), ("megatron-bridge", "ep", 0.93)):
        stack = load_stack(name)
        assert (stack.overlap_share(kind), stack.proven().overlap_share(kind)) == (1.0, share)
    assert load_stack("nanotron").proven().overlap_share("dp") == 0.0


def test_dispatches_overlap_only_in_the_combined_schedule() -> None:
    """It does not support recomputation of whole layers (Megatron-Core,
    `overlap_moe_expert_parallel_comm`).
    """
    hides = replace(MACHINE, stack=MACHINE.stack.model_copy(update={"overlap": ("dp", "ep")}))
    apart = replace(MACHINE, stack=MACHINE.stack.model_copy(update={"overlap": ("dp",)}))
    for recompute, gains in (("none", True), ("full", False)):
        run = replace(QWEN, overlap=None, layout=replace(QWEN.layout, recompute=recompute))
        times = [price(plan_of_run(run, one), one).time_s for one in (hides, apart)]
        assert (times[0] < times[1]) == gains


def test_the_first_gather_of_zero_3_is_exposed() -> None:
    """For any length of passes: exactly one of as many gathers as there are blocks."""
    run = changed(SMALL, zero=3, tp=1, pp=1, dp=8, gpus=8, overlap=("dp",), microbatch=8, global_batch=64)
    own = replace(machine(), stack=Stack(held_processors=0))
    network = own.network
    stage = plan_of_run(run, own).stages[0]
    free = ideal_network(own)
    gather_s = network.seconds("all_gather", stage.weight_bytes, run.layout.group("dp"))
    slow, fast = (pipeline_of(plan_of_run(run, one), one).stages[0].forward_s for one in (own, free))
    assert slow - fast == pytest.approx(gather_s / run.layers, rel=1e-3)
