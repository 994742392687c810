"""Terms of the price: the same with numbers and arrays, monotone, and never below their bounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.arrays import Floats
from phaze.pipeline.stages import StageCost
from phaze.plan.bounds.loads import LayoutLoads
from phaze.plan.bounds.shards import ShardCosts
from phaze.plan.plan import Stage
from phaze.plan.terms import exchange, overlap
from phaze.plan.terms.state import StateTerms
from phaze.spec.system import Stack
from tests.laws.draws import Drawn, draw
from tests.laws.test_laws import LAWS

EXACT = 1e-12
BUCKETS = Stack(gradient_bytes=4, second_gradients="buckets", whole_gradients=True)
STACKS = (Stack(), BUCKETS, Stack(gradient_bytes=4, second_gradients="all", fused_gradients=True))
STATES = tuple(
    StateTerms(optimizer, precision, stack, 2e12, offloaded)
    for optimizer in ("adam", "sgd")
    for precision in ("mixed", "half", "single")
    for stack in STACKS
    for offloaded in (False, True)
)


class Term(NamedTuple):
    """Term with its arguments, each with its range and the sign of its effect: + rises, − falls, 0 either."""

    name: str
    of: Callable[..., object]
    arguments: tuple[tuple[float, float, str], ...]


PARAMETERS, ZERO, RANKS, SECONDS = (0, 1e9, "+"), (0, 3, "-"), (1, 64, "-"), (0, 10, "+")
TERMS = (
    *(
        term
        for state in STATES
        for term in (
            Term("device_bytes", lambda *row, state=state: state.device_bytes(*row, pipelined=False),
                 (PARAMETERS, (0, 3, "0"), (2, 64, "-") if state.stack is BUCKETS else RANKS)),
            Term("host_bytes", state.host_bytes, (PARAMETERS, ZERO, RANKS)),
            Term("frozen_bytes", state.frozen_bytes, (PARAMETERS, ZERO, RANKS)),
            Term("update_bytes", state.update_bytes, (PARAMETERS, (0, 3, "0"), RANKS)),
            Term("accumulation_s", state.accumulation_s, (PARAMETERS, ZERO, RANKS, (1, 64, "+"))),
        )
    ),
    Term("in_passes", lambda zero: exchange.in_passes("all_gather", zero), ((0, 3, "+"),)),
    Term("per_step", lambda zero: exchange.per_step("all_gather", zero), ((0, 3, "0"),)),
    Term("collectives", lambda size: np.array([nbytes for _, nbytes, *_ in exchange.collectives(
        "reduce_scatter", size, 8.0, 4.0, 2.0)]), ((0, 1e9, "+"),)),
    Term("longer_s", lambda exposed, over, waited: overlap.longer_s(0.1, exposed + over, exposed, waited),
         (SECONDS, SECONDS, SECONDS)),
    Term("longer_s", lambda over, waited, idle: overlap.longer_s(0.1, 1.0 + over, 1.0, waited, idle),
         (SECONDS, SECONDS, (0, 10, "-"))),
    Term("paired_share", overlap.paired_share, ((1, 16, "-"), (1, 64, "+"))),
    Term("pass_sides_s", lambda *row: np.array(overlap.pass_sides_s(*row, [row[2]])),
         (SECONDS, SECONDS, SECONDS)),
    Term("gathered_after_s", lambda gather, free, n: overlap.gathered_after_s(
        gather, free, share=0.75, lost=0.1, operators=n), (SECONDS, (0, 10, "-"), (1, 64, "-"))),
    Term("slowdown_s", lambda sent, free: overlap.slowdown_s(sent, free, 0.1), (SECONDS, SECONDS)),
    Term("waits_s", lambda links: overlap.waits_s(
        np.array([1.0, 2.0]), np.stack([links, links], axis=-1)).max(-1), (SECONDS,)),
)  # fmt: skip
OF_NUMBERS = {"exchanged_pass_s"}
"""Terms of the price alone: bounds take the largest of `pass_sides_s`, below which no pass is."""
OF_KERNELS = {"exposed_s", "least_exposed_s", "hbm_share", "moved_s", "lost_share", "lost_to_messages"}
CONDITIONS = {"kept_apart", "takes_many_queues", "queues_conflict"}


def test_every_term_is_checked() -> None:
    """A term without an entry above is neither monotone nor a bound, as far as tests know."""
    modules = {name for module in (exchange, overlap) for name, value in vars(module).items()
               if inspect.isfunction(value) and value.__module__ == module.__name__}  # fmt: skip
    methods = {name for name, value in vars(StateTerms).items() if inspect.isfunction(value)}
    names = {name for name in modules | methods if not name.startswith("_")}
    assert names == {term.name for term in TERMS} | OF_NUMBERS | OF_KERNELS | CONDITIONS


@pytest.mark.parametrize("name", sorted({term.name for term in TERMS}))
def test_a_term_of_arrays_is_that_of_each_number_and_monotone(name: str) -> None:
    random = np.random.default_rng(0)
    for term in (term for term in TERMS if term.name == name):
        rows = np.stack([_drawn(random, *argument[:2], 200) for argument in term.arguments], axis=1)
        many = np.asarray(term.of(*rows.T), float)
        for place, row in enumerate(rows[:40].tolist()):
            assert np.array_equal(np.asarray(term.of(*row), float), many[..., place]), (name, row)
        for column, (low, high, sign) in enumerate(term.arguments):
            raised = rows.copy()
            raised[:, column] = np.maximum(_drawn(random, low, high, len(rows)), rows[:, column])
            higher = np.asarray(term.of(*raised.T), float)
            slack = 1e-12 * (abs(many) + 1.0)
            assert sign == "0" or (higher - many <= slack if sign == "-" else many - higher <= slack).all()


def _drawn(random: np.random.Generator, low: float, high: float, count: int) -> Floats:
    """Numbers of a range; whole ones if it is one of counts, and a few at its low end."""
    numbers = random.uniform(low, high, count)
    numbers[:10] = low
    return np.round(numbers) if high <= 64 and high != 10 else numbers


@given(
    st.floats(0.01, 10), st.floats(0, 10), st.floats(0, 1), st.floats(0, 0.5), st.floats(0, 3),
    st.integers(1, 99),
)  # fmt: skip
def test_no_pass_takes_less_than_its_sides(
    pass_s: float, exchange_s: float, share: float, lost: float, wait_s: float, operators: int
) -> None:
    """More operators take less time, and very many take the longest side to 1e-12."""
    sent_s = share * exchange_s
    wait_s *= sent_s > 0
    fixed = {"share": share, "lost_s": lost * sent_s, "wait_s": wait_s}
    sides_s = overlap.pass_sides_s(pass_s, lost * sent_s, sent_s, [wait_s])
    bound_s = exchange_s - sent_s + max(sides_s)
    few, many, endless = (
        overlap.exchanged_pass_s(pass_s, exchange_s, operators=number, **fixed)
        for number in (operators, operators + 1, 10**15)
    )
    assert few >= many * (1 - EXACT) >= bound_s * (1 - 2 * EXACT)
    assert endless == pytest.approx(bound_s, rel=EXACT)


@LAWS
@given(seed=st.integers(0, 2**32))
def test_no_term_of_a_stage_is_below_its_bound(seed: int) -> None:
    """Bounds of seconds and bytes, summed over the layers of every stage, against its price.

    With nothing undecided they are equal to 1e-12: the bytes of states and activations of a single pipeline
    rank, and passes without exchanges of replicas and without messages.
    """
    drawn = draw(Random(seed))
    loads, plan = loads_of(drawn), drawn.priced.price.plan
    costs = drawn.priced.price.pipeline.stages
    for q, (stage, cost) in enumerate(zip(plan.stages, costs, strict=True)):
        bound, price, decided = sums(drawn, loads, q, stage, cost)
        for name in bound:
            assert bound[name] <= price[name] * (1 + EXACT), (name, q, str(drawn))
        for name in decided:
            assert bound[name] == pytest.approx(price[name], rel=EXACT), (name, q, str(drawn))


def loads_of(drawn: Drawn) -> LayoutLoads:
    """Loads of the one layout of a drawn plan."""
    question, recipe = drawn.question, drawn.recipe
    grid = question.runtime.grid(recipe.model, [(recipe.layout, recipe.schedule)])
    return LayoutLoads.of(question, grid, ShardCosts.of(question, grid), np.zeros(1, np.int64))


def sums(
    drawn: Drawn, loads: LayoutLoads, q: int, stage: Stage, cost: StageCost
) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """Bounds and prices of a stage's figures by name, and the names of those that nothing leaves open."""
    layout = drawn.recipe.layout
    kinds = ShardCosts.of(drawn.question, loads.grid).order
    blocks = range(max(stage.first_layer, 1) - 1, min(stage.last_layer, len(kinds.names)))
    numbers = np.array([sum(kinds.kind[i] == k for i in blocks) for k in range(len(kinds.kinds))])
    first, last = stage.first_layer == 0, stage.last_layer > len(kinds.names)
    recomputed = (
        drawn.recipe.recomputed[q] if loads.recompute_s.any() or loads.layers.saved_bytes.any() else 0
    )
    again = np.array([sum(kinds.kind[i] == k for i in blocks[:recomputed]) for k in range(len(kinds.kinds))])
    ends = [loads.first_s] * first + [loads.last_s] * last
    end_bytes = [(loads.end_bytes[0], loads.ends.first_bytes)] * first
    end_bytes += [(loads.end_bytes[1], loads.ends.last_bytes)] * last
    alone = float(loads.grid.vp[0] == 1)
    bound = {
        "forward_s": numbers @ loads.forward_s[0] + sum(float(end[0][0]) for end in ends),
        "backward_s": numbers @ loads.backward_s[0] + again @ loads.recompute_s[0]
        + sum(float(end[1][0]) for end in ends),
        "update_s": numbers @ loads.update_s[0] - sum(float(loads.ahead_s[i][0]) for i in (0, 1)) * 1.0,
        "fixed_bytes": numbers @ loads.fixed_bytes[0]
        + sum(float(whole[0] - stash[0] * alone) for whole, stash in end_bytes),
        "stash_bytes": numbers @ loads.layers.stash_bytes[0] - again @ loads.layers.saved_bytes[0]
        + sum(float(stash[0]) for _, stash in end_bytes),
    }  # fmt: skip
    price = {
        "forward_s": cost.forward_s,
        "backward_s": cost.backward_s + cost.recompute_s,
        "update_s": cost.update_s + cost.gather_s,
        "fixed_bytes": cost.fixed_bytes,
        "stash_bytes": cost.stash_bytes,
    }
    decided = ["stash_bytes"] if not layout.offload else []
    decided += ["fixed_bytes"] if layout.pp == 1 or not drawn.question.machine.stack.whole_gradients else []
    if layout.zero < 2 and layout.pp == 1 and not layout.offload:
        decided += ["forward_s", "backward_s"]
    return bound, price, decided
