"""Predictions of runs: closed forms, and changes that must never make a run faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.cost.network.network import Collective, Levels
from phaze.layout import Group, Layout
from phaze.plan.layers.costs import LayerCost, layer_costs
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.plan.pricing.price import COMMUNICATION, price
from phaze.plan.pricing.runs import Run, plan_of_run
from phaze.plan.pricing.stage_costs import pipeline_of
from phaze.plan.terms.state import StateTerms
from phaze.spec.system import Stack
from phaze.validate.table import predict
from phaze.workload.models import library_workload
from tests.unit.validate.examples import SMALL, changed, ideal_network, machine, runs

SIZES = {"hidden": 12288, "heads": 96, "layers": 96, "seq": 2048, "vocab": 51200}
GPT3 = changed(SMALL, **SIZES, gpus=64, tp=8, pp=8, dp=1, microbatch=1, global_batch=64)


def with_halved(one: Machine, what: str) -> Machine:
    """Return a machine with half of one bandwidth."""
    if what in ("hbm", "global_buffer"):
        key = "hbm_bandwidth_bytes_per_s" if what == "hbm" else "glb_words_per_cycle"
        assert one.device is not None
        half = getattr(one.device, key) / 2
        return one.with_device(one.device.model_copy(update={key: half}))
    assert isinstance(one.network, Levels)
    tiers, index = list(one.network.tiers), int(what)
    tiers[index] = tiers[index]._replace(bandwidth_bytes_per_s=tiers[index].bandwidth_bytes_per_s / 2)
    return replace(one, network=Levels(tuple(tiers)))


def costs_of(run: Run) -> dict[str, LayerCost]:
    """Return the costs of the layers of a run on A100s."""
    return layer_costs(
        library_workload(run.model, run.seq, run.layout),
        machine().of_size(run.gpus),
        flash=run.flash_attention,
    )


@given(run=runs())
@settings(max_examples=25)
def test_half_of_any_bandwidth_never_speeds_a_run_up(run: Run) -> None:
    fast = machine()
    time_s = predict(run, fast).time_s
    for what in ("hbm", "global_buffer", "0", "1"):
        assert predict(run, with_halved(fast, what)).time_s >= time_s * (1 - 1e-12)


@given(run=runs())
@settings(max_examples=25)
def test_shares_are_shares_and_memory_is_the_sum_of_its_parts(run: Run) -> None:
    found = predict(run, machine())
    assert 0 <= found.bubble_share < 1
    assert 0 <= found.exposed_communication_share < 1
    parts = found.weights_gib + found.optimizer_gib + found.activation_gib + found.workspaces_gib
    assert found.memory_gib == pytest.approx(parts)
    others = found.fragments_gib + found.graphs_gib + found.collectives_gib + found.context_gib
    assert found.device_gib == pytest.approx(parts + others)
    assert found.memory_low_gib <= found.memory_gib <= found.memory_high_gib
    assert found.device_low_gib <= found.device_gib <= found.device_high_gib


def test_one_device_takes_the_sum_of_its_passes() -> None:
    run = changed(SMALL, gpus=1, tp=1, pp=1, dp=1, global_batch=8, recompute="full")
    layers = costs_of(run)
    block, ends = layers["block"], (layers["embedding"], layers["head"])
    passes = run.layers * (2 * block.forward_s.sum() + block.backward_s.sum())
    passes += sum(end.forward_s.sum() + end.backward_s.sum() for end in ends)
    parameters = run.layers * block.layer.parameters + sum(end.layer.parameters for end in ends)
    update = (28 + 34) * parameters / machine().of_size(1).hbm_bytes_per_s
    assert predict(run, machine()).time_s == pytest.approx(4 * passes + update)


def test_a_pipeline_of_equal_stages_has_the_bubble_of_its_formula() -> None:
    """(p − 1)/(m + p − 1) of the time, if the ends of the model are small compared with the blocks."""
    run = changed(GPT3, vocab=8, global_batch=32, recompute="full")
    found = predict(run, ideal_network(machine()))
    assert found.bubble_share == pytest.approx(7 / 39, abs=0.01)


def test_chunks_divide_the_bubble() -> None:
    chip, run = ideal_network(machine()), changed(GPT3, vocab=8, recompute="full")
    plain = predict(run, chip)
    interleaved = predict(changed(run, schedule="interleaved", vp=3), chip)
    bubbles = [found.bubble_share / (1 - found.bubble_share) for found in (plain, interleaved)]
    assert bubbles[0] / bubbles[1] == pytest.approx(3, rel=0.15)


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "per_block"),
    [
        ("none", False, lambda s, b, h, a, t: s * b * h * (10 + 24 / t + 5 * a * s / (h * t))),
        ("none", True, lambda s, b, h, a, t: s * b * h / t * (34 + 5 * a * s / h)),
        ("selective", False, lambda s, b, h, _, t: s * b * h * (10 + 24 / t)),
        ("selective", True, lambda s, b, h, _, t: s * b * h / t * 34),
        ("full", False, lambda s, b, h, *_: s * b * h * 2),
    ],
)
def test_a_stage_stashes_what_korthikanti_counts(
    recompute: str, sequence_parallel: bool, per_block: Callable[..., float]
) -> None:
    """Korthikanti et al. 2023, Table 2, per block and microbatch."""
    run = changed(GPT3, recompute=recompute, sequence_parallel=sequence_parallel)
    inner = plan_of_run(run, machine()).stages[3]
    size = per_block(run.seq, run.layout.microbatch, run.hidden, run.heads, run.layout.tp)
    assert inner.stash_bytes == pytest.approx(12 * size, rel=1e-12)


def test_the_first_stage_holds_the_activations_of_all_in_flight() -> None:
    """Under 1F1B p microbatches of a stage's L/p blocks are L blocks (Korthikanti et al. 2023, 4.2.3)."""
    run = changed(GPT3, recompute="none", sequence_parallel=True)
    found = predict(run, machine())
    block = run.seq * run.hidden / run.layout.tp * (34 + 5 * run.heads * run.seq / run.hidden)
    assert found.activation_gib == pytest.approx(96 * block / GIB, rel=0.01)


def test_mixed_precision_with_adam_takes_16_bytes_a_parameter() -> None:
    run = changed(SMALL, gpus=1, tp=1, pp=1, dp=1, global_batch=8)
    found = predict(run, machine())
    assert found.optimizer_gib == pytest.approx(3 * found.weights_gib)


def test_zero_shares_what_its_stage_says() -> None:
    found = [predict(changed(SMALL, zero=zero), machine()) for zero in (0, 1, 2, 3)]
    weights, optimizer = found[0].weights_gib, found[0].optimizer_gib
    assert [one.optimizer_gib / optimizer for one in found] == pytest.approx([1, 1 / 4, 1 / 4, 1 / 4])
    assert [one.weights_gib / weights for one in found] == pytest.approx([1, 1, 5 / 8, 1 / 4])


def test_parts_of_a_step_are_all_of_it_where_replicas_share_gradients_and_weights() -> None:
    """Overlapped communication is not a part; exposed communication is an exchange of replicas, not of
    tensor-parallel ranks.
    """
    for zero in (2, 3):
        for overlap in ((), ("dp",)):
            run = changed(SMALL, zero=zero, tp=1, pp=1, dp=8, gpus=8, overlap=overlap)
            one = price(plan_of_run(run, machine()), machine())
            assert sum(one.shares.values()) == pytest.approx(1)
            assert one.shares[COMMUNICATION[0]] == 0
            assert one.shares["gradient synchronisation"] > 0


def test_overlapped_synchronisation_is_never_slower() -> None:
    for zero in (0, 1, 2, 3):
        run = changed(SMALL, zero=zero)
        apart, beside = (predict(changed(run, overlap=overlap), machine()) for overlap in ((), ("dp",)))
        assert beside.time_s < apart.time_s


def test_products_that_add_gradients_up_save_a_pass_over_them() -> None:
    """Two are read and one is written for every microbatch but the first's kernels; ZeRO 2 has a share. Of
    what products read and write in place of writing, two bytes for each, a part is not hidden.
    """
    device = device_of(machine())
    speed = device.products["bf16"]
    for zero, share in ((0, 1), (1, 1), (2, 4), (3, 4)):
        run = changed(SMALL, zero=zero, pp=1, dp=4, tp=2, gpus=8)
        apart, fused = (
            plan_of_run(run, replace(machine(), stack=Stack(fused_gradients=fused))).stages[0]
            for fused in (False, True)
        )
        added_s = 3 * apart.gradient_bytes / share / machine().hbm_bytes_per_s
        products_s = speed.added * apart.gradient_bytes / (device.hbm_bandwidth_bytes_per_s * speed.hbm)
        saved_s = apart.backward_s - fused.backward_s
        assert added_s - products_s <= saved_s <= added_s - 0.5 * products_s  # embeddings are no products


def test_a_number_of_heads_that_the_fused_softmax_refuses_takes_more_kernels() -> None:
    """Megatron-LM accepts multiples of four: two heads of one sample are masked in separate kernels, those of
    two samples are not.
    """
    one, two = (changed(SMALL, tp=8, dp=1, pp=2, global_batch=8, microbatch=count) for count in (1, 2))
    fused, plain = (replace(machine(), stack=Stack(launch_s=1e-4, fused_heads=heads)) for heads in (4, 1))
    block = [plan_of_run(one, chip).stages[0].forward_s for chip in (fused, plain)]
    assert block[0] - block[1] == pytest.approx(4 * 4 * 1e-4)
    assert plan_of_run(two, fused).stages[0].forward_s == plan_of_run(two, plain).stages[0].forward_s


def test_what_hides_behind_products_takes_some_of_their_processors() -> None:
    run = changed(GPT3, overlap=("tp",), sequence_parallel=True)
    endless = replace(machine(), hbm_bytes_per_s=1e30)  # no kernel waits for the bytes of a collective
    free, held = (
        plan_of_run(run, replace(endless, stack=Stack(held_processors=number))).stages[3]
        for number in (0, 27)  # of 108
    )
    exposed = plan_of_run(changed(run, overlap=()), replace(endless, stack=Stack())).stages[3]
    assert free.forward_s < held.forward_s < exposed.forward_s
    hidden_s = exposed.forward_s - free.forward_s
    assert held.forward_s - free.forward_s == pytest.approx(hidden_s / 4)


@pytest.mark.parametrize("room_gib", [1.0, 100.0])
def test_fragments_are_a_share_of_what_is_reserved_for_tensors_while_there_is_room(room_gib: float) -> None:
    stacks = (Stack.model_validate({"fragments": share}) for share in (0.0, 0.2))
    whole, holed = (replace(machine(), stack=stack) for stack in stacks)
    tight = predict(GPT3, whole)
    assert holed.device is not None
    size = {"hbm_gib": tight.device_gib + holed.device.driver_gib + room_gib}
    chip = holed.with_device(holed.device.model_copy(update=size))
    found = predict(GPT3, chip)
    tensors_gib = tight.weights_gib + tight.optimizer_gib + tight.activation_gib
    assert found.fragments_gib == pytest.approx(min(tensors_gib / 4, room_gib))
    assert found.device_gib - tight.device_gib == pytest.approx(found.fragments_gib)
    assert (found.weights_gib, found.optimizer_gib) == (tight.weights_gib, tight.optimizer_gib)


def test_sequence_parallelism_saves_time_and_memory_and_sends_the_same() -> None:
    apart = changed(GPT3, recompute="selective")
    found = [predict(changed(apart, sequence_parallel=cut), machine()) for cut in (False, True)]
    assert found[1].time_s < found[0].time_s
    assert found[1].activation_gib < found[0].activation_gib
    network = [costs_of(changed(apart, sequence_parallel=cut))["block"] for cut in (False, True)]
    sums = [cost.forward_s[4] + cost.backward_s[4] for cost in network]
    nbytes, group = 2.0 * apart.layout.microbatch * apart.seq * apart.hidden, apart.layout.group("tp")
    kinds: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "all_gather")
    whole_s, *halves_s = (machine().network.seconds(kind, nbytes, group) for kind in kinds)
    assert sums == pytest.approx([4 * whole_s, 4 * sum(halves_s)])


def test_model_flops_are_those_of_the_published_formula() -> None:
    run = GPT3
    B, s, L, h, V = run.global_batch, run.seq, run.layers, run.hidden, run.vocab
    assert run.model_flops == pytest.approx(72 * B * s * L * h**2 * (1 + s / (6 * h) + V / (12 * L * h)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gpus": 17}, "tp \\* pp \\* dp must be gpus 17, got 16"),
        ({"global_batch": 60}, "microbatch \\* dp must divide global_batch 60, got 8"),
        ({"heads": 15}, "heads must divide hidden 1024, got 15"),
        ({"layers": 1, "pp": 4, "dp": 2, "global_batch": 64}, "pp \\* chunks must be at most 3, the layers"),
        ({"vp": 2}, "chunks must be 1 under 1f1b"),
        ({"gpus": 4484, "dp": 1121, "global_batch": 4484}, "gpus: devices must be a multiple of 8"),
        ({"tp": 1, "dp": 8, "kv_heads": 3}, "key_value_heads 3 must divide heads 16"),
        ({"seq": 511, "sequence_parallel": True}, "must divide the sequence 511"),
    ],
)
def test_a_run_that_cannot_be_right_says_why(change: dict, problem: str) -> None:
    with pytest.raises(PhazeError, match=problem):
        predict(changed(SMALL, **change), machine())


def test_one_kernel_of_attention_saves_time_and_keeps_no_scores() -> None:
    apart, fused = (costs_of(changed(GPT3, flash_attention=flash))["block"] for flash in (False, True))
    assert fused.forward_s.sum() < apart.forward_s.sum()
    assert fused.backward_s.sum() < apart.backward_s.sum()
    statistics = 4 * GPT3.seq * GPT3.layout.microbatch * (GPT3.heads // GPT3.layout.tp + 2 * 2)
    core = apart.layer.attention_bytes
    assert fused.layer.activation_bytes == apart.layer.activation_bytes - core + statistics
    assert not fused.core_s.any()


def test_blocks_are_split_by_cost_where_the_stack_does_so_and_the_run_says_nothing() -> None:
    stack = Stack(pipeline_split="cost")
    run = changed(SMALL, pp=2, dp=1, gpus=4)
    split = plan_of_run(run, replace(machine(), stack=stack))
    head = run.vocab / (16 * run.hidden)  # 4 h^2 + 3 h f with f = 4 h
    first = next(n for n in range(1, 9) if n > (8 + head) / 2)
    assert [stage.layers for stage in split.stages] == [1 + first, 8 - first + 1]
    given = replace(run, division=("Etttt", "ttttL"))
    assert [stage.layers for stage in plan_of_run(given, replace(machine(), stack=stack)).stages] == [5, 5]


def test_groups_that_replicate_shards_all_reduce_the_gradients_of_a_shard() -> None:
    """ZeRO 1 in four groups of four GPUs, which exchange gradients after each has scattered its own."""
    stack = Stack(zero_1="reduce_scatter", gradient_bytes=4)
    one, run = replace(machine(), stack=stack), changed(SMALL, pp=1, tp=1, dp=16, gpus=16, zero=1)
    whole = plan_of_run(run, one)
    stages = tuple(replace(stage, layout=replace(stage.layout, replicate=4)) for stage in whole.stages)
    costs, network = pipeline_of(replace(whole, stages=stages), one).stages[0], one.network
    size, within, among = whole.stages[0].exchanged_bytes, Group(4, 1), Group(4, 4)
    scattered_s = network.seconds("reduce_scatter", size, within)
    assert costs.sync_s == scattered_s + network.seconds("all_reduce", size / 4, among)
    assert costs.gather_s == network.seconds("all_gather", whole.stages[0].weight_bytes, within)


def test_states_are_sharded_inside_a_group_of_replicas() -> None:
    state = StateTerms("adam", "mixed", machine().stack, machine().hbm_bytes_per_s)
    for zero in (1, 2, 3):
        hybrid = Layout(dp=16, zero=zero, replicate=4)
        for axis in ("dp-cp", "edp"):
            few = state.device_bytes(1e9, zero, 4, pipelined=False)
            assert state.device_bytes(1e9, zero, hybrid.sharding(axis)[0].ranks, pipelined=False) == few


def test_zero_1_without_overlap_sums_all_gradients_and_gathers_weights_after_the_update() -> None:
    run = changed(SMALL, pp=1, tp=1, dp=8, gpus=8, zero=1)
    overlapping = machine().stack.model_copy(update={"overlap": ("dp",), "gradient_bytes": 4})
    times, costs = {}, {}
    for way in ("reduce_scatter", "all_reduce"):
        one = replace(machine(), stack=overlapping.model_copy(update={"zero_1": way}))
        plan = plan_of_run(run, one)
        times[way], costs[way] = price(plan, one).time_s, pipeline_of(plan, one).stages[0]
        assert plan.execution.overlap_sync == (way == "reduce_scatter")
    group, stage = run.layout.group("dp-cp"), plan.stages[0]
    assert costs["all_reduce"].sync_s == machine().network.seconds("all_reduce", stage.exchanged_bytes, group)
    assert costs["all_reduce"].gather_s == machine().network.seconds("all_gather", stage.weight_bytes, group)
    assert times["all_reduce"] > times["reduce_scatter"]


def test_replicas_without_zero_sum_gradients_bucket_by_bucket() -> None:
    """Each bucket costs a start-up time; no weight is in two buckets, so there are at most as many buckets as
    weights.
    """
    run = changed(SMALL, pp=1, tp=1, dp=8, gpus=8, zero=0)
    network, group = machine().network, run.layout.group("dp-cp")
    size = plan_of_run(run, machine()).stages[0].exchanged_bytes
    for nbytes, buckets in ((0.0, 1), (size / 7.5, 8), (2 * size, 1), (1.0, 4 * run.layers)):
        one = replace(machine(), stack=machine().stack.model_copy(update={"bucket_bytes": nbytes}))
        found = pipeline_of(plan_of_run(replace(run, overlap=()), one), one).stages[0].sync_s
        assert found == pytest.approx(buckets * network.seconds("all_reduce", size / buckets, group))


def test_a_stack_may_refuse_fewer_microbatches_than_stages_but_one() -> None:
    run = changed(SMALL, pp=8, tp=1, dp=1, gpus=8, global_batch=12)
    one = replace(machine(), stack=Stack(full_pipelines=True))
    with pytest.raises(PhazeError, match="microbatches must be at least pp - 1 = 7, got 6"):
        plan_of_run(run, one)
    for runs_there, there in ((run, machine()), (changed(run, global_batch=14), one)):
        assert len(plan_of_run(runs_there, there).stages) == 8
