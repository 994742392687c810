"""Requests for more memory than the machine has are refused before allocation, with both sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.chains import Runs, best_times
from phaze.formulas.phaze.flush import Infeasible, place_chain, place_widths
from phaze.layout import Layout
from phaze.workload.graphs import edge_arrays

SETTING = Setting(devices=4, microbatches=64, bandwidth_bytes_per_s=1e9, memory_bytes=1e12)
Has = Callable[[float], None]


@pytest.fixture(name="machine_has")
def machine_of_size(monkeypatch: pytest.MonkeyPatch) -> Has:
    """Return a function that sets the machine's memory in GiB."""

    def has(gib: float) -> None:
        monkeypatch.setattr("phaze.base.room.machine_bytes", lambda: int(gib * GIB))

    return has


def chain(layers: int, *, mixed: bool = False) -> Chain:
    """Return equal layers; with `mixed`, every other one is split among t devices."""
    one = np.ones(layers)
    edges = tuple((i, i + 1, 1e6) for i in range(layers - 1))
    split = (np.arange(layers) % 2 == 0) & mixed
    return Chain(one * 1e-3, one * 2e-3, one * 1e6, one * 3e6, one * 1e6, split, **edge_arrays(edges))


def test_tables_of_many_layers_are_refused_with_the_size_that_they_need(machine_has: Has) -> None:
    machine_has(0.05)
    assert not isinstance(place_chain(chain(500), Layout(tp=1), SETTING), Infeasible)
    with pytest.raises(PhazeError, match=r"all stages of 1,000 layers need 0\.0895 GiB .* has 0\.05 GiB"):
        place_chain(chain(1000), Layout(tp=1), SETTING)


def test_a_model_of_a_hundred_thousand_layers_is_refused(machine_has: Has) -> None:
    """The number of layers is known early, so the refusal takes no more time or memory than other inputs."""
    machine_has(100)
    one = np.ones(1)
    runs = Runs((100_000,), one, one, one, one, np.zeros(1, bool))
    with pytest.raises(PhazeError, match=r"100,000 layers need 894\.1 GiB of memory, .* has 100 GiB"):
        best_times(runs, np.ones((1, 1)), np.ones((1, 1)), Layout(), [SETTING])


def test_tables_of_many_stages_are_refused_before_the_first_width_is_placed(machine_has: Has) -> None:
    machine_has(100)
    graphs = {Layout(): chain(3000), Layout(tp=2): chain(3000, mixed=True)}
    many = replace(SETTING, devices=100_000)
    message = r"3,000 layers in up to 3,000 stages, 1,500 of them.* 201\.4 GiB.*has 100 GiB"
    with pytest.raises(PhazeError, match=message):
        place_widths(graphs, many)


def test_a_reason_leaves_out_what_takes_too_much_memory_to_find_out(machine_has: Has) -> None:
    tight = replace(SETTING, memory_bytes=2e8)
    known = place_chain(chain(300, mixed=True), Layout(tp=2), tight)
    assert isinstance(known, Infeasible)
    machine_has(0.05)
    told = place_chain(chain(300, mixed=True), Layout(tp=2), tight)
    assert isinstance(told, Infeasible)
    assert "it would fit" in known.reason
    assert known.reason.startswith(told.reason)
    assert "it would fit" not in told.reason
