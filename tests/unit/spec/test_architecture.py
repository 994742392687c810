"""Nouns of the hardware."""

from pathlib import Path

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.cost.vector import cycle_figures
from phaze.spec.architecture import (
    Architecture,
    Grid,
    Technology,
    load_technology,
    shard_of,
    tensor_l2_kib,
    vector_l2_kib,
    words_per_cycle,
)
from phaze.spec.config import load_architecture

CONFIG = Path(__file__).resolve().parents[3] / "config"
SIZES: dict[str, object] = {"name": "a", "num_tc": 2, "num_vc": 4, "pe_x": 32, "pe_y": 128, "glb_mib": 8}


def test_what_is_not_given_follows_the_paper_s_rules() -> None:
    """As many lanes as rows, L2 by the size of the core, 4096 words for several cores."""
    chip = Architecture.parse(SIZES, "a.yaml")
    assert (chip.lanes, chip.bandwidth, chip.tensor_l2_kib, chip.vector_l2_kib) == (32, 4096, 64, 1)


def test_what_is_given_is_taken_as_it_is() -> None:
    """Any size is allowed, inside the grid or outside."""
    fields = {"pe_vc": 5, "glb_words_per_cycle": 251, "l2_tc_kib": 26624, "l2_vc_kib": 7, "num_tc": 108}
    chip = Architecture.parse({**SIZES, **fields}, "a.yaml")
    assert (chip.lanes, chip.bandwidth, chip.tensor_l2_kib, chip.vector_l2_kib) == (5, 251, 26624, 7)


@pytest.mark.parametrize(("x", "y", "kib"), [(256, 256, 1024), (128, 128, 256), (2, 2, 1), (8, 16, 2)])
def test_the_l2_of_a_tensor_core(x: int, y: int, kib: float) -> None:
    """2^(log2 x + log2 y − 6) KiB, at least 1 (paper, C.1)."""
    assert tensor_l2_kib(x, y) == kib


@pytest.mark.parametrize(("lanes", "kib"), [(2, 1), (64, 1), (128, 2), (256, 4), (8192, 4)])
def test_the_l2_of_a_vector_core(lanes: int, kib: float) -> None:
    """1 to 4 KiB (paper, Table 1)."""
    assert vector_l2_kib(lanes) == kib


@pytest.mark.parametrize(
    ("cores", "x", "y", "words"), [(1, 256, 2, 4096), (1, 2, 64, 1024), (1, 2, 2, 32), (2, 2, 2, 4096)]
)
def test_the_bandwidth_of_the_global_buffer(cores: int, x: int, y: int, words: float) -> None:
    """A single core gets the bandwidth that its longer side needs, several cores get all."""
    assert words_per_cycle(cores, x, y) == words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tc": 0}, r"a\.yaml: num_tc: .*greater than 0, got 0"),
        ({"glb_mib": -1}, r"a\.yaml: glb_mib: .*got -1"),
        ({"l2_tc_kib": 0}, r"a\.yaml: l2_tc_kib: .*got 0"),
        ({"hbm_gib": "much"}, r"a\.yaml: hbm_gib: .*got 'much'"),
        ({"pe_z": 3}, r"a\.yaml: pe_z: is not a known key, got 3"),
    ],
)
def test_bad_sizes_are_refused(change: dict[str, object], message: str) -> None:
    """The message gives the file, the key and the value."""
    with pytest.raises(PhazeError, match=message):
        Architecture.parse({**SIZES, **change}, "a.yaml")


def test_a_file_with_an_infinite_size_is_refused_by_name(tmp_path: Path) -> None:
    """The file, the key and the value, as written in YAML."""
    path = tmp_path / "mine.yaml"
    path.write_text("num_tc: 1\nnum_vc: 1\npe_x: 8\npe_y: 8\nglb_mib: 8\nhbm_gib: .inf\n")
    with pytest.raises(PhazeError, match=r"mine\.yaml: hbm_gib: should be a finite number, got inf"):
        load_architecture(str(path), CONFIG)


def test_a_grid_lists_every_value_once() -> None:
    """A repeated value would create two architectures with one name."""
    with pytest.raises(PhazeError, match="num_tc: 1 is given twice"):
        Grid.parse({"num_tc": [1, 2, 1]}, "config.yaml")


def test_every_grid_architecture_is_in_one_shard() -> None:
    """Shards divide the grid by its global buffers, for any grid."""
    grid = Grid(glb_mib=(2, 128, 129, 512))
    parts = [grid.restricted_to(shard).glb_mib for shard in ("small-buffer", "large-buffer")]
    assert parts == [(2, 128), (129, 512)]
    assert shard_of(128) == "small-buffer"
    assert shard_of(128.1) == "large-buffer"


def test_every_named_architecture_of_the_project_is_valid() -> None:
    """Names equal those of the files."""
    paths = sorted((CONFIG / "architectures").glob("*.yaml"))
    assert len(paths) >= 10
    assert [load_architecture(path.stem, CONFIG).name for path in paths] == [path.stem for path in paths]


@pytest.mark.parity
def test_named_architectures_are_the_published_ones(shared_data: Path) -> None:
    """Our files have every number of the paper's designs."""
    setup = yaml.safe_load((shared_data / "hardware/paper_setup.yaml").read_text())
    for name, workload in setup["workloads"].items():
        compute, (glb, words, l2_tc, l2_vc) = workload["spotlight"]
        chip = load_architecture(f"spotlight-{name}", CONFIG)
        assert [chip.num_tc, chip.num_vc, chip.pe_x, chip.pe_y, chip.lanes] == compute
        assert (chip.glb_mib, chip.bandwidth) == (glb, words)
        assert (chip.tensor_l2_kib, chip.vector_l2_kib) == (l2_tc * 1024, l2_vc * 1024)
    for name, published in setup["architectures"].items():
        chip = load_architecture(name, CONFIG)
        assert [chip.num_tc, chip.num_vc, chip.pe_x, chip.pe_y, chip.lanes] == published["compute"]
        for key in ("glb_mib", "glb_words_per_cycle", "l2_tc_kib", "l2_vc_kib", "hbm_gib"):
            assert key not in published or getattr(chip, key) == published[key]


@pytest.mark.parity
def test_the_technology_has_the_published_figures(shared_data: Path) -> None:
    """Areas are those of the paper's authors, and vector cycles in the study are those of their setting."""
    technology = load_technology("22nm", CONFIG)
    areas = yaml.safe_load((shared_data / "hardware/areas_22nm.yaml").read_text())
    cycles = yaml.safe_load((shared_data / "hardware/vector_cycles.yaml").read_text())
    assert technology.area_um2.model_dump(exclude_defaults=True) == areas
    study = yaml.safe_load((CONFIG / "studies/phaze-paper.yaml").read_text())
    table = cycle_figures(technology.vector_cycles, study["estimate"]["vector_cycles"])
    assert table == {(role, kind): cost for role, kinds in cycles.items() for kind, cost in kinds.items()}


def test_a_softmax_costs_about_what_a_norm_costs() -> None:
    """Both read an element once for a sum and once for its share; a function of one number is looked up."""
    cycles = load_technology("22nm", CONFIG).vector_cycles
    assert cycles.forward["softmax"] == cycles.forward["layer_norm"] == 5
    assert {cycles.forward[kind] for kind in ("gelu", "silu", "tanh", "sigmoid", "swish", "erf")} == {1}


def test_the_technology_is_a_value_that_json_can_carry() -> None:
    """It passes through the workflow as plain data and stays equal."""
    technology = load_technology("22nm", CONFIG)
    assert Technology.parse(technology.model_dump(mode="json"), "params") == technology


def test_energies_are_in_their_order() -> None:
    """Moving a byte costs more from farther away; a wrong power of ten would show."""
    energy = load_technology("22nm", CONFIG).energy
    sram = [energy.sram_j_per_byte[size] for size in sorted(energy.sram_j_per_byte)]
    ascending = [energy.register_j_per_byte, *sram, energy.hbm_j_per_byte, energy.link_j_per_byte]
    assert ascending == sorted(ascending)
    assert 1e-13 < energy.mac_j < 1e-11
