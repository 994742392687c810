"""The search over layouts finds the brute-force optimum, and its certificate is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, cycle, product
from math import inf

import numpy as np
import pytest

from phaze.base.progress import doing
from phaze.base.units import GIB, percent
from phaze.layout import Layout
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.bounds.families import LayoutFamilies
from phaze.plan.bounds.layouts import bound_layouts
from phaze.plan.bounds.shards import ShardCosts
from phaze.plan.machines import load_machine
from phaze.plan.pricing.price import price
from phaze.plan.question import PlanQuestion
from phaze.plan.search import contenders
from phaze.plan.search.planned import LayoutPlans, are_twins
from phaze.plan.search.search import LayoutPlanner, LayoutSearch
from phaze.plan.splits.search import SplitSearch
from phaze.plan.time_limit import TimeLimit
from phaze.runtimes.space import Fixed, legal_space
from phaze.spec.training_plan import TIE
from tests.effort import DRAWS, EVERY, if_every
from tests.unit.plan.search.exhaustive import (
    KNOWN,
    Costs,
    PricedSplit,
    QuickPrice,
    SmallCase,
    divisions,
    fastest_s,
    legal_layouts,
    planned,
    priced_layouts,
)

GATHERED = "all_gather"
"""The only exchange of context-parallel ranks in cases that are large without the others."""
SPARSE = SmallCase("mixtral-8x7b", 2, 1024, devices=8, hbm_gib=12.0, global_batch=2, cp_kind=GATHERED)
"""Layers with experts."""
PAIRED = replace(SPARSE, devices=4, hbm_gib=24.0, global_batch=4, pairs=True)
"""Layers with experts, whose dispatch overlaps with passes of other microbatches."""
SKEWED = replace(SPARSE, load="power_law_1.2", devices=4, hbm_gib=28.0, cp_kind="a2a")
"""Experts with unequal numbers of dispatched tokens."""
CASES = {
    "experts": SPARSE,
    "llama": SmallCase("llama-3.1-8b", 3, 2048, devices=4, hbm_gib=10.0, global_batch=4),
    "gpt2": SmallCase("gpt2-xl", 4, 1024, devices=8, hbm_gib=1.5, global_batch=4, cp_kind=GATHERED),
    "llama on 16": SmallCase("llama2-70b", 2, 1024, 16, 4.0, global_batch=2, cp_kind=GATHERED),
}
OFFLOADED = SmallCase("llama-3.1-8b", 2, 2048, 4, 8.5, 4, offload="core_attn+attn_proj+optimizer")
"""Activations and states offloaded to host memory, with links slower than passes."""
MOMENTS = replace(SPARSE, devices=4, hbm_gib=20.0, global_batch=4, optimizer="adam-bf16")
"""Moments of 16 bits."""
LEVELS = SmallCase("llama-3.1-8b", 2, 2048, 8, 6.0, 1, cp_kind="a2a+p2p:2")
"""Heads exchanged inside pairs of ranks, keys and values in a ring of pairs."""
ADAPTED = SmallCase("llama-3.1-8b", 2, 2048, 4, 2.5, global_batch=4, cp_kind=GATHERED, lora=16)
"""Training of adapters only."""
EIGHT_BITS = SmallCase("llama-3.1-8b", 2, 2048, 4, 8.5, 4, cp_kind=GATHERED, compute="fp8-cs")
"""Eight-bit products, with saved inputs of eight bits."""
HYBRID = {
    "hsdp": SmallCase("llama-3.1-8b", 2, 2048, 8, 9.0, 8, cp_kind=GATHERED, replicate=2),
    "hsdp experts": replace(SPARSE, devices=4, hbm_gib=40.0, global_batch=4, replicate=2),
}
"""States sharded within groups of replicas, and replicated among the groups."""
PARTLY = SmallCase("gpt2-xl", 3, 1024, 8, 1.5, global_batch=4, cp_kind=GATHERED, share=0.6)
"""Communication that overlaps in part with compute."""
SHORT = SmallCase("gpt2-xl", 2, 64, devices=2, hbm_gib=5.0, global_batch=256)
"""Sequences so short that the best microbatch has more than 64 samples."""
UNEVEN = SmallCase("gpt2-xl", 4, 1024, devices=4, hbm_gib=2.5, global_batch=6, cp_kind=GATHERED)
"""Batches of 3 and 6 microbatches, in single groups, on 2 and 4 ranks with virtual stages."""
PRUDENT = {
    "prudent": replace(CASES["llama"], hbm_gib=12.0, global_batch=2, prudent=True),
    "prudent experts": replace(SPARSE, devices=4, hbm_gib=32.0, prudent=True),
}
"""Plans ranked by prudent time, with memory at its upper end."""
RUNTIMES = ("megatron", "torchtitan")
BOTH = CASES | HYBRID | {"adapters": ADAPTED, "fp8": EIGHT_BITS, "partly": PARTLY}
"""Cases of both runtimes."""
MEGATRON = PRUDENT | {
    "pairs": PAIRED,
    "partly pairs": replace(PAIRED, cp_kind="p2p", share=0.6),
    "load": SKEWED,
    "offload": OFFLOADED,
    "moments": MOMENTS,
    "levels": LEVELS,
    "large microbatches": SHORT,
    "uneven groups": UNEVEN,
}
"""Cases of Megatron alone."""
ALIKE = {
    "adapters-megatron", "experts-megatron", "experts-torchtitan", "fp8-torchtitan", "gpt2-megatron",
    "hsdp-torchtitan", "llama on 16-megatron", "llama-megatron", "pairs", "prudent experts",
}  # fmt: skip
"""Cases whose parts, such as experts under Megatron, are those of faster cases."""
NAMED = {f"{name}-{runtime}": (case, runtime) for name, case in BOTH.items() for runtime in RUNTIMES}
NAMED |= {name: (case, "megatron") for name, case in MEGATRON.items()}
every_case = pytest.mark.parametrize(
    ("case", "runtime"),
    [pytest.param(*NAMED[name], id=name, marks=[if_every] * (name in ALIKE)) for name in NAMED],
)
ROUNDING = 1e-9
ROWS = 5
Priced = dict[tuple[Layout, str], tuple[PricedSplit, ...]]


def the_first_plan_is_the_best_of_all_layouts_and_divisions(
    question: PlanQuestion, found: LayoutPlans, every: Priced
) -> None:
    best_s = min(map(fastest_s, every.values()))
    first, certificate = found.plans[0], found.certificate
    fastest = min(plan.time_s for plan in found.plans)
    assert fastest == pytest.approx(best_s, rel=ROUNDING)
    assert fastest <= first.time_s <= (1 + TIE) * fastest
    assert price(first.staged.plan(first.split), question.machine).time_s == first.time_s
    assert certificate.bound_s == pytest.approx(best_s, rel=ROUNDING)
    assert certificate.gap == pytest.approx(1 - best_s / first.time_s, abs=ROUNDING)
    excluded = sum(certificate.illegal.values()) + certificate.same + certificate.unfit
    others = sum(certificate.bounded.values()) + certificate.simulated
    assert certificate.layouts == excluded + others
    assert len(every) == certificate.same + certificate.unfit + others
    assert any(one.time_s == inf for divisions in every.values() for one in divisions)
    assert certificate.unfit <= sum(fastest_s(divisions) == inf for divisions in every.values())


def the_rows_are_the_best_distinct_layouts(found: LayoutPlans, every: Priced) -> None:
    """Every row is the fastest of its layout, no two are equivalent, and no other layout is faster than the
    last row by more than a tie. Of tied layouts the simpler one has the row.
    """
    best_s: dict[tuple[Layout, str], float] = {}
    for (layout, schedule), priced in every.items():
        key = replace(layout, recompute="none"), schedule
        best_s[key] = min(best_s.get(key, inf), fastest_s(priced))
    rows = found.plans[: found.certificate.rows]
    assert len(rows) == min(ROWS, len(found.plans))  # so small a space is searched in whole
    shown = {(replace(one.layout, recompute="none"), one.schedule): one for one in rows}
    for one in list(shown.values()):
        shown |= {(replace(twin.layout, recompute="none"), twin.schedule): one for twin in one.twins}
        assert all(abs(twin.time_s / one.time_s - 1) <= TIE for twin in one.twins)
    assert not any(are_twins(*pair) for pair in combinations(rows, 2))
    last_s = max(one.time_s for one in rows)
    assert {key for key, time_s in best_s.items() if time_s * (1 + TIE) < last_s} <= shown.keys()
    for one in [*rows, *(twin for row in rows for twin in row.twins)]:
        key = replace(one.layout, recompute="none"), one.schedule
        assert one.time_s == pytest.approx(best_s[key], rel=ROUNDING)


def twins(every: dict[tuple[Layout, str], float]) -> Iterator[tuple[float, float]]:
    """Yield times of layouts with selective recomputation, and of the same ones without."""
    for (layout, schedule), time_s in every.items():
        if layout.recompute == "selective":
            yield time_s, every[replace(layout, recompute="none"), schedule]


def no_layout_is_faster_than_its_bound_nor_fits_where_it_is_said_not_to(
    question: PlanQuestion, fixed: Fixed, every: Priced
) -> None:
    best_s = {key: fastest_s(divisions) for key, divisions in every.items()}
    grid = legal_space(question.runtime, question.task, fixed).grid
    bounds = bound_layouts(question, grid)
    times = np.array([best_s[grid.layout(place), grid.schedule_of(place)] for place in range(len(grid))])
    assert bounds.fits[times < inf].all()
    assert (bounds.time_s <= times * (1 + ROUNDING)).all()
    assert (bounds.time_s[bounds.fits] > 0).all()
    assert all(one == other for one, other in twins(best_s))


@pytest.mark.slow
@every_case
def test_the_search_finds_the_best_of_all_and_its_bounds_are_right(case: SmallCase, runtime: str) -> None:
    """One test, because pricing every pipeline split of every layout takes longer than the search."""
    question, fixed = case.question(runtime), case.fixed
    every = priced_layouts(case.question(runtime), fixed)  # whose costs the search does not know
    search = LayoutPlanner(fixed=fixed, gap=0.0).search(question)
    search.run(ROWS)
    the_first_plan_is_the_best_of_all_layouts_and_divisions(question, search.plans(ROWS), every)
    search.extend(ROWS)
    the_rows_are_the_best_distinct_layouts(search.plans(ROWS, ROWS), every)
    no_layout_is_faster_than_its_bound_nor_fits_where_it_is_said_not_to(question, fixed, every)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", KNOWN)
def test_brute_force_prices_with_known_events_like_without(runtime: str) -> None:
    question = CASES["llama"].question(runtime)
    for layout, schedule in [*legal_layouts(question)][::7]:
        known: Costs = {}
        for blocks, again in divisions(layout, 3, question.runtime.recomputed_counts):
            plan = planned(question, layout, schedule, blocks, again)
            found, quick = price(plan, question.machine), QuickPrice(plan, question.machine, known)
            assert (found.time_s, found.peak_bytes.tolist()) == (quick.time_s, quick.peak_bytes.tolist())


def test_a_better_plan_is_told_as_soon_as_it_is_found() -> None:
    told: list[float] = []
    question = CASES["gpt2"].question("megatron")
    found = LayoutPlanner(number=5, on_better=lambda search: told.append(search.best_s))(question)
    times = [plan.time_s for plan in found.plans]
    assert told == sorted(told, reverse=True)
    assert told[-1] == times[0]
    assert times == sorted(times)
    assert len({(plan.layout, plan.schedule) for plan in found.plans}) == 5


def test_where_nothing_fits_it_is_said_what_is_lacking_at_least() -> None:
    case = replace(CASES["gpt2"], hbm_gib=0.2)
    question = case.question("torchtitan")
    found = LayoutPlanner()(question)
    every = priced_layouts(question, case.fixed)
    assert (found.plans, found.certificate.simulated) == ((), 0)
    assert found.closest is not None
    layout, schedule, lacking_bytes = found.closest
    limit_bytes = question.limit_bytes(layout)
    least = min(one.peak_bytes for divisions in every.values() for one in divisions) - limit_bytes
    assert 0 < lacking_bytes <= least
    assert found.certificate.lacking_gib == lacking_bytes / GIB
    assert lacking_bytes <= min(one.peak_bytes for one in every[layout, schedule]) - limit_bytes


@pytest.mark.slow
def test_a_simpler_plan_leads_only_within_the_promised_gap() -> None:
    """The simplest plan within a thousandth of the fastest comes first if it is within one gap."""
    case = SmallCase("llama-3.1-8b", 8, 512, devices=4, hbm_gib=40.0, global_batch=32)
    question = case.question("torchtitan")
    for gap in (0.001, 0.0004):
        found = LayoutPlanner(gap=gap)(question)
        first, bound_s = found.plans[0], found.certificate.bound_s
        least_s = min(plan.time_s for plan in found.plans)
        assert found.certificate.gap == 1 - bound_s / first.time_s <= gap
        tied = [plan for plan in found.plans if plan.time_s < least_s * (1 + TIE)]
        simplest = min(tied, key=lambda one: one.kinds)
        assert (simplest == first) == (simplest.time_s * (1 - gap) <= max(bound_s, least_s * (1 - gap)))


def test_the_bound_is_the_least_that_layouts_have_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this case the bound of a queued layout is raised by the search for another one."""
    searches: list[SplitSearch] = []

    class Recorded(SplitSearch):
        def guess(self, *, simple: bool = True) -> None:
            searches.append(self)
            super().guess(simple=simple)

    monkeypatch.setattr(contenders, "SplitSearch", Recorded)
    question = SmallCase("gpt2-xl", 4, 1024, devices=4, hbm_gib=40.0, global_batch=64).question("megatron")
    families = LayoutFamilies.of(question, legal_space(question.runtime, question.task))
    own = LayoutSearch(question, families, LayoutPlanner(gap=0.03, most_work=10_000))
    own.run(10)
    grid = own.families.grid
    bounds_s = {
        (grid.layout(place), grid.schedule_of(place)): float(own.families.layout_bounds.time_s[place])
        for place in range(len(grid))
    }
    for one in searches:
        key = one.staged.layout, one.staged.schedule
        bounds_s[key] = max(bounds_s[key], one.bound_s)
    assert own.bound_s == min(own.best_s, families.closed_s, *bounds_s.values()) < own.best_s


def test_first_guesses_are_no_slower_than_layouts_of_one_stage() -> None:
    """Most pipelines with low bounds do not fit: a large model in short pipelines."""
    case = SmallCase("llama-3.1-405b", 32, 8192, devices=512, hbm_gib=24.0, global_batch=256)
    machine = load_machine("h100", stack="torchtitan", devices=case.devices)
    question = replace(case.question("torchtitan"), machine=machine)
    fixed = {"zero": 3, "cp": 1, "microbatch": 1}
    free = LayoutPlanner(fixed=fixed, number=1, most_work=0)(question)
    one_stage = LayoutPlanner(fixed={**fixed, "pp": 1}, number=1)(question)
    assert free.plans[0].time_s <= one_stage.plans[0].time_s


def test_a_plan_is_priced_once_for_its_own_question() -> None:
    question = CASES["gpt2"].question("megatron")
    own = PricedLayout.of(question.ranked("prudent"), LayoutPlanner(number=1)(question).plans[0])
    assert own.priced_for(question.ranked("prudent")) is own
    assert own.priced_for(question.ranked("expected")).question is question


def test_fixed_fields_stay() -> None:
    question = CASES["gpt2"].question("megatron")
    free, held = (LayoutPlanner(fixed=fixed, gap=0.0)(question) for fixed in ({}, {"pp": 4, "zero": 1}))
    assert all((plan.layout.pp, plan.layout.zero) == (4, 1) for plan in held.plans)
    assert held.plans[0].time_s >= free.plans[0].time_s


def test_a_certificate_names_what_it_leaves_undecided() -> None:
    """Layouts with bounds below the best plan, smallest first; each can be fixed by its fields."""
    case = SmallCase("llama-3.1-8b", 8, 2048, devices=8, hbm_gib=12.0, global_batch=16)
    question = case.question("megatron")
    found = LayoutPlanner(gap=0.0, most_work=0)(question)
    certificate, best_s = found.certificate, found.plans[0].time_s
    named = certificate.undecided
    assert 0 < len(named) <= min(5, certificate.undecided_layouts)
    assert named[0].bound_s == certificate.bound_s < best_s
    assert [one.bound_s for one in named] == sorted(one.bound_s for one in named)
    for one in named:
        assert one.gain == pytest.approx(1 - one.bound_s / best_s)
        assert legal_space(question.runtime, question.task, one.fields).layouts == 1
    closed = LayoutPlanner(fixed={"pp": 1}, gap=0.02)(question)
    assert closed.certificate.gap <= 0.02
    assert not closed.certificate.undecided
    assert certificate.stopped == "the limit of 0 linear programs was reached"
    assert closed.certificate.stopped is None


def test_a_search_says_where_it_stands() -> None:
    """From its first plan on; nothing is said once it has ended."""
    question, said = CASES["llama"].question("megatron"), list[str]()
    LayoutPlanner(on_better=lambda _: said.append(doing()))(question)
    standing = r"(bounding layouts|[\d,]+ layouts left)(, gap \d+\.\d %)?, best plan expected .* s a step"
    assert re.fullmatch(rf"no plan yet|{standing}", said[0])
    assert re.fullmatch(standing, said[-1])
    assert not doing()


def test_a_slow_search_names_the_options_that_end_it_sooner() -> None:
    question = CASES["llama"].question("megatron")
    for gap, named in ((0.005, True), (0.05, False)):
        limit = TimeLimit()
        search = LayoutPlanner(gap=gap, number=1, prove=False, limit=limit).search(question)
        search.run(1)
        assert "--gap" not in search.progress()
        limit._begun_s -= 61
        assert search.progress().endswith(" (--gap 0.02 or --seconds ends sooner)") == named


def test_a_reported_gap_is_that_of_all_layouts_whatever_is_left_to_examine() -> None:
    case = SmallCase("llama-3.1-8b", 8, 2048, devices=8, hbm_gib=12.0, global_batch=16)
    search = searched(case.question("megatron"), most_work=0)
    search.run(1)
    bound_s, best_s = search.bound_s, search.best_s
    assert 0 < bound_s < best_s
    places = search.families.layout_bounds.in_order(search.families.layout_bounds.time_s < np.inf)
    for place in places[-3:].tolist():  # a queue without the smallest bounds
        search._queue = [(float(search.families.layout_bounds.time_s[place]), place)]
        message = search.progress()
        assert f"gap {percent(1 - bound_s / best_s)}, " in message


def searched(question: PlanQuestion, most_work: int) -> LayoutSearch:
    """Search over the layouts of a question, not yet run."""
    families = LayoutFamilies.of(question, legal_space(question.runtime, question.task))
    return LayoutSearch(question, families, LayoutPlanner(gap=0.0, most_work=most_work))


@pytest.mark.slow
def test_no_bound_falls_when_a_family_is_expanded() -> None:
    every = product(CASES.values(), RUNTIMES) if DRAWS >= EVERY else zip(CASES.values(), cycle(RUNTIMES))
    for case, runtime in every:
        question = case.question(runtime)
        families = LayoutFamilies.of(question, legal_space(question.runtime, question.task))
        families.bound(inf)
        families.sharpen(np.arange(len(families.every)), "microbatch")
        bounds_s = families.bounds.time_s.copy()
        families.open(np.flatnonzero(families.bounds.fits))
        assert (families.layout_bounds.time_s >= bounds_s[families.family]).all(), (case, runtime)


def test_layers_whose_collectives_fsdp_keeps_from_hiding_are_costed_apart() -> None:
    """Independent of earlier costs: overlap needs one hardware queue, and FSDP needs several."""
    question = CASES["llama"].question("megatron")
    stack = question.machine.stack.model_copy(update={"overlap": ("tp", "dp"), "ordered_queue": True})
    question = replace(question, machine=replace(question.machine, stack=stack))
    layouts = [Layout(tp=2, dp=2, sequence_parallel=True, zero=zero) for zero in (1, 3)]
    hidden, apart = (question.lowering(one).layers(one).costs for one in layouts)
    fresh = replace(question).lowering(layouts[1]).layers(layouts[1]).costs
    costs = [float(each["block"].forward_s.sum()) for each in (hidden, apart, fresh)]
    assert costs[0] < costs[1] == costs[2]
    grid = question.runtime.grid(question.task.model, [(one, "1f1b") for one in layouts])
    slices = ShardCosts.of(question, grid)
    forward_s = slices.layers_of(np.arange(2), grid.recompute).forward_s
    assert forward_s[0].sum() < forward_s[1].sum()
