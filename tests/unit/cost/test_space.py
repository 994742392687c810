"""The space of architectures."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.designs import DEPENDS_ON
from phaze.cost.space import COMPONENTS, area_um2, describe_named, enumerate_grid
from phaze.spec.architecture import Architecture, Grid, load_technology
from phaze.spec.config import load_architecture
from phaze.tables import Architectures

CONFIG = Path(__file__).resolve().parents[3] / "config"
FIGURES = load_technology("22nm", CONFIG).area_um2
LIMIT_UM2 = area_um2(load_architecture("tpu-v4", CONFIG), FIGURES)
SHARDS = ("small-buffer", "large-buffer")
SMALL = Grid(num_tc=(1, 2, 8), num_vc=(1, 2), pe_x=(64, 128), pe_y=(128,), glb_mib=(4, 128))


def space(grid: Grid, limit_um2: float = LIMIT_UM2) -> pd.DataFrame:
    """Return all shards of a grid."""
    return pd.concat([enumerate_grid(grid.restricted_to(s), FIGURES, limit_um2, s) for s in SHARDS])


@pytest.fixture(scope="module")
def paper_space() -> pd.DataFrame:
    """Return the space of the paper."""
    return space(Grid())


def test_the_paper_s_space_has_29360_architectures(paper_space: pd.DataFrame) -> None:
    """Powers of two up to Table 1's limits, within the area of TPUv4 and at least 30 % of it."""
    assert len(paper_space) == 29_360
    assert paper_space["architecture"].is_unique
    assert paper_space["area_um2"].max() == pytest.approx(LIMIT_UM2, rel=1e-12)


def test_without_the_30_percent_rule_there_are_51943() -> None:
    """The rule excludes small chips with several cores of both types."""
    assert len(space(Grid(minimum_area_share=None))) == 51_943


def test_small_chips_stay_if_they_have_a_single_core_of_a_type(paper_space: pd.DataFrame) -> None:
    """Below 30 % of the limit there are no others."""
    small = paper_space[paper_space["area_um2"] < 0.3 * LIMIT_UM2]
    assert len(small) > 0
    assert ((small["num_tc"] == 1) | (small["num_vc"] == 1)).all()


def test_tpu_v4_is_in_the_space_and_the_largest(paper_space: pd.DataFrame) -> None:
    """Its area is the limit, and within the limit."""
    row = paper_space.set_index("architecture").loc["tc8-vc2-128x128-glb128"]
    assert row["area_um2"] == paper_space["area_um2"].max()
    assert row["shard"] == "small-buffer"
    assert not row["area_interpolated"]
    assert not row["named"]


def test_areas_are_the_sums_of_their_components(paper_space: pd.DataFrame) -> None:
    """Tensor cores, vector cores, L2 buffers and the global buffer make up the whole chip."""
    assert np.allclose(paper_space[COMPONENTS].sum(axis=1), paper_space["area_um2"], rtol=1e-12, atol=0)


def test_named_architectures_stand_beside_a_grid_with_the_designs_that_they_share() -> None:
    """Only the design ids of grid rows change; equal cores have equal ids."""
    named = [load_architecture(name, CONFIG) for name in ("tpu-v4", "phaze-common")]
    alone = enumerate_grid(SMALL.restricted_to("small-buffer"), FIGURES, LIMIT_UM2, "small-buffer")
    both = enumerate_grid(SMALL.restricted_to("small-buffer"), FIGURES, LIMIT_UM2, "small-buffer", named)
    ids = [f"{core}_design" for core in DEPENDS_ON]
    pd.testing.assert_frame_equal(
        Architectures.searched(both).drop(columns=ids), alone.drop(columns=ids).reset_index(drop=True)
    )
    assert set(both.loc[both["named"], "architecture"]) == {"tpu-v4", "phaze-common"}
    of = both.set_index("architecture")[ids]
    assert (of.loc["tpu-v4"] == of.loc["tc8-vc2-128x128-glb128"]).all()


def test_a_named_architecture_with_the_name_of_one_of_the_grid_is_refused() -> None:
    """Tables identify architectures by their names."""
    chip = load_architecture("tpu-v4", CONFIG).model_copy(update={"name": "tc8-vc2-128x128-glb128"})
    with pytest.raises(
        PhazeError, match=r"architectures\.named: tc8-vc2-128x128-glb128 is the name of an arch"
    ):
        enumerate_grid(SMALL, FIGURES, LIMIT_UM2, "small-buffer", [chip])


def test_a_grid_architecture_is_the_named_one_of_its_sizes() -> None:
    """The rules for buffers, lanes and bandwidth are the same for both."""
    grid = space(
        Grid(num_tc=(1, 4), num_vc=(2,), pe_x=(2, 64), pe_y=(16, 256), glb_mib=(2,), minimum_area_share=None)
    )
    sizes = ["num_tc", "num_vc", "pe_x", "pe_y"]
    rows = zip(grid["architecture"], *(grid[name].tolist() for name in sizes), strict=True)
    chips = [
        Architecture(name=name, num_tc=tc, num_vc=vc, pe_x=x, pe_y=y, glb_mib=2)
        for name, tc, vc, x, y in rows
    ]
    same = [name for name in Architectures.columns if name != "named"]
    assert len(chips) == 8
    pd.testing.assert_frame_equal(
        describe_named(chips, FIGURES, "small-buffer")[same], grid.reset_index(drop=True)[same]
    )


def test_a_shard_depends_on_its_own_members_only() -> None:
    """Larger buffers in the grid do not affect shards with smaller ones."""
    more = SMALL.model_copy(update={"glb_mib": (*SMALL.glb_mib, 256)})
    one, other = (
        enumerate_grid(g.restricted_to(SHARDS[0]), FIGURES, LIMIT_UM2, SHARDS[0]) for g in (SMALL, more)
    )
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("core", list(DEPENDS_ON))
def test_designs_are_equal_where_estimates_are(paper_space: pd.DataFrame, core: str) -> None:
    """Within a shard, an id identifies one combination of the inputs of estimates."""
    shard = paper_space[paper_space["shard"] == "small-buffer"]
    frame = shard.assign(pairs=shard[["num_tc", "num_vc"]].min(axis=1))
    pairs = frame[[f"{core}_design", *DEPENDS_ON[core]]].drop_duplicates()
    assert pairs[f"{core}_design"].is_unique
    assert not pairs.duplicated(DEPENDS_ON[core]).any()


def test_design_ids_of_core_types_do_not_meet(paper_space: pd.DataFrame) -> None:
    """Table estimates distinguishes them by id alone."""
    shard = paper_space[paper_space["shard"] == "small-buffer"]
    ids = [set(shard[f"{core}_design"]) for core in DEPENDS_ON]
    assert sum(map(len, ids)) == len(set.union(*ids))


def test_no_architecture_within_the_limit_is_an_empty_shard() -> None:
    """An empty shard is not an error here; the report states it."""
    assert len(space(SMALL, 1.0)) == 0


def test_a_named_architecture_is_kept_whatever_its_area() -> None:
    """No rule of the grid applies, and an interpolated capacity is marked."""
    chip = Architecture(name="odd", num_tc=108, num_vc=3, pe_x=24, pe_y=40, glb_mib=40)
    row = describe_named([chip], FIGURES, "named").iloc[0]
    assert row["named"]
    assert row["area_interpolated"]
    assert row["area_um2"] > FIGURES.glb[32]
    assert row["glb_bytes"] == 40 * 2**20
    assert row["l2_tc_bytes"] == 15 * 2**10


def test_a_given_area_wins_over_the_figures() -> None:
    """It is not interpolated, and its components keep their proportions."""
    chip = Architecture(name="odd", num_tc=2, num_vc=2, pe_x=24, pe_y=40, glb_mib=40, area_mm2=100)
    given = describe_named([chip], FIGURES, "named").iloc[0]
    ours = describe_named([chip.model_copy(update={"area_mm2": None})], FIGURES, "named").iloc[0]
    assert given["area_um2"] == 100e6
    assert not given["area_interpolated"]
    assert given[COMPONENTS].sum() == pytest.approx(100e6)
    assert given["glb_um2"] / 100e6 == pytest.approx(ours["glb_um2"] / ours["area_um2"])


def test_spotlight_s_designs_come_close_to_the_limit() -> None:
    """With L2 buffers in MB as printed, the extrapolated areas are 77 to 87 % of the limit."""
    names = sorted(path.stem for path in (CONFIG / "architectures").glob("spotlight-*.yaml"))
    found = describe_named([load_architecture(name, CONFIG) for name in names], FIGURES, "named")
    assert len(found) == 8
    assert found["area_interpolated"].all()
    share = found["area_um2"] / LIMIT_UM2
    assert share.between(0.77, 0.88).all()
