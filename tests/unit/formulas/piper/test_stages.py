"""The cost of a stage follows the formula and the rule of the paper (Piper, Section 4)."""

from __future__ import annotations

from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers
from phaze.formulas.piper.stages import best_stage
from phaze.layout import Layout
from tests.unit.formulas.piper.exhaustive import instances, stage_time


def layers_of(*options: tuple[int, float, float, float, float]) -> ProfiledLayers:
    """Return a chain of layers from (layer, time, weight, stash, fixed) of their configurations."""
    layer, time, weight, stash, fixed = (np.array(column) for column in zip(*options, strict=True))
    n = int(layer.max()) + 1
    none = np.zeros((len(layer), n - 1))
    options_1 = Configurations(tuple(map(str, layer)), layer, time, weight, stash, fixed, none, none.copy())
    chain = np.arange(n)
    edges = np.stack([chain[:-1], chain[1:]], axis=1)
    return ProfiledLayers(
        tuple(range(n)), tuple(map(str, chain)), {1: options_1}, edges=edges, edge_bytes=np.full(n - 1, 3.0)
    )


def cluster_of(memory: float, microbatches: int = 8, **changes: object) -> FlatCluster:
    """Return eight devices with a bandwidth of 2 bytes per second."""
    return FlatCluster(8, memory, 2.0, microbatches, **changes)


@given(instances(6, 6), st.data())
def test_a_stage_costs_what_the_formula_and_the_rule_say(
    instance: tuple[ProfiledLayers, FlatCluster], data: st.DataObject
) -> None:
    layers, cluster = instance
    members = frozenset(data.draw(st.sets(st.sampled_from(range(len(layers))), min_size=1)))
    tensor = data.draw(st.sampled_from(sorted(layers.options)))
    degrees = [d for d in cluster.data_widths().tolist() if d * tensor <= cluster.devices]
    if not degrees:
        return
    d = data.draw(st.sampled_from(degrees))
    s = data.draw(st.integers(d, cluster.microbatches))
    stage = best_stage(layers, cluster, sorted(members), Layout(tp=tensor, dp=d), s)
    expected = stage_time(layers, cluster, members, tensor, d, s)
    assert (stage.time_s if stage else inf) == pytest.approx(expected, rel=1e-12)
    if stage:
        assert stage.layers == tuple(sorted(members))
        assert stage.in_flight == ceil(s / d)
        assert [int(layers.options[tensor].layer[x]) for x in stage.configurations] == sorted(members)
        assert stage.memory_bytes <= cluster.memory_bytes


def test_the_time_of_a_stage_by_hand() -> None:
    """Three layers, the middle one as a stage: it receives and sends 3 bytes twice, and synchronises 5
    bytes.
    """
    layers = layers_of((0, 1.0, 0.0, 0.0, 0.0), (1, 10.0, 5.0, 2.0, 1.0), (2, 1.0, 0.0, 0.0, 0.0))
    batch = best_stage(layers, cluster_of(100.0), [1], Layout(tp=1, dp=4), 7)
    assert batch is not None
    assert batch.time_s == pytest.approx((10 + (6 + 6) / 2) / 4 + 4 * 3 / 4 * 5 / (8 * 2))
    assert (batch.in_flight, batch.memory_bytes) == (2, 2 * 2 + 1)
    in_turn = best_stage(layers, cluster_of(100.0, synchronisation="round"), [1], Layout(tp=1, dp=4), 7)
    assert in_turn is not None
    assert in_turn.time_s == pytest.approx((10 + (6 + 6 + 4 * 3 / 4 * 5) / 2) / 4)


def test_the_most_memory_for_the_least_time_goes_first() -> None:
    """Each of two layers could save memory: one 4 bytes for 1 second, the other 6 bytes for 2."""
    layers = layers_of((0, 1.0, 0, 0, 10), (0, 2.0, 0, 0, 6), (1, 1.0, 0, 0, 10), (1, 3.0, 0, 0, 4))
    chosen = {}
    for memory in (20, 19, 16, 15, 10, 9):
        stage = best_stage(layers, cluster_of(memory), [0, 1], Layout(tp=1, dp=1), 1)
        chosen[memory] = stage and (stage.configurations, stage.time_s)
    assert chosen == {
        20: ((0, 2), 2.0),
        19: ((1, 2), 3.0),
        16: ((1, 2), 3.0),
        15: ((1, 3), 5.0),
        10: ((1, 3), 5.0),
        9: None,
    }


def test_the_rule_is_not_monotone_in_the_microbatches_in_flight() -> None:
    """The second layer saves 3 bytes per microbatch, and is the better step only with two in flight."""
    layers = layers_of((0, 1.0, 0, 0, 8), (0, 2.0, 0, 0, 3), (1, 1.0, 0, 3, 0), (1, 1.9, 0, 0, 0))
    times = [
        best_stage(layers, cluster_of(m), [0, 1], Layout(tp=1, dp=1), s) for m, s in ((8.0, 1), (8.0, 2))
    ]
    assert [stage and stage.time_s for stage in times] == [3.0, 2.9]


def test_stages_that_the_cluster_does_not_allow_have_no_cost() -> None:
    layers = layers_of((0, 1.0, 0, 0, 1))
    assert best_stage(layers, cluster_of(5.0), [0], Layout(tp=1, dp=4), 8) is not None
    assert best_stage(layers, cluster_of(5.0), [0], Layout(tp=1, dp=3), 8) is None, "3 does not divide 8"
    assert (
        best_stage(layers, cluster_of(5.0, synchronisation="round"), [0], Layout(tp=1, dp=3), 8) is not None
    )
    assert best_stage(layers, cluster_of(5.0), [0], Layout(tp=2, dp=1), 8) is None, (
        "no configuration for two devices"
    )
    assert best_stage(layers, cluster_of(5.0), [0], Layout(tp=1, dp=4), 9) is None, "more than N in flight"
    assert best_stage(layers, cluster_of(5.0, 32), [0], Layout(tp=1, dp=16), 16) is None, (
        "more devices than there are"
    )


def test_degrees_divide_the_batch_where_it_is_synchronised_at_once() -> None:
    assert cluster_of(1.0, 6).data_widths().tolist() == [1, 2, 3, 6]
    assert cluster_of(1.0, 6, synchronisation="round").data_widths().tolist() == [1, 2, 3, 4, 5, 6]
    assert cluster_of(1.0, 256).data_widths().tolist() == [1, 2, 4, 8]
    assert cluster_of(1.0).data_widths(1).tolist() == [1]
