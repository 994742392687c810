"""The walk down the areas, by hand and compared with a plain implementation of Algorithm 1."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from phaze.search.hysteresis import Evaluate, levels_of, walk_areas

BAND = 10.0


def plain_algorithm(throughputs: Sequence[float], hysteresis: int) -> int:
    """Return how many bands Algorithm 1 explores, as printed: `check_converge` after every band."""
    explored = []
    for throughput in throughputs:
        explored.append(throughput)
        if len(explored) > hysteresis:
            window = explored[-hysteresis:]
            if all(a > b for a, b in pairwise(window)):
                break
    return len(explored)


def architectures(areas: Sequence[float]) -> pd.DataFrame:
    """Return architectures of the given areas, named by their order."""
    return pd.DataFrame(
        {
            "architecture": [f"a{i:03}" for i in range(len(areas))],
            "area_um2": np.array(areas, dtype=float),
            "pe_x": 4,
            "pe_y": 8,
        }
    )


def looked_up(throughput: dict[str, float], calls: list[str] | None = None) -> Evaluate:
    """Return an evaluation that looks throughputs up by name."""

    def evaluate(frame: pd.DataFrame) -> pd.DataFrame:
        if calls is not None:
            calls.extend(frame["architecture"])
        found = [throughput[name] for name in frame["architecture"]]
        return pd.DataFrame({"samples_per_s": found, "hbm_gib": 32.0}, index=frame["architecture"].to_numpy())

    return evaluate


def walk(
    frame: pd.DataFrame,
    throughput: dict[str, float],
    hysteresis: int,
    chunk: int = 1,
    calls: list[str] | None = None,
) -> pd.DataFrame:
    """Return the visits of a walk over looked-up throughputs."""
    return walk_areas(
        frame, looked_up(throughput, calls), model="m", hysteresis=hysteresis, area_band_um2=BAND, chunk=chunk
    )


def test_a_hand_made_sequence_ends_where_algorithm_1_ends_it() -> None:
    """Bands of throughput 5, 4, 6, 5, 4, 3: hysteresis 1 visits two bands, 2 visits four, 3 five and 4
    all.
    """
    frame = architectures([95, 85, 75, 65, 55, 45])
    throughput = dict(zip(frame["architecture"], [5.0, 4.0, 6.0, 5.0, 4.0, 3.0], strict=True))
    visits = walk(frame, throughput, 4)
    assert list(visits["level"]) == [1, 1, 2, 2, 3, 4]
    seen = [visits[visits["level"] <= h] for h in range(1, 5)]
    assert [len(rows) for rows in seen] == [plain_algorithm([5, 4, 6, 5, 4, 3], h) for h in range(1, 5)]
    assert [rows["best_so_far"].iloc[-1] for rows in seen] == [5.0, 6.0, 6.0, 6.0]
    assert list(visits["best_so_far"]) == [5, 5, 6, 6, 6, 6]
    assert (visits["pes"] == 32).all()


@pytest.mark.parametrize("seed", range(40))
def test_one_walk_holds_what_every_hysteresis_visits(seed: int) -> None:
    """For random throughputs with ties and zeros, levels equal the number of bands explored by Algorithm
    1.
    """
    rng = np.random.default_rng(seed)
    band_throughput = rng.integers(0, 6, 40).astype(float)
    levels = levels_of(band_throughput)
    for hysteresis in range(1, 9):
        assert (levels <= hysteresis).sum() == plain_algorithm(band_throughput, hysteresis)


@pytest.mark.parametrize("seed", range(10))
def test_the_walk_visits_by_decreasing_area_and_the_chunk_does_not_matter(seed: int) -> None:
    """Several architectures share a band, and the walk does not depend on the chunk size."""
    rng = np.random.default_rng(seed)
    frame = architectures(rng.uniform(10, 300, 60))
    throughput = dict(zip(frame["architecture"], rng.integers(1, 9, 60).astype(float), strict=True))
    visits = [walk(frame, throughput, 3, chunk) for chunk in (1, 7, 1000)]
    pd.testing.assert_frame_equal(visits[0], visits[1])
    pd.testing.assert_frame_equal(visits[0], visits[2])
    assert (np.diff(visits[0]["area_um2"]) <= 0).all()
    band_best = visits[0].groupby("band", sort=False)["samples_per_s"].max().tolist()
    every = frame.assign(band=frame["area_um2"] // BAND, t=frame["architecture"].map(throughput))
    in_order = every.sort_values("band", ascending=False).groupby("band", sort=False)["t"].max().tolist()
    assert len(band_best) == plain_algorithm(in_order, 3)
    assert band_best == in_order[: len(band_best)]


def test_architectures_beyond_the_end_are_not_evaluated_chunk_by_chunk() -> None:
    """With small chunks the walk stops soon after it has converged."""
    frame = architectures(np.arange(1000.0, 0.0, -10.0))
    throughput = {name: 100.0 - i for i, name in enumerate(frame["architecture"])}
    calls: list[str] = []
    visits = walk(frame, throughput, 2, chunk=4, calls=calls)
    assert len(visits) == 3
    assert len(calls) <= 8


def test_equal_throughputs_are_no_reduction() -> None:
    """A plateau never converges beyond hysteresis 1, and neither does a model that fits nowhere."""
    for value in (3.0, 0.0):
        assert list(levels_of(np.full(6, value))) == [1, 1, 2, 2, 2, 2]
