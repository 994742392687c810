"""Memory in addition to states and stored activations: gradients, copies of logits, and gathered shards of
ZeRO 3.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.plan.plan import Stage
from phaze.plan.pricing.runs import Run, plan_of_run
from phaze.spec.system import Stack
from tests.unit.validate.examples import SMALL, changed, machine

ALONE = changed(SMALL, gpus=1, tp=1, pp=1, dp=1, global_batch=8, flash_attention=True)
TOKENS = ALONE.seq * ALONE.layout.microbatch


def stage(run: Run, **stack: object) -> Stage:
    """Return the first stage of a run with a stack."""
    return plan_of_run(run, replace(machine(), stack=Stack.model_validate(stack))).stages[0]


def test_the_peak_is_where_the_gradient_of_the_logits_is_made() -> None:
    """The stack's copies in addition to the stored logits."""
    logits = TOKENS * ALONE.model.vocabulary
    for nbytes in (12, 14):
        assert stage(ALONE, logit_bytes=nbytes).work_bytes == (nbytes - 2) * logits


def test_without_the_head_it_is_where_the_gradient_of_the_widest_activations_is() -> None:
    """4 h of the feed-forward network and its input h; for a gated one its two products of width ffn."""
    inner = changed(ALONE, gpus=2, pp=2)
    assert stage(inner).work_bytes == 2 * TOKENS * 5 * inner.hidden
    gated = changed(inner, gated=True, ffn=3000)
    assert stage(gated).work_bytes == 2 * TOKENS * (2 * 3000 + inner.hidden)


def test_scores_that_stay_in_memory_have_gradients_as_large() -> None:
    inner = changed(ALONE, gpus=2, pp=2, flash_attention=False, seq=2048)
    scores = inner.layout.microbatch * inner.heads * inner.seq**2
    assert stage(inner).work_bytes == pytest.approx(2 * scores, rel=0.05)


def test_zero_3_holds_two_blocks_and_its_ends_whole() -> None:
    run = changed(SMALL, pp=1, dp=8)
    whole = {zero: stage(changed(run, zero=zero)) for zero in (2, 3)}
    h, vocabulary = run.hidden, run.model.vocabulary
    block = (12 * h**2 + 13 * h) / 2  # two slices, but for norms and some biases
    expected = 2 * ((2 * vocabulary * h + run.seq * h) / 2 + 2 * 2 * block)
    assert whole[3].work_bytes - whole[2].work_bytes == pytest.approx(expected, rel=0.01)


def test_gradients_beside_those_of_single_precision_are_held_as_the_stack_does() -> None:
    inner = changed(ALONE, gpus=2, pp=2)
    parameters = stage(inner).weight_bytes / 2
    apart, every = (stage(inner, gradient_bytes=4, second_gradients=way) for way in ("none", "all"))
    assert every.fixed_bytes - apart.fixed_bytes == 2 * parameters
    h = inner.hidden
    empty = stage(inner, second_gradients="layer").work_bytes - stage(inner).work_bytes
    assert empty == 2 * (12 * h**2 + 13 * h)


def test_what_no_tensor_can_have_counts_as_well() -> None:
    assert stage(ALONE, reserved_gib=2.0).work_bytes - stage(ALONE).work_bytes == 2 * 2**30


def test_a_gated_activation_of_one_kernel_keeps_one_factor_less() -> None:
    gated = changed(ALONE, gated=True, ffn=3000)
    less = stage(gated).stash_bytes - stage(gated, fused_gate=True).stash_bytes
    assert less == gated.layers * 2 * TOKENS * 3000


def test_gradients_lie_once_more_in_buckets_of_replicas_without_zero() -> None:
    run = changed(SMALL, pp=1, tp=1, dp=4, gpus=4, zero=0)
    every, buckets = (stage(run, gradient_bytes=4, second_gradients=way) for way in ("all", "buckets"))
    assert buckets.fixed_bytes - every.fixed_bytes == every.weight_bytes
    for same in (changed(run, zero=1), changed(run, dp=1, gpus=1, global_batch=16)):
        every, buckets = (stage(same, gradient_bytes=4, second_gradients=way) for way in ("all", "buckets"))
        assert buckets.fixed_bytes == every.fixed_bytes


def test_whole_tensors_lie_beside_shards_with_sequence_parallelism_alone() -> None:
    run = changed(ALONE, gpus=4, tp=4, sequence_parallel=True)
    whole = 2 * TOKENS * run.hidden
    for one, expected in ((run, 3 * whole), (changed(run, sequence_parallel=False), 0)):
        assert stage(one, gathered_tensors=3).work_bytes - stage(one).work_bytes == expected


@pytest.mark.parametrize("kv_heads", [0, 4])
def test_copies_of_keys_and_values_are_kept_for_every_block(kv_heads: int) -> None:
    run = changed(ALONE, kv_heads=kv_heads, gated=True)
    copies = run.layers * 2 * 2 * TOKENS * run.hidden * (kv_heads or run.heads) / run.heads
    assert stage(run, copied_keys=True).stash_bytes - stage(run).stash_bytes == copies


def test_whole_gradients_of_a_pipeline_are_in_single_precision_on_every_replica() -> None:
    pipelined = changed(ALONE, gpus=8, pp=2, dp=4, zero=2, global_batch=8)
    parameters = stage(pipelined).weight_bytes / 2
    more = stage(pipelined, whole_gradients=True).fixed_bytes - stage(pipelined).fixed_bytes
    assert more == parameters * (4 - 2 / 4)
    flat = changed(ALONE, gpus=4, dp=4, zero=2, global_batch=8)
    assert stage(flat, whole_gradients=True).fixed_bytes == stage(flat).fixed_bytes


def test_temporary_copies_are_those_of_fsdp_and_of_overlapped_tensor_parallelism() -> None:
    sharded = changed(ALONE, gpus=4, dp=4, zero=3, global_batch=8)
    h = ALONE.hidden
    assert stage(sharded, gradient_bytes=4).copies_bytes == (2 + 4) * (12 * h**2 + 13 * h)
    cut = changed(ALONE, gpus=4, tp=4, sequence_parallel=True)
    activation = 2 * ALONE.layout.microbatch * ALONE.seq * h
    assert stage(cut, overlap=("tp",), overlap_buffers=10).copies_bytes == 10 * activation
    assert stage(cut, overlap_buffers=10).copies_bytes == 0
