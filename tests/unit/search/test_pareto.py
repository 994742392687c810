"""The sweep agrees with a comparison of all pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze.search.pareto import MANY, covered_by, uncovered, uncovered_among

POINT = st.tuples(*[st.sampled_from([1.0, 2.0, 3.0, 4.0])] * 3, st.booleans())


@given(points=st.lists(POINT, max_size=14))
def test_a_point_is_covered_by_what_is_nowhere_worse_and_better_or_earlier(
    points: list[tuple[float, float, float, bool]],
) -> None:
    """With many equal values, and with only some covering points."""
    columns = [np.array(column) for column in zip(*points, strict=True)] or [np.empty(0)] * 4
    values, covering = columns[:3], columns[3].astype(bool)

    def covers(b: int, a: int) -> bool:
        one, other = points[b][:3], points[a][:3]
        nowhere_worse = all(x <= y for x, y in zip(one, other, strict=True))
        return nowhere_worse and (one != other or b < a)

    for chosen in (covering, np.ones(len(points), dtype=bool)):
        among = [b for b in range(len(points)) if chosen[b]]
        expected = [not any(covers(b, a) for b in among) for a in range(len(points))]
        assert uncovered(*values, chosen).tolist() == expected
        few = np.array(among, dtype=np.int64)
        assert (~covered_by(few, *values)).tolist() == expected
    assert uncovered(*values).tolist() == expected
    asked = uncovered_among(covering, *values)
    assert asked[covering].tolist() == uncovered(*(column[covering] for column in values)).tolist()
    assert not asked[~covering].any()


def test_the_front_covers_everything_else() -> None:
    """Ten thousand random points: every point outside the front is dominated."""
    time, area, energy = np.random.default_rng(3).random((3, 10_000))
    front = uncovered(time, area, energy)
    assert 10 < front.sum() < 1000
    assert not uncovered(time, area, energy, front)[~front].any()


def test_of_many_points_the_same_are_found_with_and_without_looking_at_a_few_first() -> None:
    """Of points with equal time, area and energy, only the first is in the front."""
    values = np.random.default_rng(5).integers(1, 30, (3, 20_000)).astype(np.float64)
    values[2] += 60.0 - values[0] - values[1]
    among = np.arange(20_000) % 5 > 0
    found = uncovered_among(among, *values)
    assert among.sum() > MANY
    assert found[among].tolist() == uncovered(*values[:, among]).tolist()
    assert found[among].sum() > 10
    assert not found[~among].any()
