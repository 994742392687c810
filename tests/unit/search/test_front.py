"""The front from bounds and few evaluations equals that of exhaustive evaluation."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.base.ranking import tied
from phaze.cost.operators import estimate_operators
from phaze.cost.space import enumerate_grid, enumerate_smaller
from phaze.search import front as fronts
from phaze.search.cosearch import evaluate_architectures
from phaze.search.front import KEY, Front, find_front, spaces_of
from phaze.search.stage import screen_architectures
from phaze.spec.architecture import Grid
from phaze.spec.settings import ScreenSettings
from phaze.tables import Fronts, Placements, Stages
from tests.unit.search.test_cosearch import MODELS, subject, terms

SHARE, LIMIT, SMALLER = 0.5, 30e6, (20e6, 8e6)
GRID = Grid(
    num_tc=(1, 2, 8), num_vc=(1, 2, 4), pe_x=(16, 64), pe_y=(16, 64), glb_mib=(2.0, 4.0),
    minimum_area_share=SHARE,
)  # fmt: skip


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate in small chunks, so that bounds exclude points even in a small space."""
    monkeypatch.setattr(fronts, "AT_ONCE", 4)


@cache
def architectures() -> pd.DataFrame:
    """Return the grid within the limit, and architectures that only smaller limits allow."""
    figures = terms().technology.area_um2
    grid = enumerate_grid(GRID, figures, LIMIT, "small-buffer")
    extra = enumerate_smaller(GRID, figures, LIMIT, SMALLER, "smaller")
    assert len(grid) > len(extra) > 0
    return pd.concat([grid, extra], ignore_index=True)


@cache
def placed(name: str) -> pd.DataFrame:
    """Return all placements of a model on all architectures."""
    return evaluate_architectures(subject(name), architectures(), terms()).placements


@cache
def found(name: str) -> Front:
    """Return the result of the search."""
    return find_front(subject(name), screens(name), architectures(), terms(), spaces())


def spaces() -> fronts.Spaces:
    return spaces_of(architectures(), [LIMIT, *SMALLER], SHARE)


def screens(name: str) -> list[pd.DataFrame]:
    """Return the screens of all points and shards."""
    model, given, tables = subject(name), terms(), []
    for point in model.points:
        for _, chips in architectures().groupby("shard"):
            estimates = estimate_operators(
                point.tables["parts"], chips, given.hardware, given.technology, given.estimate
            )
            tables.append(
                screen_architectures(
                    point.tables["operators"], point.tables["edges"],
                    point.tables["layers"], model.graph, estimates, chips,
                    given.scenario, given.training, ScreenSettings(), given.technology.energy,
                )
            )  # fmt: skip
    return tables


def space_of(name: str, limit: float) -> pd.DataFrame:
    """Return all placements in the space that a study of that limit alone has, with areas, in order."""
    chips = enumerate_grid(GRID, terms().technology.area_um2, limit, "s").set_index("architecture")
    rows = placed(name)
    rows = rows[rows["architecture"].isin(chips.index) & (rows["status"] == "placed")]
    return rows.assign(area_um2=rows["architecture"].map(chips["area_um2"])).sort_values(KEY)


def exhaustive_front(rows: pd.DataFrame) -> set[tuple[object, ...]]:
    """Return the keys of all points that no other is better than, comparing all pairs."""
    values = np.column_stack(
        [
            tied(rows["time_per_batch_s"].to_numpy()),
            rows["area_um2"],
            tied(rows["joules_per_sample"].to_numpy()),
        ]
    )
    members = set()
    for a, key in enumerate(rows[KEY].itertuples(index=False, name=None)):
        nowhere_worse = (values <= values[a]).all(axis=1)
        better = nowhere_worse & (values < values[a]).any(axis=1)
        if not better.any() and not nowhere_worse[:a].any():
            members.add(key)
    return members


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("limit", [LIMIT, *SMALLER])
def test_the_front_is_that_of_a_study_of_the_limit_without_any_screening(name: str, limit: float) -> None:
    """Time, area and energy over architectures, TMP widths, microbatches, HBM sizes and recomputation."""
    mine = found(name).fronts
    mine = mine[mine["area_limit_um2"] == limit]
    expected = exhaustive_front(space_of(name, limit))
    assert set(mine[KEY].itertuples(index=False, name=None)) == expected
    assert len(expected) > 3


@pytest.mark.parametrize("name", MODELS)
def test_the_best_of_every_objective_is_that_of_a_study_of_the_limit(name: str) -> None:
    """Largest throughput, also per area, and smallest energy, at every area limit."""
    mine = found(name).fronts
    for limit in (LIMIT, *SMALLER):
        rows, here = space_of(name, limit), mine[mine["area_limit_um2"] == limit]
        per_area = rows["samples_per_s"] / (rows["area_um2"] / 1e6)
        best = {
            "throughput": ("samples_per_s", rows["samples_per_s"].max()),
            "throughput_per_area": ("samples_per_s_per_mm2", per_area.max()),
            "energy": ("joules_per_sample", rows["joules_per_sample"].min()),
        }
        for flag, (column, value) in best.items():
            assert here.loc[here[flag], column].tolist() == pytest.approx([value], rel=1e-9)
            assert here.loc[here[flag], "objectives"].all()


def test_a_limit_has_members_that_the_larger_space_does_not_have() -> None:
    """The minimum area depends on the limit, so cutting the curve of the largest limit would be wrong."""
    every = found("wide").fronts
    extra = architectures().set_index("architecture")["shard"] == "smaller"
    at_largest = every[every["area_limit_um2"] == LIMIT]["architecture"]
    assert not extra[at_largest].any()
    assert extra[every["architecture"]].any()


@pytest.mark.parametrize("name", MODELS)
def test_members_are_placed_and_most_of_the_space_is_not(name: str) -> None:
    """Placements and stages of all members exist; bounds exclude much of a small space already."""
    result = found(name)
    placements, stages = Placements.check(result.placements), Stages.check(result.stages)
    assert Fronts.check(result.fronts)["objectives"].any()
    members = pd.MultiIndex.from_frame(result.fronts[KEY])
    assert members.isin(pd.MultiIndex.from_frame(placements[KEY])).all()
    assert set(members) == set(pd.MultiIndex.from_frame(stages[KEY]))
    assert len(placements) < 0.6 * len(placed(name))


@pytest.mark.parametrize("name", MODELS)
def test_the_screen_bounds_the_energy_of_every_placement(name: str) -> None:
    """From below, and infinite exactly if nothing fits."""
    both = placed(name).merge(pd.concat(screens(name)), on=KEY, validate="one_to_one")
    assert len(both) == len(placed(name))
    assert (both["lower_j"] <= both["joules_per_sample"] * (1 + 1e-12)).all()
    assert (np.isinf(both["lower_j"]) == np.isinf(both["joules_per_sample"])).all()
    fits = both["status"] == "placed"
    assert (both.loc[fits, "lower_j"] / both.loc[fits, "joules_per_sample"]).median() > 0.8


def test_a_model_that_fits_nowhere_has_an_empty_front() -> None:
    """Nothing is evaluated, and the tables are empty."""
    nowhere = [frame.assign(lower_s=np.inf, lower_j=np.inf) for frame in screens("deep")]
    result = find_front(subject("deep"), nowhere, architectures(), terms(), spaces())
    for table, frame in ((Fronts, result.fronts), (Placements, result.placements), (Stages, result.stages)):
        assert table.check(frame).empty


def test_an_area_limit_above_the_scenarios_is_refused() -> None:
    """Its space is larger than the study's."""
    with pytest.raises(PhazeError, match="at most the scenario's area limit of 30 mm2, got 31"):
        spaces_of(architectures(), [LIMIT, 31e6], SHARE)
