"""Shapes of pipelines omit the middle of a step, and no remaining path is longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.pipeline.graph import kept_event_graph, shape_of
from phaze.pipeline.longest_path import longest_path, simulate
from phaze.pipeline.stages import StageCost
from phaze.plan.bounds.pipeline_shapes import ROUNDS, PipelineShape, ShortGraph

SHAPES = [("1f1b", 4, 1, 37), ("interleaved", 4, 3, 32), ("interleaved", 8, 2, 36), ("interleaved", 2, 4, 16)]


def test_steps_with_more_rounds_have_the_shape_of_those_with_few() -> None:
    assert PipelineShape.of("interleaved", 4, 2, 400) == PipelineShape.of("interleaved", 4, 2, 4 * ROUNDS)
    assert PipelineShape.of("interleaved", 4, 2, 9).microbatches == 9
    assert PipelineShape.of("gpipe", 4, 1, 400).microbatches == 400


@pytest.mark.parametrize(("schedule", "depth", "chunks", "count"), SHAPES)
def test_no_path_through_a_short_step_takes_longer_than_the_step(
    schedule: str, depth: int, chunks: int, count: int
) -> None:
    """For any stage times; nearly as long if stages are equal."""
    shape, rng = PipelineShape.of(schedule, depth, chunks, count), np.random.default_rng(0)
    assert shape.microbatches < count
    for spread in (0.0, 0.2, 2.0):
        each = 1 + spread * rng.random((depth * chunks, 3))
        stages = tuple(StageCost(f, 2 * b, update_s=u) for f, b, u in each)
        whole = replace(shape.pipeline(0.0, 0.0, 0.0), stages=stages, microbatches=count)
        short = ShortGraph.of(replace(whole, microbatches=shape.microbatches))
        graph, jobs = short.graph, short.graph.jobs
        assert short.between.sum() == 2 * depth * chunks
        kept = kept_event_graph(shape_of(whole)).of(whole)
        takes = kept.duration_s
        by_stage = {(k, q): s for k, q, s in zip(kept.jobs.kind, kept.jobs.stage, takes, strict=True)}
        own = np.array([by_stage[one] for one in zip(jobs.kind, jobs.stage, strict=True)])
        duration = own * short.times(count - shape.microbatches)
        start, *_ = longest_path(jobs.first, duration, graph.preceded, graph.predecessor, graph.delay_s)
        time_s, least_s = simulate(whole).time_s, float((start + duration).max())
        assert least_s <= time_s * (1 + 1e-12)
        if not spread:
            assert least_s > 0.98 * time_s


@pytest.mark.parametrize(("schedule", "depth", "chunks", "count"), SHAPES)
def test_ranks_hold_no_more_in_a_short_step(schedule: str, depth: int, chunks: int, count: int) -> None:
    shape = PipelineShape.of(schedule, depth, chunks, count)
    whole = shape._replace(microbatches=count)
    for (stages, few), (same, many) in zip(shape.moments(), whole.moments(), strict=True):
        assert stages.tolist() == same.tolist()
        assert few.sum(axis=1).max() == many.sum(axis=1).max()
        assert all((one <= many).all(axis=1).any() for one in few)
