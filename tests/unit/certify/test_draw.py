"""The drawn excluded points do not depend on which other points are screened."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.certify.draw import COLUMNS, draw_points
from phaze.certify.space import read_shards
from phaze.layout import Layout, layouts_of

KEYS = COLUMNS[:5]
CHIPS = pd.DataFrame({"architecture": [f"a{k}" for k in range(12)], "shard": ["one"] * 7 + ["two"] * 5})
SHARDS = read_shards(CHIPS, pd.Index(CHIPS["architecture"][1:]))
FILES = [(layout.key, shard) for layout in layouts_of((1, 2), (1, 2)) for shard in SHARDS]


def screen(file: tuple[str, str]) -> pd.DataFrame:
    """Return a screen with about half of the points excluded, some of them because nothing fits."""
    key, shard = file
    layout = Layout.of_key(key)
    names = CHIPS.loc[CHIPS["shard"] == shard, "architecture"].repeat(2).to_numpy(str)
    times = np.random.default_rng([layout.tp, layout.microbatch, len(names)]).uniform(0.5, 1.5, len(names))
    lower = np.where(times > 1.4, np.inf, times)
    return pd.DataFrame(
        {"model": "m", "layout": key, "architecture": names}
        | {"hbm_gib": 32.0, "recompute": [False, True] * (len(names) // 2), "lower_s": lower}
        | {"feasible_s": lower, "kept": times < 0.8}
    )


def best_at(time_s: float) -> pd.Series:
    """Return a best placement that is none of the points."""
    return pd.Series(
        dict(zip(KEYS, ("m", "tp4-b1", "a1", 32.0, False), strict=True)) | {"time_per_batch_s": time_s}
    )


def drawn(files: list[tuple[str, str]], points: int, best_s: float, seed: int = 0) -> set[tuple[object, ...]]:
    """Return the randomly drawn points, and the nearest one if it is also drawn."""
    screens = ((file[1], screen(file)) for file in files)
    found = draw_points(screens, SHARDS, best_at(best_s), points, seed)
    return set(found.loc[found["chosen"] == "drawn", KEYS].itertuples(index=False, name=None))


def nearest(files: list[tuple[str, str]], best_s: float) -> set[tuple[object, ...]]:
    found = draw_points(((file[1], screen(file)) for file in files), SHARDS, best_at(best_s), 0, 0)
    return set(found[KEYS].itertuples(index=False, name=None))


SOME = st.lists(st.sampled_from(FILES), min_size=1, unique=True)
TIMES = st.sampled_from([0.6, 0.8, 1.0, 1.2])


@settings(max_examples=8)
@given(files=SOME, more=SOME, points=st.integers(0, 30), best_s=TIMES)
def test_more_files_only_displace_points(
    files: list[tuple[str, str]], more: list[tuple[str, str]], points: int, best_s: float
) -> None:
    """Points drawn from more files were drawn from fewer files as well; the order of files does not
    matter.
    """
    every = list(dict.fromkeys([*more, *files]))
    alone, among = drawn(files, points, best_s), drawn(every, points, best_s)
    mine = {point for point in among if (point[1], _shard(point)) in files}
    assert mine <= alone | nearest(files, best_s)
    assert among == drawn(every[::-1], points, best_s)


@settings(max_examples=8)
@given(files=SOME, points=st.integers(0, 30), slow=TIMES, fast=TIMES)
def test_points_that_stay_excluded_keep_their_lot(
    files: list[tuple[str, str]], points: int, slow: float, fast: float
) -> None:
    """With a better best, more points are excluded, and some of them displace others."""
    fast, slow = sorted((fast, slow))
    fewer, more = drawn(files, points, slow), drawn(files, points, fast)
    excluded = drawn(files, 10_000, slow) | nearest(files, slow)
    assert more & excluded <= fewer | nearest(files, slow)


def test_every_excluded_point_of_the_space_can_be_drawn() -> None:
    """All but points below the best time, kept points that may fit, and points outside the space."""
    everything = pd.concat([screen(file) for file in FILES])
    inside = everything["architecture"] != "a0"
    lower = everything["lower_s"]
    asked = everything[inside & (lower >= 0.7) & (~everything["kept"] | (lower == np.inf))]
    expected = set(asked[KEYS].itertuples(index=False, name=None))
    assert drawn(FILES, 10_000, 0.7) | nearest(FILES, 0.7) == expected
    assert len(expected) > 20


def test_seeds_draw_other_points() -> None:
    """Several seeds, with no point drawn by all."""
    of_seeds = [drawn(FILES, 8, 0.7, seed) for seed in range(6)]
    assert len(frozenset.intersection(*map(frozenset, of_seeds))) == 0
    assert {len(found) for found in of_seeds} <= {7, 8}


def _shard(point: tuple[object, ...]) -> str:
    return str(CHIPS.set_index("architecture").loc[str(point[2]), "shard"])
