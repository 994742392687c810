"""Linear programs that grow row by row, compared with closed forms."""

from __future__ import annotations

from math import inf

import highspy
import numpy as np
import pytest

from phaze.solver.linear import LinearProgram


def weights(cost: list[float], *, integer: bool = False) -> LinearProgram:
    """Return the minimum cost of amounts between 0 and 1, without weight constraints yet."""
    count = len(cost)
    return LinearProgram(np.array(cost), np.zeros(count), np.ones(count), np.full(count, integer))


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values)


def test_a_fractional_knapsack_takes_the_cheapest_weight_first() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        cost, weight = rng.uniform(1, 2, 6), rng.uniform(1, 2, 6)
        least = 0.6 * weight.sum()
        program = weights(cost.tolist())
        program.add(weight[None], np.array([least]), np.array([inf]))
        order = np.argsort(cost / weight)
        before = np.concatenate([[0.0], np.cumsum(weight[order])[:-1]])
        taken = np.clip((least - before) / weight[order], 0, 1)
        answer = program.solve()
        assert answer.bound == pytest.approx(float(cost[order] @ taken))
        assert answer.point is not None
        assert answer.point[order] == pytest.approx(taken)


def test_rows_and_bounds_that_are_added_raise_the_answer() -> None:
    program = LinearProgram(np.array([1.0, 1.0]), np.zeros(2), np.full(2, 10.0), np.array([True, False]))
    program.add(rows([2.0, 1.0]), np.array([3.0]), np.array([inf]))
    assert program.solve().bound == pytest.approx(1.5)
    assert program.solve(exact=True).bound == pytest.approx(2.0)  # one and one, or two and none
    program.add(rows([1.0, 0.0], [0.0, 1.0]), np.array([-inf, 0.5]), np.array([1.0, inf]))
    answer = program.solve()
    assert answer.bound == pytest.approx(2.0)
    program.at_least(1, 2.0)
    assert program.solve().bound == pytest.approx(2.5)
    assert program.solve(exact=True).bound == pytest.approx(3.0)


def test_a_program_without_a_point_has_an_infinite_bound() -> None:
    for exact in (False, True):
        program = weights([1.0, 1.0], integer=True)
        program.add(rows([1.0, 1.0]), np.array([3.0]), np.array([inf]))
        answer = program.solve(exact=exact)
        assert (answer.bound, answer.point) == (inf, None)


def test_whole_answers_are_those_of_all_points() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        cost, weight = rng.uniform(1, 2, 8), rng.uniform(1, 2, 8)
        program = weights(cost.tolist(), integer=True)
        program.add(weight[None], np.array([0.5 * weight.sum()]), np.array([inf]))
        points = np.array(np.meshgrid(*[[0, 1]] * 8)).reshape(8, -1).T
        best = float((points @ cost)[points @ weight >= 0.5 * weight.sum()].min())
        answer = program.solve(exact=True)
        assert answer.point is not None
        assert answer.bound <= best * (1 + 1e-9)
        assert float(cost @ answer.point) == pytest.approx(best)
        assert program.solve().bound <= best


def test_nothing_is_printed_before_output_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    on = []
    enable = highspy.Highs.enableCallbacks  # where HiGHS 1.16 prints its banner

    def watched(self: highspy.Highs) -> None:
        on.append(self.getOptionValue("output_flag")[1])
        enable(self)

    monkeypatch.setattr(highspy.Highs, "enableCallbacks", watched)
    weights([1.0]).solve()
    assert on == [False]
