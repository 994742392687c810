"""Areas of published dies by part, against the technologies."""

import numpy as np
import pandas as pd
import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.cost.space import (
    COMPONENTS,
    OTHERS,
    area_by_part,
    area_range,
    area_um2,
    as_architectures,
    enumerate_grid,
)
from phaze.spec.architecture import Architecture, AreaFigures, Grid, load_technology
from phaze.spec.config import load_architecture
from phaze.spec.files import FOLDER
from tests.dies import DIES, GA100, GH100, MI210, TPU_V4I, Die, predicted

SHARED = {"hbm_gib": 64.0, "hbm_bandwidth_bytes_per_s": 1.6e12, "link_bandwidth_bytes_per_s": 450e9}
SMALL = Grid(
    num_tc=(1, 8), num_vc=(2,), pe_x=(64, 128), pe_y=(128,), glb_mib=(8, 128), minimum_area_share=None
)


@pytest.mark.parametrize("die", [GA100, TPU_V4I, GH100], ids=lambda die: die.chip.name)
def test_totals_are_within_15_percent_and_parts_within_30(die: Die) -> None:
    """GA100 826 mm² and TPU v4i 400 mm² at 7 nm, GH100 814 mm² at 5 nm."""
    for group, area in predicted(die).items():
        published = die.parts_mm2[group] if group else die.total_mm2
        assert area.best == pytest.approx(published, rel=0.3 if group else 0.15)


@pytest.mark.parametrize("die", DIES, ids=lambda die: die.chip.name)
def test_the_range_of_a_die_contains_its_area(die: Die) -> None:
    """MI210 too, whose PHYs are twice those of GA100, and which best figures miss by 18 %."""
    area = predicted(die)[()]
    assert area.low < die.total_mm2 < area.high
    assert area.low > 0.6 * area.best
    assert area.high < 1.4 * area.best


def test_parts_of_mi210_other_than_the_cores_are_missed() -> None:
    """The known limit: HBM PHYs of MI210 have twice, its link PHYs three times the predicted area."""
    areas = predicted(MI210)
    assert areas["tensor", "vector", "l2"].best == pytest.approx(446.22, rel=0.15)
    assert areas[("hbm_phy",)].best == pytest.approx(83.26 / 2, rel=0.02)


def test_scaled_22_nm_is_the_trap() -> None:
    """22 nm times 0.255 is 4.4 times below a MAC, and 2.5 times below SRAM, of a die of 7 nm."""
    old, new = load_technology("22nm").area_um2, load_technology("7nm").area_um2
    assert new.mac_tc / (0.255 * old.mac_tc) == pytest.approx(4.4, abs=0.05)
    assert new.glb[128] / (0.255 * old.glb[128]) == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize("name", ["16nm", "14nm", "10nm", "7nm", "5nm"])
def test_a_technology_has_sources_and_cycles_of_22_nm(name: str) -> None:
    """Every node has all parts; areas shrink and energies fall with the node."""
    technology = load_technology(name)
    assert technology.vector_cycles == load_technology("22nm").vector_cycles
    chip = Architecture(name="a", num_tc=8, num_vc=2, pe_x=128, pe_y=128, glb_mib=128, hbm_gib=32,
                        link_bandwidth_bytes_per_s=450e9)  # fmt: skip
    assert all(area.best > 0 for area in area_by_part(chip, technology.area_um2).values())


def test_areas_and_energies_fall_with_the_node() -> None:
    """From 16 to 5 nm every area and energy is at most that of the node before."""
    nodes = [load_technology(name) for name in ("16nm", "14nm", "10nm", "7nm", "5nm")]
    chip = load_architecture("tpu-v4")
    areas = [area_um2(chip, node.area_um2) for node in nodes]
    energies = [node.energy.mac_j for node in nodes]
    assert areas == sorted(areas, reverse=True)
    assert energies == sorted(energies, reverse=True)


def test_the_papers_technology_has_cores_and_buffers_only() -> None:
    """HBM and links of a chip change nothing at 22 nm, and its area is no range."""
    figures = load_technology("22nm").area_um2
    chip = load_architecture("tpu-v4")
    parts = area_by_part(GA100.chip, figures)
    assert {part for part, area in parts.items() if area.best} == {"tensor", "vector", "l2", "glb"}
    with_links = chip.model_copy(
        update={"link_bandwidth_bytes_per_s": 1e12, "hbm_stacks": 6, "glb_cache": True, "gpu_lanes": True}
    )
    assert area_um2(with_links, figures) == area_um2(chip, figures)
    area = area_range(area_by_part(chip, figures).values())
    assert area.low == area.best == area.high


def test_a_grid_has_the_areas_of_its_architectures_one_by_one() -> None:
    """Vectorised areas with HBM and links are those of single chips, by part."""
    for name in ("22nm", "7nm", "5nm"):
        figures = load_technology(name).area_um2
        grid = enumerate_grid(SMALL, figures, 1e12, "small-buffer", shared=SHARED)
        chips = [chip.model_copy(update={"area_mm2": None}) for chip in as_architectures(grid, SHARED)]
        assert grid["area_um2"].tolist() == [area_um2(chip, figures) for chip in chips]
        parts = grid[COMPONENTS].sum(axis=1)
        assert np.allclose(parts, grid["area_um2"], rtol=1e-12, atol=0)
        specified = [
            sum(a.best for a in area_by_part(c, figures).values()) for c in as_architectures(grid, SHARED)
        ]
        assert specified == pytest.approx((grid["area_um2"] / 1e6).tolist(), rel=1e-12)


def test_hbm_stacks_are_the_fewest_for_capacity_and_bandwidth() -> None:
    """A stack of 7nm has 16 GiB and 408 GB/s; the A100's 2,039 GB/s are five of them."""
    figures = load_technology("7nm").area_um2
    assert figures.hbm is not None
    cases = [(80, 2.039e12, 5), (64, 1.0e12, 4), (65, 1.0e12, 5), (16, 0.4e12, 1), (16, 0.83e12, 3)]
    for gib, bandwidth, stacks in cases:
        update = {"hbm_stacks": None, "hbm_gib": gib, "hbm_bandwidth_bytes_per_s": bandwidth}
        parts = area_by_part(GA100.chip.model_copy(update=update), figures)
        assert parts["hbm_phy"].best == pytest.approx(stacks * figures.hbm.phy / 1e6)


def test_fp8_units_take_area_and_need_figures() -> None:
    """Two units for each of 16 bits; a technology without their area is refused in one sentence."""
    chip = load_architecture("tpu-v4").model_copy(update={"fp8_units": True})
    figures = load_technology("7nm").area_um2
    plain = area_by_part(load_architecture("tpu-v4"), figures)["tensor"].best
    assert figures.mac_fp8 is not None
    expected = plain * (1 + 2 * figures.mac_fp8 / figures.mac_tc)
    assert area_by_part(chip, figures)["tensor"].best == pytest.approx(expected)
    for name in ("22nm", "16nm"):
        with pytest.raises(PhazeError, match=r"has no area for FP8 units \(area_um2\.mac_fp8\)"):
            area_um2(chip, load_technology(name).area_um2)


def test_a_span_must_contain_the_figures() -> None:
    """The message names key, part and values."""
    figures = yaml.safe_load((FOLDER / "technologies" / "7nm.yaml").read_text())["area_um2"]
    with pytest.raises(PhazeError, match="spans: link: must be at most 1 and at least 1, got 2, 3"):
        AreaFigures.parse({**figures, "spans": {"link": [2, 3]}}, "a.yaml")


def test_a_larger_link_or_more_hbm_is_a_larger_chip() -> None:
    """Monotone in every property that takes area outside the cores."""
    figures = load_technology("7nm").area_um2
    chip = load_architecture("tpu-v4").model_copy(update=SHARED)
    for change in (
        {"hbm_gib": 96.0}, {"hbm_bandwidth_bytes_per_s": 2.4e12}, {"link_bandwidth_bytes_per_s": 900e9},
        {"glb_words_per_cycle": 8192.0}, {"glb_cache": True}, {"fp8_units": True}, {"gpu_lanes": True},
    ):  # fmt: skip
        assert area_um2(chip.model_copy(update=change), figures) > area_um2(chip, figures)


def test_the_columns_of_a_table_are_the_parts() -> None:
    """`other_um2` sums the parts outside cores and buffers."""
    figures = load_technology("7nm").area_um2
    grid: pd.DataFrame = enumerate_grid(SMALL, figures, 1e12, "small-buffer", shared=SHARED)
    chip = as_architectures(grid, SHARED)[0]
    others = [area.best for part, area in area_by_part(chip, figures).items() if f"{part}_um2" in OTHERS]
    assert sum(others) * 1e6 == pytest.approx(grid["other_um2"].iloc[0])


def test_tpu_v4_as_built_is_below_its_published_area() -> None:
    """At most 600 mm² (Jouppi et al., ISCA 2023), with links of 300 GB/s; its parts are not published."""
    chip = load_architecture("tpu-v4-as-built").model_copy(update={"link_bandwidth_bytes_per_s": 300e9})
    area = area_range(area_by_part(chip, load_technology("7nm").area_um2).values())
    assert 400 < area.best < 600
