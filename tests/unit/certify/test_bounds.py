"""The plain bounds hold for every schedule, and the vectorised bounds are equal to them."""

import numpy as np
import pandas as pd
import pytest

from phaze.certify.draw import share_out
from phaze.certify.plain import (
    Estimated,
    bound_by_path,
    bound_by_work,
    bound_piece,
    estimated_s,
    layer_of_piece,
    pieces_of,
)
from phaze.schedule.graphs import ScheduledLayer
from tests.unit.schedule.exhaustive import shortest_latency
from tests.unit.schedule.random_layers import random_layer


def weakly(layer: ScheduledLayer) -> tuple[float, float]:
    """Return the bounds from work and path of the code for many architectures."""
    n = len(layer.core)
    works = [-1 if core == "none" else i for i, core in enumerate(layer.core)]
    operators = pd.DataFrame({"operator": range(n), "core": layer.core, "work": works})
    edges = pd.DataFrame(layer.edges, columns=["source", "target"])
    estimates = pd.DataFrame(
        {"work": range(n), "design": 0, "latency_s": layer.latency_s, "latency_all_s": layer.latency_all_s}
    )
    chip = {"num_tc": [layer.num_tc], "num_vc": [layer.num_vc]}
    designs = {f"{core}_design": [0] for core in ("tensor", "vector", "fused")}
    estimated = Estimated(
        operators, edges, estimated_s(estimates), pd.DataFrame(chip | designs),
        overlap_communication=layer.overlap_communication,
    )  # fmt: skip
    return float(bound_by_work(estimated)[0]), float(bound_by_path(estimated)[0])


def plainly(layer: ScheduledLayer) -> float:
    """Return the bound of a layer as the sum of the bounds of its components."""
    pieces = pieces_of(layer.core, layer.edges)
    return sum(bound_piece(layer_of_piece(layer, piece)) for piece in pieces)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_no_schedule_is_shorter_than_the_bounds(seed: int, overlap: bool) -> None:
    layer = random_layer(seed, 5, network=True, overlap=overlap)
    idle = np.array([core == "none" for core in layer.core])
    layer = ScheduledLayer(
        layer.core, np.where(idle, 0, layer.latency_s), np.where(idle, 0, layer.latency_all_s), layer.edges,
        layer.num_tc, layer.num_vc, overlap,
    )  # fmt: skip
    shortest = shortest_latency(layer) * (1 + 1e-12)
    assert plainly(layer) <= shortest
    assert max(weakly(layer)) <= shortest
    assert max(weakly(layer)) <= plainly(layer) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_of_one_component_the_two_ways_to_bound_it_agree(seed: int) -> None:
    layer = random_layer(seed, 12)
    pieces = [layer_of_piece(layer, piece) for piece in pieces_of(layer.core, layer.edges)]
    assert sum(len(piece.core) for piece in pieces) == 12
    for piece in pieces:
        assert max(weakly(piece)) == pytest.approx(bound_piece(piece), rel=1e-12)


def test_components_stand_in_series() -> None:
    """A diamond between two single operators, with a no-op inside that orders operators but takes no time."""
    core = ("tensor", "tensor", "vector", "none", "tensor")
    edges = ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4))
    assert [piece.operators for piece in pieces_of(core, edges)] == [(0,), (1, 2), (4,)]
    every = np.array([1.0, 3.0, 2.0, 0.0, 4.0])
    layer = ScheduledLayer(core, every + 1, every, edges, 2, 2)
    assert plainly(layer) == 1 + 3 + 4


def test_points_are_shared_out_in_proportion() -> None:
    excluded = {"large": 900, "middle": 99, "small": 1, "none": 0}
    shares = share_out(excluded, 100)
    assert shares == {"large": 90, "middle": 9, "small": 1, "none": 0}
    assert share_out(excluded, 5000) == excluded
    assert sum(share_out({"a": 1000, "b": 1000, "c": 1000}, 100).values()) == 100
    assert share_out({"a": 10**6, "b": 50}, 100)["b"] == 3
    assert share_out({"a": 0}, 100) == {"a": 0}
