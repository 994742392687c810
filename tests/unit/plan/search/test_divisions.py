"""Pipeline splits of blocks, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from phaze.layout import Layout
from phaze.pipeline.durations import durations, occupied_s, overlap_s
from phaze.plan.pricing.price import price
from phaze.plan.splits.planes import planes_of
from phaze.plan.splits.split import (
    Split,
    StagedLayout,
    all_splits,
    even_blocks,
    even_split,
    layer_ranges,
    splits_by_chunks,
)
from tests.unit.plan.search.exhaustive import SmallCase, divisions, planned

LAYERS = 5
QUESTION = SmallCase("llama2-7b", LAYERS, 2048, devices=8, hbm_gib=80.0).question("torchtitan in part")
ROUNDING = 1e-9


def staged(schedule: str = "1f1b", **widths: int | str) -> StagedLayout:
    """Return a layout of the eight devices, its other widths 1."""
    return QUESTION.staged(Layout(**widths), schedule)  # type: ignore[arg-type]


def test_windows_are_what_stages_hold_of_the_order() -> None:
    assert Split((2, 0, 3), (0, 0, 0)).windows == [range(2), range(2, 2), range(2, 5)]
    assert Split((5,), (0,)).windows == [range(5)]


@pytest.mark.parametrize(
    ("widths", "ranges"),
    [
        ({"pp": 1}, [(5, 5)]),
        ({"pp": 2}, [(0, 5), (0, 5)]),
        ({"pp": 4}, [(0, 5), (1, 5), (1, 5), (0, 5)]),
        ({"pp": 2, "vp": 2}, [(0, 5), (1, 5), (1, 5), (0, 5)]),
    ],
)
def test_only_the_ends_may_be_empty(widths: Mapping[str, int], ranges: list[tuple[int, int]]) -> None:
    assert layer_ranges(staged("interleaved" if "vp" in widths else "1f1b", **widths)) == ranges


def test_even_blocks_differ_by_one_and_leave_room_at_the_ends() -> None:
    assert even_blocks(staged(pp=1)) == (5,)
    assert even_blocks(staged(pp=2)) == (3, 2)
    assert even_blocks(staged(pp=4)) == (1, 2, 1, 1)
    assert even_blocks(staged("interleaved", pp=2, vp=3)) == (1, 1, 1, 1, 1, 0)


def test_splits_by_chunks_are_equal_on_all_ranks_but_at_the_ends() -> None:
    six = SmallCase("llama2-7b", 6, 2048, devices=8, hbm_gib=80.0).question("torchtitan in part")
    one = six.staged(Layout(pp=4, vp=2), "interleaved")
    assert splits_by_chunks(one) == [(0, 1, 1, 1, 1, 1, 1, 0)]
    assert splits_by_chunks(staged("interleaved", pp=2, vp=2)) == []  # 5 layers leave room at one end only
    assert splits_by_chunks(staged(pp=2)) == []
    mixed = SmallCase("deepseek-v3", 61, 4096, devices=64, hbm_gib=80.0).question("megatron")
    one = mixed.staged(Layout(pp=8, vp=3, ep=8), "interleaved")
    splits = splits_by_chunks(one)
    assert (2,) * 8 + (3,) * 15 + (1,) in splits
    for split in splits:
        of_ranks = np.array(split).reshape(3, 8).sum(axis=0)
        assert sum(split) == one.layers
        assert len({*of_ranks[1:-1].tolist()}) == 1
        assert (of_ranks <= of_ranks[1]).all()


def test_all_divisions_are_those_of_the_brute_force() -> None:
    cases = (("1f1b", 1), ("1f1b", 2), ("interleaved", 2), ("interleaved", 3))
    for recompute in ("none", "full"):
        for schedule, vp in cases:
            one = staged(schedule, pp=2, vp=vp, recompute=recompute)
            found = [(split.blocks, split.recomputed) for split in all_splits(one)]
            assert len(found) == len({*found})
            assert {*found} == {*divisions(one.layout, LAYERS)}


def test_a_timeline_of_a_division_is_that_of_its_price() -> None:
    """Also if its events and costs are shared with another layout, and some stages do not recompute."""
    cases = (
        ("1f1b", 1, 3), ("interleaved", 2, 0), ("interleaved", 2, 1), ("interleaved", 3, 1), ("zb-h1", 1, 2),
        ("gpipe", 1, 2),
    )  # fmt: skip
    for schedule, vp, zero in cases:
        one = staged(schedule, pp=2, vp=vp, dp=4, zero=zero, recompute="full")
        for split in list(all_splits(one))[::7]:
            timeline = one.timeline(split)
            plan = planned(QUESTION, one.layout, schedule, split.blocks, split.recomputed)
            own = price(plan, QUESTION.machine)
            assert timeline.time_s == pytest.approx(own.time_s, rel=ROUNDING)
            assert timeline.peak_bytes.max() == pytest.approx(own.peak_bytes.max(), rel=ROUNDING)


@pytest.mark.parametrize("prudent", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_no_stage_lies_below_its_planes(zero: int, *, prudent: bool) -> None:
    """And gradients are not sent earlier than the upper plane states; also if transfers occupy ranks."""
    question = QUESTION.prudent if prudent else QUESTION
    for schedule in ("1f1b", "zb-h1"):
        layout = Layout(pp=4, dp=2, zero=zero, recompute="full")  # type: ignore[arg-type]
        one = question.staged(layout, schedule)
        assert (one.frame.exposed_transfers > 0) == prudent
        planes = planes_of(one, LAYERS, even_split(one))
        for split in all_splits(one):
            pipeline = one.pipeline(split)
            n, k = np.array(split.blocks), np.array(split.recomputed)
            point = np.stack([np.ones(one.count), n, k], axis=1)
            low_s = np.einsum("ksc,sc->ks", planes.seconds, point)
            assert (low_s <= durations(pipeline) * (1 + ROUNDING) + ROUNDING).all()
            assert (overlap_s(pipeline) <= (planes.early * point).sum(axis=1) * (1 + ROUNDING)).all()
            for name, plane in (("stash_bytes", planes.stash), ("fixed_bytes", planes.fixed)):
                held = np.array([getattr(cost, name) for cost in pipeline.stages])
                assert ((plane * point).sum(axis=1) <= held * (1 + ROUNDING) + 1).all()
            assert (planes.work[0] <= [cost.work_bytes for cost in pipeline.stages]).all()


DEEP = SmallCase("llama-3.1-405b", 126, 8192, devices=64, hbm_gib=80.0, global_batch=64)
KINDS = SmallCase("deepseek-v3", 61, 4096, devices=128, hbm_gib=80.0, global_batch=64)


@pytest.mark.parametrize(
    ("case", "runtime", "widths", "most"),
    [
        (DEEP, "torchtitan", {"pp": 2, "dp": 32, "zero": 0}, 126),
        (DEEP, "torchtitan", {"pp": 2, "tp": 8, "dp": 4, "zero": 2, "sequence_parallel": True}, 126),
        (DEEP, "megatron", {"pp": 8, "tp": 2, "dp": 4, "zero": 1, "recompute": "full"}, 24),
        (KINDS, "megatron", {"pp": 8, "dp": 16, "ep": 8, "zero": 1, "recompute": "full"}, 12),
    ],
)
def test_no_run_of_layers_is_faster_than_its_planes_however_many_are_recomputed(
    case: SmallCase, runtime: str, widths: Mapping[str, int | str], most: int
) -> None:
    """Deep models have more counts of layers than a sample, and models of several kinds more runs."""
    one = case.question(runtime).staged(Layout(**widths), "1f1b")  # type: ignore[arg-type]
    planes = planes_of(one, most, even_split(one))
    overlapped = replace(one.frame, transfers="overlapped", exposed_transfers=0.0)
    for q, place in [(0, "first"), (1, "middle"), (one.count - 1, "last")][:: 1 if one.count > 2 else 2]:
        rows = [
            (window, k)
            for length in range(place == "middle", most + 1)
            for window in one.windows(place, length)  # type: ignore[arg-type]
            for k in range(length * one.partial + 1)
        ]
        contents = [one.content(place, *row) for row in rows]  # type: ignore[arg-type]
        points = np.array([(1, *n, *k) for _, n, k in contents], float)
        for point, row in zip(points, rows, strict=True):
            stages = (one.cost(place, *row), *one.frame.stages[1:])  # type: ignore[arg-type]
            pipeline = replace(overlapped, stages=stages)
            seconds = durations(pipeline)[:, 0] * (1 + ROUNDING) + ROUNDING
            assert (planes.seconds[:, q] @ point <= seconds + occupied_s(one.frame)[:, q]).all(), (place, row)
            assert overlap_s(pipeline)[0] <= planes.early[q] @ point * (1 + ROUNDING) + ROUNDING, (place, row)
