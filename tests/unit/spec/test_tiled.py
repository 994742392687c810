"""Systems of chips of tiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.plan.machines import load_machine
from phaze.spec.systems import flat_scenario, load_cluster, load_tiled

PEAK_FLOPS = {"wafer": 20 * 256e12, "grayskull": 92e12, "dojo-d1": 25 * 362e12}
"""PALM, Table VI; Tenstorrent; Tesla."""

CHIP = {
    "rows": 4,
    "columns": 4,
    "tile": {"clock_hz": 1e9, "pe_x": 16, "pe_y": 16, "sram_bytes": 1e6},
    "link": {"bandwidth_bytes_per_s": 1e9},
}


def system(folder: Path, changes: dict[str, object], chip: dict[str, object] | None = None) -> str:
    """Write a chip and a system with it, and return its path."""
    device = folder / "chip.yaml"
    device.write_text(yaml.safe_dump({**CHIP, **(chip or {})}))
    path = folder / "mine.yaml"
    path.write_text(
        yaml.safe_dump({"device": str(device), "dram": {"bandwidth_bytes_per_s": 1e9}, **changes})
    )
    return str(path)


@pytest.mark.parametrize("name", sorted(PEAK_FLOPS))
def test_a_system_of_tiles_has_the_published_peak(name: str) -> None:
    system, chip = load_tiled(name)
    assert system.chips * chip.flops == pytest.approx(PEAK_FLOPS[name], rel=0.005)


def test_a_wse2_of_all_cores_has_the_published_figures() -> None:
    """7.5 PFLOP/s in 16 bits, 40 GB of SRAM with 20 PB/s, 220 Pb/s of fabric, for 850,000 cores."""
    _, chip = load_tiled("wse2")
    cores = 850_000
    assert cores * chip.tile.flops == pytest.approx(7.5e15, rel=0.01)
    assert cores * chip.tile.sram_bytes == pytest.approx(40e9, rel=0.05)
    assert cores * (chip.tile.sram_bandwidth_bytes_per_s or 0) == pytest.approx(20e15, rel=0.15)
    assert cores * 8 * chip.link.bandwidth_bytes_per_s * 8 == pytest.approx(220e15, rel=0.1)


def test_eight_bit_integers_are_faster_by_a_rate() -> None:
    """Grayskull has 368 TOPS of 8-bit integers."""
    _, chip = load_tiled("grayskull")
    assert chip.tile.int8_rate * chip.flops == pytest.approx(368e12, rel=0.005)


def test_grayskull_has_120_cores_between_controllers() -> None:
    _, chip = load_tiled("grayskull")
    assert chip.tiles == 120


@pytest.mark.parametrize("load", [flat_scenario, load_cluster, load_machine])
def test_tiles_are_refused_where_whole_devices_are_needed(load: object) -> None:
    with pytest.raises(PhazeError, match=r"systems/wafer\.yaml: is a mesh of tiles; plans and runs need a"):
        load("wafer")  # type: ignore[operator]


def test_every_system_is_listed_with_its_source(project_root: Path) -> None:
    readme = (project_root / "config/systems/README.md").read_text()
    names = [path.stem for path in (project_root / "config/systems").glob("*.yaml")]
    assert [name for name in names if f"`{name}`" not in readme] == []


@pytest.mark.parametrize("folder", ["systems", "devices"])
def test_every_file_begins_with_who_published_its_figures(project_root: Path, folder: str) -> None:
    """With a year, or an appendix of a source whose year is given elsewhere."""
    for path in (project_root / "config" / folder).glob("*.yaml"):
        comment = "".join(line for line in path.read_text().splitlines()[:2] if line.startswith("#"))
        assert re.search(r"\b20\d\d\b|Appendix", comment), path


def test_a_cluster_is_no_system_of_tiles() -> None:
    with pytest.raises(PhazeError, match=r"a100-selene\.yaml: .*levels: is not a known key"):
        load_tiled("a100-selene")


@pytest.mark.parametrize(
    ("changes", "chip", "message"),
    [
        ({"rows": 2}, {}, "link: must be given if there are several chips, here 2 × 1"),
        ({"dram": {}}, {}, r"dram\.bandwidth_bytes_per_s: Field required"),
        (
            {"dram": {"bandwidth_bytes_per_s": 1e9, "edges": ["left"]}},
            {},
            r"dram\.edges\.0: should be 'north', 'south', 'west' or 'east', got 'left'",
        ),
        (
            {"dram": {"bandwidth_bytes_per_s": 1e9, "edges": ["west", "west"]}},
            {},
            "edges and tiles: must not have duplicates",
        ),
        (
            {"dram": {"bandwidth_bytes_per_s": 1e9, "edges": ["west"], "tiles": [[0, 0]]}},
            {},
            "tiles: must not be given together with edges",
        ),
        ({}, {"working_tiles": 17}, "working_tiles: must be at most 16, the tiles of the mesh, got 17"),
        ({}, {"rows_without_tiles": [4]}, r"rows_without_tiles: must be indices .* from 0 to 3, got \[4\]"),
        ({}, {"columns_without_tiles": [0, 1, 2, 3]}, "columns_without_tiles: must be indices"),
        ({}, {"link": {"bandwidth_bytes_per_s": 0}}, r"link\.bandwidth_bytes_per_s: .*greater than 0, got 0"),
    ],
)
def test_a_mistake_in_a_system_of_tiles_is_one_clear_message(
    tmp_path: Path, changes: dict[str, object], chip: dict[str, object], message: str
) -> None:
    path = system(tmp_path, changes, chip)
    with pytest.raises(PhazeError, match=message):
        load_tiled(path)
