"""The screen of a shard: bounds for every row, and the right architectures kept."""

import numpy as np
import pandas as pd
import pytest

from phaze.base.ranking import name_ranks, order, smallest
from phaze.search.bounds import bound_layers
from phaze.search.stage import screen_architectures
from phaze.spec.settings import ScreenSettings, Training
from phaze.spec.system import Scenario
from phaze.tables import Screens
from tests.unit.search.shard import ENERGY, Shard, make_shard

KEYS = ["architecture", "hbm_gib", "recompute"]


def screen(
    shard: Shard,
    *,
    devices: int = 16,
    hbm_gib: tuple[float, ...] = (6, 12, 32),
    best: int = 3,
    bandwidth: float = 2.0**30,
    visits: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the screen of a shard on a small cluster."""
    return screen_architectures(
        *shard,
        Scenario(devices=devices, global_batch=64, network_bandwidth_bytes_per_s=bandwidth),
        Training(hbm_gib=hbm_gib),
        ScreenSettings(best=best, strategy="certified" if visits is None else "hysteresis", hysteresis=4),
        ENERGY,
        visits=visits,
    )


def times(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return one column with a row for every architecture and a column for every HBM size and recompute."""
    return frame.pivot(index="architecture", columns=["hbm_gib", "recompute"], values=column)


def test_every_architecture_has_a_row_for_every_hbm_size_and_recompute() -> None:
    """The common search needs bounds for all architectures, kept or not."""
    frame = screen(make_shard(30))
    assert len(frame) == 30 * 3 * 2
    pd.testing.assert_frame_equal(Screens.check(frame), frame)
    assert (frame.groupby("architecture")["kept"].nunique() == 1).all()
    assert 0 < frame[frame["kept"]]["architecture"].nunique() < 30


def test_bounds_of_a_shard_are_those_of_its_architectures_alone() -> None:
    """Bounds do not depend on other architectures in the shard, nor on the order of rows."""
    shard = make_shard(12, seed=2)
    together = screen(shard)
    for at in range(0, 12, 5):
        alone = screen(shard._replace(architectures=shard.architectures.iloc[[at]])).set_index(KEYS)
        same = together.set_index(KEYS).loc[alone.index]
        assert np.array_equal(same["lower_s"], alone["lower_s"])
        assert np.array_equal(same["feasible_s"], alone["feasible_s"])
    shuffled = shard._replace(architectures=shard.architectures.sample(frac=1.0, random_state=1))
    pd.testing.assert_frame_equal(screen(shuffled), together)


def test_bounds_of_a_layer_lie_between_its_longest_operator_and_all_in_a_row() -> None:
    """No operator is faster than its best latency, and running them in sequence is feasible."""
    shard = make_shard(8)
    operators, every = shard.operators, shard.estimates
    found = bound_layers(operators, shard.edges, every, shard.architectures)
    for (layer, direction), bounds in found.items():
        mine = operators[(operators["layer"] == layer) & (operators["direction"] == direction)]
        for a, chip in enumerate(shard.architectures.itertuples()):
            fastest = [
                every[(every["work"] == o.work) & (every["design"] == design)]
                .filter(["latency_s", "latency_all_s"])
                .min(axis=None)
                for o in mine.itertuples()
                if o.core != "none"
                for design in [getattr(chip, f"{o.core}_design")]
            ]
            assert max(fastest) <= bounds.lower_s[a] * (1 + 1e-12)
            assert bounds.lower_s[a] <= bounds.feasible_s[a] * (1 + 1e-12)
            assert bounds.feasible_s[a] <= sum(fastest) * (1 + 1e-12)


@pytest.mark.parametrize("column", ["lower_s", "feasible_s"])
def test_more_of_anything_is_never_slower(column: str) -> None:
    """More HBM, more devices and more bandwidth never make a batch slower."""
    shard = make_shard(20, seed=3)
    base = times(screen(shard), column)
    for recompute in (False, True):
        by_size = base.xs(recompute, axis=1, level="recompute").to_numpy()
        assert (by_size[:, :-1] >= by_size[:, 1:] * (1 - 1e-12)).all()
    for other in (screen(shard, devices=32), screen(shard, bandwidth=2.0**34)):
        assert (times(other, column).to_numpy() <= base.to_numpy() * (1 + 1e-12)).all()


def test_without_a_pipeline_recomputation_cannot_help_where_memory_abounds() -> None:
    """Recomputation trades time for memory, so with enough memory stashing is at least as fast."""
    frame = times(screen(make_shard(10), hbm_gib=(2000.0,)), "feasible_s")
    assert (frame[(2000.0, False)] <= frame[(2000.0, True)] * (1 + 1e-12)).all()


def test_named_architectures_are_kept_and_exclude_no_one() -> None:
    """All named ones are kept, and of the others the same ones as without them."""
    shard = make_shard(25, seed=5, named=4)
    frame = screen(shard)
    kept = set(frame.loc[frame["kept"], "architecture"])
    named = set(shard.architectures.loc[shard.architectures["named"], "architecture"])
    unnamed = shard.architectures[~shard.architectures["named"]]
    alone = screen(shard._replace(architectures=unnamed))
    assert kept == named | set(alone.loc[alone["kept"], "architecture"])


def test_an_architecture_with_its_own_hbm_has_bounds_with_that_alone() -> None:
    """The bounds are those of a study of this size, and others are as without it."""
    shard = make_shard(25, seed=5, named=4)
    own = np.where(shard.architectures["named"], 6.0, 0.0)
    mixed = screen(shard._replace(architectures=shard.architectures.assign(hbm_gib=own)))
    named = mixed["architecture"].isin(shard.architectures.loc[own > 0, "architecture"])
    assert set(mixed.loc[named, "hbm_gib"]) == {6.0}
    six, usual = screen(shard, hbm_gib=(6.0,)), screen(shard)
    bounds = ["architecture", "hbm_gib", "recompute", "lower_s", "feasible_s"]
    for rows, others in ((mixed[named], six), (mixed[~named], usual)):
        same = others[others["architecture"].isin(rows["architecture"])]
        pd.testing.assert_frame_equal(
            rows[bounds].reset_index(drop=True), same[bounds].reset_index(drop=True)
        )
    assert (
        mixed[~named]["kept"].tolist()
        == usual[usual["architecture"].isin(mixed.loc[~named, "architecture"])]["kept"].tolist()
    )


def test_beside_named_architectures_one_searched_is_kept_where_nothing_fits() -> None:
    """It gives the reason: named architectures give only their own."""
    frame = screen(make_shard(25, seed=5, named=4), hbm_gib=(1e-6,))
    assert len(set(frame.loc[frame["kept"], "architecture"])) == 4 + 1


def test_the_kept_hold_the_answers_of_every_hbm_size() -> None:
    """With feasible values as exact ones, the ten best and the smallest of every HBM size are kept."""
    shard = make_shard(40, seed=6)
    frame = screen(shard, best=4)
    chips = shard.architectures.set_index("architecture")["area_um2"]
    for _, rows in frame.groupby("hbm_gib"):
        time = rows.groupby("architecture")["feasible_s"].min()
        area = chips.loc[time.index].to_numpy()
        name = name_ranks(time.index)
        answers = [*order(time.to_numpy(), area, name)[:4], smallest(time.to_numpy(), area, name, 0.01)]
        kept = set(rows.loc[rows["kept"], "architecture"])
        assert {time.index[a] for a in answers if a is not None} <= kept


def test_of_a_walk_only_the_visited_are_kept_and_exclude_others() -> None:
    """As for a shard with only the visited ones; bounds exist for all."""
    shard = make_shard(30, seed=8)
    walk = pd.DataFrame({"architecture": shard.architectures["architecture"][10:25]})
    frame = screen(shard, visits=walk.assign(level=[4] * 10 + [5] * 5))
    among = shard.architectures.iloc[10:20]
    alone = screen(shard._replace(architectures=among))
    assert set(frame.loc[frame["kept"], "architecture"]) == set(alone.loc[alone["kept"], "architecture"])
    assert frame["architecture"].nunique() == 30


def test_a_walk_without_its_visits_is_an_error() -> None:
    """Strategy hysteresis needs the walk before the screen."""
    shard = make_shard(3)
    settings = ScreenSettings(strategy="hysteresis")
    with pytest.raises(ValueError, match="needs the visits"):
        screen_architectures(*shard, Scenario(), Training(), settings, ENERGY)


def test_where_nothing_fits_one_architecture_is_kept_to_say_why() -> None:
    """A model that fits nowhere ends as an infeasible row of the smallest architecture."""
    shard = make_shard(9)
    frame = screen(shard, devices=1, hbm_gib=(0.5,))
    assert np.isinf(frame["lower_s"]).all()
    smallest_chip = shard.architectures.sort_values(["area_um2", "architecture"])["architecture"].iloc[0]
    assert set(frame.loc[frame["kept"], "architecture"]) == {smallest_chip}
