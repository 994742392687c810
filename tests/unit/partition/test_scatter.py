"""Scatter of repeated measurements: by closed form, and the warnings that it gives."""

from __future__ import annotations

from math import sqrt

import pytest

from phaze.partition.scatter import scatter_of


def test_scatter_is_the_standard_deviation_over_the_median_and_names_the_worst_operators() -> None:
    """Rounds of 9, 10 and 11 s scatter by sqrt(2/3) / 10; of three operators one is constant."""
    times_s = [[(1.0, 1.0), (2.0, 2.0), (1.0, second)] for second in (2.0, 3.0, 4.0)]
    scatter = scatter_of(["a", "b", "c"], times_s, [10.0, 10.0, 10.0])
    assert scatter.step == 0
    assert scatter.operators == pytest.approx(sqrt(2 / 3) / 10)
    assert scatter.worst[0] == "c"


def test_a_busy_machine_and_parts_unlike_the_whole_are_warned_of() -> None:
    quiet = scatter_of(["a"], [[(1.0, 1.0)]] * 3, [2.0, 2.0, 2.0])
    (line,) = quiet.in_words(2.1, 2.0)
    assert line.startswith("scatter of the repeats (standard deviation): 0.0 % of the whole module")
    busy = scatter_of(["a", "b"], [[(1.0, 1.0), (1.0, s)] for s in (1.0, 1.0, 3.0)], [2.0, 2.0, 3.0])
    _, warning = busy.in_words(2.1, 2.0)
    assert "more than 10 %, most of it in b, a. The machine may be busy" in warning
    _, unlike = quiet.in_words(1.5, 2.0)
    assert "take 25.0 % less one by one than the whole module" in unlike
