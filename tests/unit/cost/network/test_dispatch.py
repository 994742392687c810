"""Token dispatch once per rank or node: counts by brute force, times by hand."""

from itertools import combinations

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.dispatch import Routing, dispatch_s
from phaze.cost.network.network import Flat, Levels, Tier
from phaze.layout import Group


def counted(routing: Routing, parts: int) -> float:
    """Mean number of parts over all choices of groups and of experts in them."""
    size, own = routing.experts // routing.groups, routing.experts // parts
    found = []
    for groups in combinations(range(routing.groups), routing.top_groups):
        allowed = [group * size + i for group in groups for i in range(size)]
        found += [len({e // own for e in chosen}) for chosen in combinations(allowed, routing.per_token)]
    return float(np.mean(found))


def test_distinct_ranks_are_those_of_all_choices() -> None:
    for experts, per_token, groups, top in (
        (8, 2, 1, 1),
        (8, 3, 4, 2),
        (12, 4, 4, 3),
        (12, 2, 6, 1),
        (16, 3, 4, 2),
    ):
        routing = Routing(experts, per_token, groups, top)
        for parts in (part for part in (1, 2, 4, 6, 8, 12) if experts % part == 0):
            inside, whole = experts // groups % (experts // parts), (experts // parts) % (experts // groups)
            if inside and whole:
                continue  # parts that cut groups unevenly
            assert routing.distinct(parts) == pytest.approx(counted(routing, parts))


def test_distinct_ranks_of_deepseek_v3_are_those_of_random_tokens() -> None:
    """8 of 256 experts in 4 of 8 groups, on 64 ranks of 8 nodes: at most 4 nodes per token (DeepSeek-V3,
    3.2.2).
    """
    rng, routing = np.random.default_rng(0), Routing(256, 8, 8, 4)
    groups = rng.permuted(np.tile(np.arange(8), (20_000, 1)), axis=1)[:, :4]
    ranks = rng.permuted(np.tile(np.arange(128), (20_000, 1)), axis=1)[:, :8]
    experts = np.take_along_axis(groups, ranks // 32, axis=1) * 32 + ranks % 32
    for parts in (8, 64):
        where = np.sort(experts // (256 // parts), axis=1)
        seen = 1 + (np.diff(where, axis=1) > 0).sum(axis=1).mean()
        assert routing.distinct(parts) == pytest.approx(seen, rel=5e-3)
    assert routing.distinct(8) < 4 < Routing(256, 8).distinct(8)


def test_the_slower_of_two_levels_takes_the_time() -> None:
    routing, size = Routing(64, 4), 4 * 1e9
    network = Levels((Tier(8, 400e9, 1e-6), Tier(64, 50e9, 5e-6)))
    nodes, ranks = routing.distinct(4), routing.distinct(32)
    between = 1e9 * nodes * 3 / 4 / 50e9 + 3 * 5e-6
    inside = 1e9 * ranks * 7 / 8 / 400e9 + 7 * 1e-6
    assert dispatch_s(network, size, Group(32, 1), routing) == pytest.approx(max(between, inside))
    assert dispatch_s(network, size, Group(8, 1), routing) == pytest.approx(
        1e9 * routing.distinct(8) * 7 / 8 / 400e9 + 7e-6
    )


def test_a_row_for_a_rank_each_is_an_all_to_all() -> None:
    """With one expert per token no token is sent twice."""
    group, routing = Group(8, 1), Routing(8, 1)
    for network in (Flat(1e9), Levels((Tier(8, 1e9, 1e-6, 1e-5),))):
        plain_s = network.seconds("all_to_all", 1e6, group)
        assert dispatch_s(network, 1e6, group, routing) == pytest.approx(plain_s)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((8, 9), "per_token must be 1 to 8, got 9"),
        ((8, 3, 4, 1), "per_token must be 1 to 2, got 3"),
        ((8, 2, 3, 1), "groups must divide experts 8 and top_groups be at most groups, got 3 and 1"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(values: tuple[int, ...], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        Routing(*values)
