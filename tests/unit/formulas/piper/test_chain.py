"""Phaze's estimates and schedules become Piper's configurations as in the appendices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.formulas.flushing import Chain
from phaze.formulas.piper.chain import read_layers
from phaze.layout import Layout
from phaze.workload.graphs import edge_arrays
from tests.unit.formulas.phaze.examples import uniform_chain

NAMES = ("embedding", "block", "head")


def chain() -> Chain:
    """Return three layers that all differ."""
    return Chain(
        forward_s=np.array([1.0, 4.0, 2.0]),
        backward_s=np.array([1.0, 9.0, 3.0]),
        parameter_bytes=np.array([10.0, 20.0, 30.0]),
        static_bytes=np.array([40.0, 80.0, 120.0]),
        activation_bytes=np.array([5.0, 50.0, 3.0]),
        tensor_parallel=np.array([False, True, True]),
        **edge_arrays([(0, 1, 6.0), (1, 2, 8.0)]),
    )


def test_stashing_keeps_activations_and_two_versions_of_the_weights() -> None:
    options = read_layers({Layout(): chain()}, NAMES, (False,)).options[1]
    assert options.names == ("stash",) * 3
    assert options.layer.tolist() == [0, 1, 2]
    assert options.time_s.tolist() == [2.0, 13.0, 5.0]
    assert options.stash_bytes.tolist() == [5.0, 50.0, 3.0]
    assert options.fixed_bytes.tolist() == [50.0, 100.0, 150.0]
    assert options.weight_bytes.tolist() == [10.0, 20.0, 30.0]


def test_recomputing_runs_forward_twice_and_keeps_inputs() -> None:
    options = read_layers({Layout(): chain()}, NAMES, (True,)).options[1]
    assert options.names == ("recompute",) * 3
    assert options.time_s.tolist() == [3.0, 17.0, 7.0]
    assert options.stash_bytes.tolist() == [0.0, 6.0, 8.0]
    # The block's 50 bytes of activations hold its input of 6; the head keeps less than its input.
    assert options.fixed_bytes.tolist() == [50.0 + 5.0, 100.0 + 44.0, 150.0 + 0.0]


def test_configurations_of_a_layer_follow_each_other() -> None:
    options = read_layers({Layout(): chain()}, NAMES, (True, False)).options[1]
    assert options.names == ("stash", "recompute") * 3
    assert options.layer.tolist() == [0, 0, 1, 1, 2, 2]
    assert options.first(3).tolist() == [0, 2, 4, 6]
    assert options.time_s.tolist() == [2.0, 3.0, 13.0, 17.0, 5.0, 7.0]


def test_with_one_microbatch_in_flight_recomputing_saves_nothing() -> None:
    options = read_layers({Layout(): uniform_chain()}, ["block"] * 6, (False, True)).options[1]
    both = (options.stash_bytes + options.fixed_bytes).reshape(6, 2)
    assert both[:, 0].tolist() == both[:, 1].tolist()


def test_slices_pay_for_a_tensor_that_one_of_them_receives_and_a_whole_layer_does_not() -> None:
    layers = read_layers({Layout(): chain(), Layout(tp=2): chain()}, NAMES, (False,))
    assert layers.pairs == ((0, 1), (1, 2))
    assert layers.edge_bytes.tolist() == [6.0, 8.0]
    assert layers.options[1].forward_sync_bytes.tolist() == [[0, 0], [0, 0], [0, 0]]
    assert layers.options[1].backward_sync_bytes.tolist() == [[0, 0], [0, 0], [0, 0]]
    assert layers.options[2].forward_sync_bytes.tolist() == [[0, 0], [6, 0], [0, 8]]
    assert layers.options[2].backward_sync_bytes.tolist() == [[6, 0], [0, 8], [0, 0]]


def test_each_width_has_the_times_of_its_own_slices() -> None:
    halved = replace(chain(), forward_s=chain().forward_s / 2)
    layers = read_layers({Layout(tp=2): halved, Layout(): chain()}, NAMES, (False,))
    assert list(layers.options) == [1, 2]
    assert layers.options[2].time_s.tolist() == [1.5, 11.0, 4.0]
    assert layers.names == NAMES


@pytest.mark.parametrize("recompute", [(False,), (True,), (False, True)])
def test_skip_edges_are_inputs_too(recompute: tuple[bool, ...]) -> None:
    skipping = replace(chain(), **edge_arrays((*chain().tensors, (0, 2, 7.0))))
    layers = read_layers({Layout(tp=2): skipping}, NAMES, recompute)
    assert layers.pairs == ((0, 1), (1, 2), (0, 2))
    again = [c for c, name in enumerate(layers.options[2].names) if name == "recompute"]
    assert layers.options[2].stash_bytes[again].tolist() == [0.0, 6.0, 15.0][: len(again)]
