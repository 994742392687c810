"""Search strategies on invented throughputs: all of them find the best of a small space."""

from itertools import pairwise, product
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.search.hysteresis import Evaluate
from phaze.search.strategies import certified, compare_strategies
from phaze.search.suggestions import suggested
from phaze.spec.settings import StrategySettings
from phaze.tables import Trials

BATCH = 4096.0
HYSTERESIS = [f"hysteresis-{level}" for level in range(1, 9)]


def grid(seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Return the larger half of a small grid by area, and times per batch that fall with the cores' work."""
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(
        product((1, 2, 4), (1, 2, 4), (8, 16), (8, 16), (2, 4)),
        columns=["num_tc", "num_vc", "pe_x", "pe_y", "glb_bytes"],
    )
    area = rows["num_tc"] * rows["pe_x"] * rows["pe_y"] + 8.0 * rows["num_vc"] + 5.0 * rows["glb_bytes"]
    chips = rows.assign(
        architecture=[f"a{i:03}" for i in range(len(rows))],
        area_um2=area + rng.uniform(0, 1, len(rows)),
        hbm_gib=0.0,
    )
    chips = chips[chips["area_um2"] >= chips["area_um2"].median()].reset_index(drop=True)
    times = 1.0 + rng.uniform(0, 1, len(chips)) + 100.0 / chips["area_um2"].to_numpy()
    return chips, pd.Series(times, index=chips["architecture"])


def exactly(times: pd.Series, asked: list[str] | None = None) -> Evaluate:
    """Return an evaluation by look-up that records its calls."""

    def evaluate(rows: pd.DataFrame) -> pd.DataFrame:
        if asked is not None:
            asked.extend(rows["architecture"])
        found = BATCH / times[rows["architecture"]]
        return pd.DataFrame({"samples_per_s": found, "hbm_gib": 32.0})

    return evaluate


def bounds(times: pd.Series, lower: float = 1.0, feasible: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame({"lower_s": times * lower, "feasible_s": times * feasible})


def compared(
    chips: pd.DataFrame, times: pd.Series, chance: StrategySettings | None, **factors: float
) -> pd.DataFrame:
    return compare_strategies(
        chips, bounds(times, **factors), exactly(times), model="m", scope="whole", area_band_um2=10.0,
        chance=chance,
    )  # fmt: skip


def final(trials: pd.DataFrame) -> pd.Series:
    return trials.groupby(["strategy", "seed"])["best_samples_per_s"].max()


@pytest.mark.parametrize("seed", range(5))
def test_every_strategy_finds_the_best_if_it_may_evaluate_the_whole_space(seed: int) -> None:
    """All but the walks, which end by their own rule and never exceed the optimum."""
    chips, times = grid(seed)
    chance = StrategySettings(seeds=1, evaluations=len(chips), suggestions=250)
    best = final(compared(chips, times, chance, lower=0.95, feasible=1.05))
    optimum = BATCH / times.min()
    for strategy in ("certified", "random", "bayesian"):
        assert (best[strategy] == optimum).all()
    assert (best[HYSTERESIS] <= optimum).all()


@pytest.mark.parametrize("seed", range(5))
def test_walks_are_nested_and_longer_ones_find_no_less(seed: int) -> None:
    trials = compared(*grid(seed), None)
    walks = {name: list(rows["architecture"]) for name, rows in trials.groupby("strategy")}
    for one, other in pairwise(HYSTERESIS):
        assert walks[other][: len(walks[one])] == walks[one]
    assert final(trials)[HYSTERESIS].is_monotonic_increasing
    areas = trials[trials["strategy"] == "hysteresis-8"]["area_um2"]
    assert areas.is_monotonic_decreasing
    assert len(set(map(len, walks.values()))) > 3, "levels differ in this space"


def test_certified_evaluates_what_the_bounds_cannot_exclude_best_first() -> None:
    """By hand: c's bound is above a's feasible value; d ties with it and stays."""
    chips = pd.DataFrame({"architecture": list("abcde"), "area_um2": [5.0, 4.0, 3.0, 2.0, 1.0]})
    found = pd.DataFrame(
        {"lower_s": [2.0, 1.0, 2.6, 2.5, np.inf], "feasible_s": [2.5, 3.0, 4.0, 2.7, np.inf]},
        index=list("abcde"),
    )
    assert [chips["architecture"][row] for row in certified(chips, found)] == ["b", "a", "d"]


@pytest.mark.parametrize("factor", [1.0, 0.9, 0.5])
def test_tighter_bounds_leave_less_to_evaluate_and_always_the_best(factor: float) -> None:
    chips, times = grid(3)
    rows = certified(chips, bounds(times, lower=factor, feasible=1 / factor))
    excluded = times.to_numpy() * factor > times.min() / factor
    assert len(rows) == (~excluded).sum()
    assert times.argmin() in rows


def test_a_model_that_fits_nowhere_leaves_certified_nothing_to_evaluate() -> None:
    chips, times = grid()
    nowhere = times * np.inf
    trials = compared(chips, nowhere, StrategySettings(seeds=1, evaluations=5, suggestions=10))
    assert "certified" not in set(trials["strategy"])
    assert (trials["best_samples_per_s"] == 0.0).all()


def test_random_search_finds_on_average_what_draws_without_replacement_find() -> None:
    """The mean over seeds agrees with the closed form within four standard errors after any number of draws.

    With throughputs x_1 <= ... <= x_n, the best of k is x_i with probability C(i - 1, k - 1) / C(n, k).
    """
    chips, times = grid(1)
    seeds, n = 150, len(chips)
    settings = StrategySettings(seeds=seeds, evaluations=n, suggestions=1)
    trials = compared(chips, times, settings)
    runs = trials[trials["strategy"] == "random"].pivot_table(
        index="evaluation", columns="seed", values="best_samples_per_s"
    )
    assert runs.shape == (n, seeds)
    ordered = np.sort(BATCH / times.to_numpy())
    for k in range(1, n + 1):
        chances = np.array([comb(i, k - 1) / comb(n, k) for i in range(n)])
        mean = ordered @ chances
        deviation = np.sqrt(max(0.0, (ordered**2) @ chances - mean**2))
        assert abs(runs.loc[k].mean() - mean) <= 4 * deviation / np.sqrt(seeds) + 1e-9 * mean


def test_no_run_evaluates_an_architecture_twice_or_more_than_it_may() -> None:
    chips, times = grid(2)
    trials = compared(chips, times, StrategySettings(seeds=3, evaluations=12, suggestions=60))
    assert not trials.duplicated(["strategy", "seed", "architecture"]).any()
    sizes = trials.groupby(["strategy", "seed"])["evaluation"].agg(["max", "size"])
    assert (sizes["max"] == sizes["size"]).all()
    assert (sizes.loc["random", "max"] == 12).all()
    assert (sizes.loc["bayesian", "max"] <= 12).all()
    assert (trials["samples_per_s"] == BATCH / times[trials["architecture"]].to_numpy()).all()


def test_suggestions_outside_the_area_rules_and_repeated_ones_cost_no_evaluation() -> None:
    chips, times = grid(4)
    asked: list[str] = []
    rows = suggested(chips, exactly(times, asked), seed=0, evaluations=1000, suggestions=120)
    assert asked == [chips["architecture"][row] for row in rows]
    assert len(set(rows)) == len(rows) < 120


def test_bayesian_search_learns_from_what_it_has_seen() -> None:
    """Over ten seeds its best after 30 evaluations is better than random draws, on a smooth space."""
    sizes = [2**i for i in range(8)]
    rows = pd.DataFrame(
        product((1,), (1,), sizes, sizes, sizes), columns=["num_tc", "num_vc", "pe_x", "pe_y", "glb_bytes"]
    )
    chips = rows.assign(
        architecture=[f"a{i:04}" for i in range(len(rows))], area_um2=1.0 + np.arange(len(rows))
    )
    off = np.log2(rows[["pe_x", "pe_y", "glb_bytes"]].to_numpy()) - np.array([6, 2, 5])
    times = pd.Series(1.0 + (off**2).sum(axis=1), index=chips["architecture"])
    trials = compared(chips, times, StrategySettings(seeds=10, evaluations=30, suggestions=60))
    best = final(trials)
    assert best["bayesian"].mean() > best["random"].mean()


def test_equal_seeds_give_equal_files(tmp_path: Path) -> None:
    chips, times = grid()
    settings = StrategySettings(seeds=2, evaluations=20, suggestions=40)
    files = [tmp_path / f"{i}.parquet" for i in range(2)]
    for file, frame in zip(files, (chips, chips.sample(frac=1, random_state=1)), strict=True):
        Trials.save(compared(frame, times, settings), file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_seeds_draw_and_suggest_apart() -> None:
    trials = compared(*grid(), StrategySettings(seeds=3, evaluations=20, suggestions=40))
    for strategy in ("random", "bayesian"):
        runs = trials[trials["strategy"] == strategy].groupby("seed")["architecture"].agg(tuple)
        assert runs.nunique() == 3
