"""Plans of the search compared with layouts of published runs, under the same price."""

from __future__ import annotations

from math import inf

import pytest

from phaze.plan.search.search import LayoutPlanner
from tests.unit.plan.search.published import PublishedLayout, published_layouts

DEVICES = 64
SMALL = [one for one in published_layouts() if one.row.runs[0].gpus < DEVICES]


@pytest.mark.parametrize("one", SMALL, ids=lambda one: f"{one.label}-{one.source}")
def test_the_first_plan_of_the_same_widths_is_at_most_as_slow(one: PublishedLayout) -> None:
    """Benchmarks compare all rows, and all widths."""
    question = one.question
    layout, published_s = one.fastest(question)
    assert published_s < inf
    best = LayoutPlanner(fixed={"tp": layout.tp, "pp": layout.pp, "cp": 1}, number=1)(question).plans[0]
    assert best.time_s <= published_s
