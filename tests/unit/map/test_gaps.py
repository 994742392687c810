"""The local search alone, beside the optimum."""

import pytest

from phaze.map.ensemble import Chains
from phaze.map.objective import INSTANTIATIONS, Instantiation, Problem
from phaze.map.search import Limits
from phaze.map.study import find_gap
from tests.unit.map.cases import drawn_network, drawn_stages, least_by_trying_all


@pytest.mark.parametrize("instantiation", INSTANTIATIONS)
def test_what_is_known_beside_the_local_search_is_the_optimum(instantiation: Instantiation) -> None:
    """A search that begins with the mapping of the local search proves what trying all finds."""
    problem = Problem(drawn_stages(3, 3, 2), drawn_network(3, 7, "directed"), instantiation)
    gap, poor = (find_gap(problem, Chains(1, steps), Limits()) for steps in (3000, 10))
    least = least_by_trying_all(problem)
    for one in (gap, poor):
        assert one.found.proven
        assert one.found.value_s == pytest.approx(least)
        assert one.local_s >= least * (1 - 1e-12)
    assert gap.local_s <= poor.local_s
