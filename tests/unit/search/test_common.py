"""The common architecture: dropped ones cannot be it, and the choice among exact placements is right."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from phaze.base.ranking import order, smallest
from phaze.search.common import Mean, choose_common, common_candidates, mean_of

BATCH = 64
HBM = (32.0, 80.0)
MODES: tuple[Mean, ...] = ("mean", "normalised", "geometric")
Times = NDArray[np.float64]


def names(n: int) -> list[str]:
    """Return names in alphabetical order of their numbers."""
    return [f"a{i:02}" for i in range(n)]


def shard(area: NDArray[np.float64]) -> pd.DataFrame:
    """Return the columns of an architectures table that the choice needs."""
    return pd.DataFrame({"architecture": names(len(area)), "area_um2": area, "named": False})


def table(model: str, columns: dict[str, Times]) -> pd.DataFrame:
    """Return a table of (points, architectures, HBM sizes, recompute) arrays in rows, with shuffled order."""
    shape = next(iter(columns.values())).shape
    at = np.indices(shape).reshape(4, -1)
    frame = pd.DataFrame(
        {
            "model": model,
            "layout": [f"tp1-b{point + 1}" for point in at[0]],
            "architecture": np.array(names(shape[1]))[at[1]],
            "hbm_gib": np.array(HBM)[at[2]],
            "recompute": at[3].astype(bool),
            **{name: values.ravel() for name, values in columns.items()},
        }
    )
    return frame.sample(frac=1.0, random_state=0)


Case = tuple[dict[str, Times], list[pd.DataFrame]]


def random_case(rng: np.random.Generator, models: list[str], n: int) -> Case:
    """Return exact times and screens around them; the second model does not fit the smaller HBM."""
    exact, screens = {}, []
    for m, model in enumerate(models):
        time = (1.0 + m) * (1.0 + 0.05 * rng.random((2, n, 2, 2)))
        lower = time * (1 - 0.01 * rng.random(time.shape))
        feasible = time * (1 + 0.01 * rng.random(time.shape))
        if m == 1:
            time[:, :, 0], lower[:, :, 0], feasible[:, :, 0] = np.inf, np.inf, np.inf
        exact[model] = time
        whole = table(model, {"lower_s": lower, "feasible_s": feasible})
        screens += [whole[whole["architecture"] < "a05"], whole[whole["architecture"] >= "a05"]]
    return exact, screens


def candidates(
    screens: Iterable[pd.DataFrame],
    chips: pd.DataFrame,
    weights: dict[str, float],
    best: int,
    **given: object,
) -> pd.DataFrame:
    """Return the candidates within one percent, by the mean of throughputs unless given."""
    fields = {"mode": "mean", "global_batch": BATCH, "best": best, "tolerance": 0.01} | given
    return common_candidates(iter(screens), chips, weights, **fields)  # type: ignore[arg-type]


def exact_mean(exact: dict[str, Times], weights: dict[str, float], mode: Mean) -> NDArray[np.float64]:
    """Return the mean (architectures, HBM sizes) by the definition, written out."""
    throughput = {model: BATCH / time.min(axis=(0, 3)) for model, time in exact.items()}
    total = sum(weights.values())
    if mode == "geometric":
        product = np.prod([throughput[m] ** (w / total) for m, w in weights.items()], axis=0)
        return np.asarray(product)
    best = {m: throughput[m].max() if mode == "normalised" else 1.0 for m in weights}
    mean = sum(w * throughput[m] / best[m] for m, w in weights.items()) / total
    return np.where(np.min(list(throughput.values()), axis=0) > 0, mean, 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_no_common_answer_is_dropped(mode: Mean) -> None:
    """For exact times between the bounds, the best few and the smallest of every HBM size are candidates."""
    rng = np.random.default_rng(3)
    weights = {"p": 1.0, "q": 2.5, "r": 0.5}
    for _ in range(20):
        n, best, tolerance = 12, 2, 0.01
        exact, screens = random_case(rng, list(weights), n)
        area = rng.integers(1, 9, n).astype(float)
        found = candidates(screens, shard(area), weights, best, mode=mode)
        kept = set(zip(found["architecture"], found["hbm_gib"], strict=True))
        mean = exact_mean(exact, weights, mode)
        assert (mean[:, 0] == 0).all()
        assert not any(hbm == HBM[0] for _, hbm in kept)
        cost = 1.0 / mean[:, 1]
        answers = [*order(cost, area, np.arange(n))[:best], smallest(cost, area, np.arange(n), tolerance)]
        assert {(names(n)[a], HBM[1]) for a in answers if a is not None} <= kept
        indexed = found.set_index(["architecture", "hbm_gib"])
        for (name, _), row in indexed.iterrows():
            value = mean[names(n).index(name), 1]
            assert row["lower"] * (1 - 1e-12) <= value <= row["upper"] * (1 + 1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_something_is_dropped(mode: Mean) -> None:
    """With meeting bounds little more than the best few is left."""
    rng = np.random.default_rng(4)
    weights = {"p": 1.0, "q": 1.0}
    exact, _ = random_case(rng, list(weights), 80)
    screens = [table(m, {"lower_s": t, "feasible_s": t}) for m, t in exact.items()]
    found = candidates(screens, shard(np.arange(80.0)), weights, 1, mode=mode)
    assert 1 <= len(found) < 20


@pytest.mark.parametrize("mode", MODES)
def test_the_choice_among_exact_placements_is_the_definition(mode: Mean) -> None:
    """Best of the smallest HBM size within the tolerance, best and smallest of every size."""
    rng = np.random.default_rng(6)
    weights = {"p": 1.0, "q": 2.0}
    n, tolerance = 10, 0.01
    exact, _ = random_case(rng, list(weights), n)
    area = rng.integers(1, 5, n).astype(float)
    placements = pd.concat(
        table(m, {"samples_per_s": np.where(np.isinf(t), 0.0, BATCH / t)}).assign(planner="phaze")
        for m, t in exact.items()
    )
    ranked = choose_common(placements, shard(area), weights, mode=mode, tolerance=tolerance)
    mean = exact_mean(exact, weights, mode)[:, 1]
    cost = 1.0 / mean
    first = order(cost, area, np.arange(n))
    at_80 = ranked[ranked["hbm_gib"] == HBM[1]]
    assert list(at_80["architecture"]) == [names(n)[a] for a in first]
    assert np.allclose(at_80["mean"], mean[first], rtol=1e-12)
    assert list(ranked.loc[ranked["best_of_hbm"], "architecture"]) == [names(n)[first[0]]]
    assert list(ranked.loc[ranked["chosen"], "architecture"]) == [names(n)[first[0]]]
    small = smallest(cost, area, np.arange(n), tolerance)
    assert small is not None
    assert list(ranked.loc[ranked["smallest_of_hbm"], "architecture"]) == [names(n)[small]]


def test_the_smaller_hbm_is_chosen_when_it_costs_less_than_the_tolerance() -> None:
    """Within 1 % of the best throughput the smaller HBM wins; beyond it does not."""
    for factor, expected in ((1.005, HBM[0]), (1.02, HBM[1])):
        time = np.ones((1, 2, 2, 2))
        time[:, :, 0] *= factor
        placements = table("p", {"samples_per_s": BATCH / time}).assign(planner="phaze")
        ranked = choose_common(placements, shard(np.ones(2)), {"p": 1.0}, mode="mean", tolerance=0.01)
        assert list(ranked.loc[ranked["chosen"], "hbm_gib"]) == [expected]


def test_a_model_that_nothing_trains_takes_no_part() -> None:
    """Such a model neither excludes every architecture nor counts in the mean."""
    throughput = pd.DataFrame({"p": [4.0, 2.0], "never": [0.0, 0.0]})
    for mode in MODES:
        mean = mean_of(throughput, {"p": 1.0, "never": 9.0}, mode)
        assert mean.iloc[0] == pytest.approx(2 * mean.iloc[1], rel=1e-12)
        assert mean.iloc[1] > 0


def test_named_architectures_exclude_no_one_and_respect_the_area_limit() -> None:
    """A named twin of the best replaces no architecture, and a named one that is too large is no
    candidate.
    """
    time = np.ones((1, 4, 1, 2)) * np.array([1.0, 1.0, 1.1, 0.5])[None, :, None, None]
    screens = [table("p", {"lower_s": time, "feasible_s": time})]
    chips = shard(np.array([5.0, 5.0, 5.0, 9.0])).assign(named=[True, False, False, True])
    for limit, expected in ((np.inf, {"a00", "a01", "a02", "a03"}), (8.0, {"a00", "a01", "a02"})):
        found = candidates(screens, chips, {"p": 1.0}, 2, tolerance=0.0, area_limit_um2=limit)
        assert set(found["architecture"]) == expected


def test_a_missing_model_is_an_error() -> None:
    """Every model with a weight needs screens."""
    with pytest.raises(ValueError, match="no screens of the models"):
        candidates([], shard(np.ones(1)), {"p": 1.0}, 1)
