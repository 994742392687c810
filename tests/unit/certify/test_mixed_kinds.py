"""Models with two kinds of blocks, alternating or in sequence: the screen and the placements of every point.

Their certificates and audits are tested with those of other models, in `test_certificate`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from phaze.base.units import GIB
from phaze.formulas.flushing import Chain, Setting
from phaze.search.cosearch import evaluate_architectures
from phaze.workload.graphs import edge_arrays
from phaze.workload.workload import Workload
from tests.unit.certify.study import MIXED, architectures, given, results, subject
from tests.unit.formulas.phaze.exhaustive import best_time_s

KEYS = ["layout", "architecture", "hbm_gib", "recompute"]


def chain(point: Workload, solves: pd.DataFrame) -> Chain:
    """Return the layers in order, with weights and gradients of half precision."""
    layers = [point.layer(name) for name in point.order]
    times = solves.set_index(["direction", "layer"])["objective_s"]
    parameters = np.array([float(layer.parameters) for layer in layers])
    return Chain(
        forward_s=times["forward"][list(point.order)].to_numpy(),
        backward_s=times["backward"][list(point.order)].to_numpy(),
        parameter_bytes=2.0 * parameters,
        static_bytes=4.0 * parameters,
        activation_bytes=np.array([layer.activation_bytes for layer in layers]),
        tensor_parallel=np.array([layer.tensor_parallel for layer in layers]),
        **edge_arrays((i, i + 1, layer.output_bytes) for i, layer in enumerate(layers[:-1])),
    )


@pytest.mark.parametrize("name", MIXED)
def test_a_placement_is_the_best_of_every_cut_and_width(name: str) -> None:
    found = results(name)
    placed = found.placements.set_index(KEYS)["time_per_batch_s"]
    times = []
    for point in subject(name).points:
        mine = found.solves[found.solves["layout"] == point.layout.key]
        for chip in mine["architecture"].unique()[[0, -1]]:
            layers = chain(point, mine[mine["architecture"] == chip])
            for setting in Setting.grid(given().scenario, given().training, point.layout):
                key = point.layout.key, chip, setting.memory_bytes / GIB, setting.recompute
                times.append(best_time_s(layers, point.layout.tp, setting))
                assert placed[key] == pytest.approx(times[-1], rel=1e-12), key
    assert 0 < np.isfinite(times).sum() < len(times) == 2 * 2 * 4


@pytest.mark.parametrize("name", MIXED)
def test_the_bounds_of_the_screen_enclose_the_placements(name: str) -> None:
    found = results(name)
    both = found.placements.merge(pd.concat(found.screens), on=KEYS)
    assert len(both) == len(found.placements)
    assert both["kept"].all()
    time = both["time_per_batch_s"].to_numpy()
    fits = np.isfinite(time)
    assert 0 < fits.sum() < len(both)
    assert (fits == np.isfinite(both["lower_s"])).all()
    assert (both["lower_s"] <= time * (1 + 1e-12)).all()
    assert (time <= both["feasible_s"] * (1 + 1e-12)).all()
    assert (both["lower_j"] <= both["joules_per_sample"] * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", MIXED)
def test_an_architecture_asked_for_alone_has_the_same_placements(name: str) -> None:
    """The stages composed in memory agree with those that pass on tables, point by point."""
    placed = results(name).placements
    chip = placed["architecture"].iloc[0]
    alone = evaluate_architectures(
        subject(name), architectures()[architectures()["architecture"] == chip], given()
    ).placements.set_index(KEYS)
    both = placed[placed["architecture"] == chip].set_index(KEYS)
    assert len(both) in (4, 8)
    pd.testing.assert_frame_equal(alone.loc[both.index], both)
