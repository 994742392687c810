"""Search strategies on invented throughputs: all of them find the best of a small space."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.search.hysteresis import Evaluate
from phaze.search.strategies import certified, compare_strategies
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


def compared(chips: pd.DataFrame, times: pd.Series, **factors: float) -> pd.DataFrame:
    return compare_strategies(
        chips, bounds(times, **factors), exactly(times), model="m", scope="whole", area_band_um2=10.0
    )


def final(trials: pd.DataFrame) -> pd.Series:
    return trials.groupby("strategy")["best_samples_per_s"].max()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_certified_search_finds_the_best_and_no_walk_more(seed: int) -> None:
    chips, times = grid(seed)
    best = final(compared(chips, times, lower=0.95, feasible=1.05))
    optimum = BATCH / times.min()
    assert best["certified"] == optimum
    assert (best[HYSTERESIS] <= optimum).all()


@pytest.mark.parametrize("seed", range(5))
def test_walks_are_nested_and_longer_ones_find_no_less(seed: int) -> None:
    trials = compared(*grid(seed))
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
    trials = compared(chips, nowhere)
    assert "certified" not in set(trials["strategy"])
    assert (trials["best_samples_per_s"] == 0.0).all()


def test_no_strategy_evaluates_an_architecture_twice() -> None:
    chips, times = grid(2)
    trials = compared(chips, times)
    assert not trials.duplicated(["strategy", "architecture"]).any()
    sizes = trials.groupby("strategy")["evaluation"].agg(["max", "size"])
    assert (sizes["max"] == sizes["size"]).all()
    assert (trials["samples_per_s"] == BATCH / times[trials["architecture"]].to_numpy()).all()


def test_the_order_of_architectures_changes_no_file(tmp_path: Path) -> None:
    chips, times = grid()
    files = [tmp_path / f"{i}.parquet" for i in range(2)]
    for file, frame in zip(files, (chips, chips.sample(frac=1, random_state=1)), strict=True):
        Trials.save(compared(frame, times), file)
    assert files[0].read_bytes() == files[1].read_bytes()
