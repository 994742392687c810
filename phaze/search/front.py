"""Exact Pareto front of a model over its whole space, in time per batch, area and energy per sample.

A point of the space is an architecture with a TMP width, a microbatch, an HBM size, and with or without
recomputation. Its time and energy are those of its best placement. The screen has a lower bound on both for
every point. Points are evaluated exactly, best bounds first, until no other point could enter:

- A point whose lower bounds are covered by an evaluated point (`search.pareto`) is excluded: the evaluated
  point covers its exact time and energy too.
- Of the others, points that no other point covers, by bounds or exactly, come next. Once all of these are
  evaluated, every point is evaluated or excluded. A point that is neither would be covered only by points
  that are covered themselves, and by transitivity this chain ends at an evaluated point.

Every excluded point is covered by an evaluated one, so the front of the evaluated points is the front of all
points. Values are compared on the grid of `base.ranking`. Of equal points the first by HBM size,
recomputation, TMP width, microbatch and name represents all. Throughput and throughput per area do not fall
when time falls at equal or smaller area, so the front contains the front of throughput, throughput per area
and energy.

Smaller area limits have their own spaces, because the least area of an architecture depends on the limit.
Each space has its own front, and all share the evaluated points.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from phaze import tables
from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError
from phaze.base.ranking import tied
from phaze.base.units import UM2_PER_MM2
from phaze.cost.space import within_limit
from phaze.layout import Layout
from phaze.search.cosearch import Subject, Terms, look_up_point
from phaze.search.pareto import covered_by, uncovered, uncovered_among

NOISE = 1e-12
"""Relative rounding error between sums of the same numbers in different orders."""
AT_ONCE = 128
"""Minimum number of points per round, because every round has a fixed cost."""
KEY = ["hbm_gib", "recompute", "layout", "architecture"]
Spaces = Mapping[float, Bools]
"""Mask (architectures,) of the architectures allowed, by area limit in square micrometres."""
_Slice = tuple[float, bool, str]
"""HBM in GiB, recomputation, and key of a layout."""
_Bounds = tuple[Ints, Floats, Floats]
"""Row indices of architectures with lower bounds on time and energy, arrays (n,)."""
Evaluate = Callable[[pd.DataFrame], pd.DataFrame]
"""Function from rows (layout, architecture) to table `placements` for all their HBM sizes."""


@dataclass(frozen=True)
class Front:
    """Members of the Pareto front for every area limit, and all evaluated placements."""

    fronts: pd.DataFrame
    placements: pd.DataFrame
    """Table `placements` of every evaluated architecture."""
    stages: pd.DataFrame
    """Table `stages` of the members of the fronts."""


def find_front(
    subject: Subject,
    screens: Iterable[pd.DataFrame],
    architectures: pd.DataFrame,
    terms: Terms,
    spaces: Spaces,
) -> Front:
    """Pareto fronts of a model; `spaces` gives the architectures that each area limit allows.

    `screens` are tables of all points and shards of the model, read one at a time. Rows of other
    architectures are ignored.
    """
    chips = architectures.reset_index(drop=True)
    evaluated: list[dict[str, pd.DataFrame]] = []

    def evaluate(promising: pd.DataFrame) -> pd.DataFrame:
        fresh = list(_evaluate(subject, promising, chips, terms))
        evaluated.extend(fresh)
        return pd.concat([point_tables["placements"] for point_tables in fresh], ignore_index=True)

    rows = search_front(read_candidates(screens, chips), spaces, evaluate)
    placements = _joined(evaluated, "placements", tables.Placements)
    fronts = describe_front(rows, spaces, placements)
    members = _joined(evaluated, "stages", tables.Stages).merge(fronts[KEY].drop_duplicates(), on=KEY)
    return Front(fronts, placements, members)


def spaces_of(
    architectures: pd.DataFrame, area_limits_um2: Sequence[float], minimum_area_share: float | None
) -> Spaces:
    """Architectures allowed by every area limit; the first limit is the largest."""
    for limit in area_limits_um2[1:]:
        if limit > area_limits_um2[0]:
            raise PhazeError(
                f"report.area_limits_mm2: must be at most the scenario's area limit of "
                f"{area_limits_um2[0] / UM2_PER_MM2:g} mm2, got {limit / UM2_PER_MM2:g}"
            )
    return {limit: within_limit(architectures, minimum_area_share, limit) for limit in area_limits_um2}


def _evaluate(
    subject: Subject, promising: pd.DataFrame, chips: pd.DataFrame, terms: Terms
) -> Iterable[dict[str, pd.DataFrame]]:
    for point in subject.points:
        rows = promising[promising["layout"] == point.layout.key]
        chosen = chips[chips["architecture"].isin(rows["architecture"])]
        if len(chosen):
            yield look_up_point(subject, point, chosen, terms, ["placements", "stages"])


def _joined(evaluated: list[dict[str, pd.DataFrame]], name: str, table: type[tables.Table]) -> pd.DataFrame:
    frames = [point_tables[name] for point_tables in evaluated]
    return pd.concat(frames, ignore_index=True) if frames else table.empty()


def read_candidates(screens: Iterable[pd.DataFrame], chips: pd.DataFrame) -> pd.DataFrame:
    """Read the feasible points of all screens in order, with bounds as their time and energy."""
    names = pd.Index(chips["architecture"])
    by_name, area = names.argsort().argsort(), chips["area_um2"].to_numpy(np.float64)
    pieces: dict[_Slice, list[_Bounds]] = {}
    for screen in screens:
        for key, piece in _pieces_of(screen, tables.places_among(screen["architecture"], names)):
            pieces.setdefault(key, []).append(piece)
    if not pieces:
        pieces[0.0, False, Layout().key] = [(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))]
    keys = sorted(pieces, key=lambda key: (*key[:2], Layout.of_key(key[2])))
    joined = [_in_order(pieces[key], by_name) for key in keys]
    chip, time, joules = (np.concatenate(values) for values in zip(*joined, strict=True))
    sizes = [len(chip) for chip, _, _ in joined]
    columns = zip(KEY[:-1], zip(*keys, strict=True), strict=True)
    point = {name: np.repeat(values, sizes) for name, values in columns}
    bounds = {"chip": chip, "time": time, "joules": joules, "area": area[chip], "known": False}
    return pd.DataFrame(point | bounds | {"architecture": pd.Categorical.from_codes(chip, names)})


def _pieces_of(screen: pd.DataFrame, chip: Ints) -> Iterator[tuple[_Slice, _Bounds]]:
    """Yield the feasible points of a screen by HBM size, recomputation and layout."""
    time, joules = (screen[name].to_numpy() * (1.0 - NOISE) for name in ("lower_s", "lower_j"))
    inside, columns = (chip >= 0) & np.isfinite(time), [screen[name].to_numpy() for name in KEY[:-1]]
    for key in product(*(pd.unique(values) for values in columns)):
        equal = (values == value for values, value in zip(columns, key, strict=True))
        at = np.flatnonzero(np.logical_and.reduce([inside, *equal]))
        yield key, (chip[at], tied(time[at]), tied(joules[at]))


def _in_order(pieces: list[_Bounds], by_name: Ints) -> _Bounds:
    """Candidates of several shards, sorted by name."""
    chip, time, joules = (np.concatenate(values) for values in zip(*pieces, strict=True))
    order = np.argsort(by_name[chip], kind="stable")
    return chip[order], time[order], joules[order]


def search_front(rows: pd.DataFrame, spaces: Spaces, evaluate: Evaluate) -> pd.DataFrame:
    """Exact points of all fronts: candidates are evaluated, best bounds first, until no other can enter."""
    while True:
        promising = _most_promising(rows, spaces)
        if not promising.any():
            return rows
        fresh = rows.loc[promising, ["layout", "chip", "architecture"]].drop_duplicates()
        rows = _with_exact(rows, fresh, evaluate(fresh))
        rows = rows[_left(rows, spaces)]


def _left(rows: pd.DataFrame, spaces: Spaces) -> Bools:
    """Mask of feasible rows that no evaluated row dominates in at least one of their spaces."""
    values, result = _values(rows), np.zeros(len(rows), dtype=np.bool_)
    placed = np.isfinite(values[0])
    evaluated = np.flatnonzero(rows["known"] & placed)
    for members in _inside(rows, spaces):
        front_rows = evaluated[members[evaluated]]
        time, area, joules = (value[front_rows] for value in values)
        front = front_rows[uncovered(time, area, joules)]
        result |= members & ~covered_by(front, *values)
    return result & placed


def _most_promising(rows: pd.DataFrame, spaces: Spaces) -> Bools:
    """Mask of the rows to evaluate next: successive fronts of the bounds, until there are enough."""
    values, inside = _values(rows), _inside(rows, spaces)
    evaluated, chosen = rows["known"].to_numpy(), np.zeros(len(rows), dtype=np.bool_)
    while chosen.sum() < AT_ONCE:
        fronts = [uncovered_among(members & ~chosen, *values) for members in inside]
        fresh = np.logical_or.reduce(fronts) & ~evaluated
        if not fresh.any():
            break
        chosen |= fresh
    return chosen


def _values(rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    time, area, joules = (rows[name].to_numpy(np.float64) for name in ("time", "area", "joules"))
    return time, area, joules


def _inside(rows: pd.DataFrame, spaces: Spaces) -> list[Bools]:
    """Masks of the rows that belong to each space."""
    return [members[rows["chip"].to_numpy()] for members in spaces.values()]


def _with_exact(rows: pd.DataFrame, fresh: pd.DataFrame, placements: pd.DataFrame) -> pd.DataFrame:
    """Replace the bounds of evaluated rows by exact time and energy, NaN where no placement exists."""
    exact = placements.loc[placements["planner"] == "phaze", [*KEY, "time_per_batch_s", "joules_per_sample"]]
    near = np.flatnonzero(rows["chip"].isin(fresh["chip"]))
    evaluated = near[
        pd.MultiIndex.from_frame(rows[list(fresh)].iloc[near]).isin(pd.MultiIndex.from_frame(fresh))
    ]
    values = exact.set_index(KEY).reindex(pd.MultiIndex.from_frame(rows[KEY].iloc[evaluated]))
    time, joules, is_known = (rows[name].to_numpy(copy=True) for name in ("time", "joules", "known"))
    time[evaluated] = tied(values["time_per_batch_s"].to_numpy())
    joules[evaluated] = tied(values["joules_per_sample"].to_numpy())
    is_known[evaluated] = True
    return rows.assign(time=time, joules=joules, known=is_known)


def describe_front(rows: pd.DataFrame, spaces: Spaces, placements: pd.DataFrame) -> pd.DataFrame:
    """Table `fronts` from the exact points of all fronts."""
    frames = []
    for limit, members in spaces.items():
        inside = rows[members[rows["chip"].to_numpy()]]
        values = (inside[name].to_numpy() for name in ("time", "area", "joules"))
        frames.append(_described(inside[uncovered(*values)], placements).assign(area_limit_um2=limit))
    return tables.Fronts.check(pd.concat(frames, ignore_index=True)[list(tables.Fronts.fields())])


def _described(front: pd.DataFrame, placements: pd.DataFrame) -> pd.DataFrame:
    """Members of one front with their objectives, and marks where they are best in an objective."""
    columns = ["model", "time_per_batch_s", "samples_per_s", "joules_per_sample"]
    exact = placements.loc[placements["planner"] == "phaze", [*KEY, *columns]]
    described = front[[*KEY, "area", "time", "joules"]].astype({"architecture": str}).merge(exact, on=KEY)
    per_area = described["samples_per_s"] / (described["area"] / UM2_PER_MM2)
    time, joules = described["time"].to_numpy(), described["joules"].to_numpy()
    cost = tied(1.0 / per_area.to_numpy())
    return described.assign(
        area_um2=described["area"],
        samples_per_s_per_mm2=per_area,
        objectives=uncovered(time, cost, joules),
        throughput=_first(time, described["area"], joules),
        throughput_per_area=_first(cost, time, joules),
        energy=_first(joules, time, described["area"]),
    ).drop(columns=["area", "time", "joules"])


def _first(*values: pd.Series | np.ndarray) -> Bools:
    """Mask of the row with the smallest value in the first column; later columns break ties."""
    result = np.zeros(len(values[0]), dtype=np.bool_)
    if len(result):
        result[np.lexsort(tuple(reversed(values)))[0]] = True
    return result
