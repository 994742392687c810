"""Time of fused attention kernels: blocks over processors, masks, traffic, limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.attention import Shapes, attention_passes_s, attention_s
from phaze.spec.speeds.attention import AttentionKernel, AttentionPass
from phaze.spec.system import Device
from phaze.spec.systems import load_device
from phaze.workload.primitives import Scores

DEVICE = load_device("a100-80gb")
ONE = Scores(1, 128, 128, 128, 128, 1, 1, 128, 128)
"""One block of queries, without a mask."""


def seconds(scores: Scores, speed: AttentionPass, on: Device = DEVICE, *, backward: bool = False) -> float:
    """Total seconds of a kernel."""
    return float(attention_s(Shapes.of([scores]), speed, on, backward=backward).sum())


def test_one_block_takes_its_products_on_one_processor() -> None:
    """2 · 128 · 128 · 256 FLOPs forward, five products of 128 backward."""
    rate = 0.5 * DEVICE.peak_flops_per_s / DEVICE.num_tc
    speed = AttentionPass(share=0.5, tail=0.0)
    assert seconds(ONE, speed) == pytest.approx(2 * 128 * 128 * 256 / rate)
    assert seconds(ONE, speed, backward=True) == pytest.approx(2 * 128 * 128 * 640 / rate)


def test_heads_of_192_and_128_have_three_products_of_keys_and_two_of_values() -> None:
    wide = replace(ONE, size=192)
    speed = AttentionPass(share=0.5, heads={192: 0.8}, tail=0.0)
    rate = 0.8 * 0.5 * DEVICE.peak_flops_per_s / DEVICE.num_tc
    assert seconds(wide, speed) == pytest.approx(2 * 128 * 128 * (192 + 128) / rate)
    assert seconds(wide, speed, backward=True) == pytest.approx(2 * 128 * 128 * (3 * 192 + 2 * 128) / rate)


def test_shares_of_other_heads_lie_on_a_straight_line() -> None:
    speed = AttentionPass(share=0.5, heads={64: 0.8}, tail=0.0)
    found = [seconds(replace(ONE, size=size, value_size=size), speed) / size for size in (32, 64, 96, 128)]
    assert found[3] / np.array(found) == pytest.approx([0.8, 0.8, 0.9, 1.0])


def test_full_waves_reach_the_share_of_the_peak() -> None:
    """As many equal blocks as processors, each with many keys: only the tail is lost."""
    many = replace(ONE, samples=DEVICE.num_tc, keys=4096, longest=4096, mean=4096)
    flops = 2 * DEVICE.num_tc * 128 * 4096 * 256
    whole = flops / 0.5 / DEVICE.peak_flops_per_s
    for tail in (0.0, 0.5, 1.0):
        assert seconds(many, AttentionPass(share=0.5, tail=tail)) == pytest.approx(whole * (1 + tail))


def test_few_heads_are_bound_by_the_longest_block_of_a_causal_mask() -> None:
    """8 heads of 1,024 tokens are 64 blocks for 108 processors; 16 heads take no longer."""
    few = replace(ONE, queries=1024, keys=1024, longest=1024, mean=512, heads=8, kv_heads=8)
    speed = AttentionPass(share=0.5, tail=0.0)
    rate = 0.5 * DEVICE.peak_flops_per_s / DEVICE.num_tc
    assert seconds(few, speed) == pytest.approx(2 * 128 * 1024 * 256 / rate)
    assert seconds(replace(few, heads=16), speed) == seconds(few, speed)
    assert seconds(replace(few, heads=64), speed) > 2 * seconds(few, speed)


def test_keys_of_many_queries_in_memory_bind_a_kernel_of_little_arithmetic() -> None:
    """One query per head and sample, as in decoding: keys and values are read from HBM once."""
    long = replace(ONE, samples=128, queries=1, keys=65536, longest=65536, mean=65536, heads=8, kv_heads=8)
    nbytes = 2 * 128 * (1 + 65536) * 8 * 256
    speed = AttentionPass(share=0.5, block=1)
    assert seconds(long, speed) == pytest.approx(nbytes / DEVICE.hbm_bandwidth_bytes_per_s)
    twice = AttentionPass(share=0.5, block=1, traffic=1.0, start_s=1e-3)
    assert seconds(long, twice) == pytest.approx(2 * seconds(long, speed) + 1e-3)


SIZES = st.builds(
    lambda samples, blocks, heads, shared, size, causal: Scores(
        *(samples, 128 * blocks, 128 * blocks, 128 * blocks, (64 if causal else 128) * blocks),
        *(heads * shared, shared, size, size),
    ),
    *(st.integers(1, 4), st.integers(1, 64), st.sampled_from([1, 2, 8]), st.sampled_from([1, 4])),
    *(st.sampled_from([64, 128, 256]), st.booleans()),
)
SPEEDS = st.builds(
    AttentionPass,
    share=st.floats(0.1, 0.9),
    fill=st.sampled_from([0.0, 50.0, 500.0]),
    tail=st.floats(0, 1),
    start_s=st.floats(1e-6, 1e-4),
    traffic=st.sampled_from([0.0, 0.3, 3.0]),
)


@given(scores=SIZES, speed=SPEEDS, backward=st.booleans())
def test_more_of_anything_takes_no_less_and_faster_hardware_no_more(
    scores: Scores, speed: AttentionPass, *, backward: bool
) -> None:
    base = seconds(scores, speed, backward=backward)
    longer = replace(
        scores,
        queries=2 * scores.queries,
        keys=2 * scores.keys,
        longest=2 * scores.longest,
        mean=2 * scores.mean,
    )
    wider, fuller = replace(scores, heads=2 * scores.heads), replace(scores, samples=scores.samples + 1)
    for more in (longer, wider, fuller):
        assert seconds(more, speed, backward=backward) >= base
    for key in ("clock_hz", "hbm_bandwidth_bytes_per_s"):
        faster = DEVICE.model_copy(update={key: 1.5 * getattr(DEVICE, key)})
        assert seconds(scores, speed, faster, backward=backward) <= base
    quicker = speed.model_copy(update={"share": min(1.1 * speed.share, 1.0)})
    assert seconds(scores, quicker, backward=backward) <= base


@given(scores=SIZES, speed=SPEEDS)
def test_no_kernel_is_faster_than_its_share_of_the_peak(scores: Scores, speed: AttentionPass) -> None:
    pairs = scores.samples * scores.heads * scores.queries * scores.mean
    flops = 2 * pairs * (scores.size + scores.value_size)
    assert seconds(scores, speed) >= flops / (speed.share * DEVICE.peak_flops_per_s)


def test_a_kernel_of_inference_has_no_backward_pass() -> None:
    kernel = AttentionKernel(forward=AttentionPass(share=0.5))
    with pytest.raises(PhazeError, match="a100-80gb has a kernel without a backward pass"):
        attention_passes_s([ONE], kernel, DEVICE)


def test_no_kernels_take_no_time() -> None:
    kernel = AttentionKernel(forward=AttentionPass(share=0.5), backward=AttentionPass(share=0.4))
    assert (attention_passes_s([], kernel, DEVICE) == 0).all()
