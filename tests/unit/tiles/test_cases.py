"""Cases of a study on tiles as tables."""

from __future__ import annotations

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires
from phaze.spec.config import load_settings
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.models import load_model_named, load_transformer, parse_model
from phaze.spec.systems import load_tiled_systems
from phaze.spec.tiled import Tile, TiledDevice, TiledSystem
from phaze.spec.tiled_study import ExchangeReading, TiledCase, TiledPoint, TiledStudy
from phaze.tables import TiledJobs, TiledLinks, TiledRuns
from phaze.tiles.chip import Chip, TiledMachine, load_tiled_machine
from phaze.tiles.network_cases import simulate_networks
from phaze.tiles.on_tiles import simulate_point
from phaze.tiles.runs import mapping

GRID = TileGrid(4, 8)
CHIP = Chip(
    "toy", GRID, Tile(clock_hz=1e9, pe_x=16, pe_y=16, sram_bytes=1e6), Wires(1e10, 1e-9, (2, 4), 2.5e9),
    PortMemory(GRID.edge(), 2e9),
)  # fmt: skip
CASE = TiledCase(
    title="Toy", show="pipeline", systems=("toy",), batches={"gpt2": 12}, sequence=32, stages=4,
    microbatches=(2, 4), tensor=(4,), layouts=("line", "s-shaped"), recompute="always", remainder="drop",
    dram="unlimited",
)  # fmt: skip
(POINT,) = CASE.points().values()


def test_a_point_has_a_run_for_every_combination_and_shows_its_jobs_and_links() -> None:
    found = simulate_point("toy", POINT, load_transformer("gpt2", "case"), CHIP)
    runs, jobs, links = (found[table.name] for table in (TiledRuns, TiledJobs, TiledLinks))
    assert len(runs) == 4
    assert set(runs["data"]) == {2}
    assert (runs["alone_s"] <= runs["time_s"]).all()
    assert len(links) == 4 * (len(CHIP.topology.links) - 2 * len(GRID.edge()))
    ends = jobs.groupby(["layout", "microbatches"])["end_s"].max()
    times = runs.set_index(["layout", "microbatches"])["time_s"]
    assert (ends - times).abs().max() < 1e-12
    assert set(jobs["kind"]) == {"forward", "recompute", "backward", "synchronise", "update"}


def test_only_a_picture_needs_jobs_and_links() -> None:
    point = POINT.model_copy(update={"show": "table", "microbatches": (2,), "layouts": ("line",)})
    found = simulate_point("toy", point, load_transformer("gpt2", "case"), CHIP)
    assert len(found["tiled_runs"]) == 1
    assert found["tiled_jobs"].empty
    assert found["tiled_links"].empty


def test_stages_lie_in_the_chips_own_blocks_or_where_the_user_says() -> None:
    assert mapping(CHIP, POINT, "s-shaped")[0] == (0, 1, 2, 3, 8, 9, 10, 11)
    assert mapping(CHIP, POINT, "line")[1] == tuple(range(8, 16))
    own = tuple(tuple(range(first, 32, 4)) for first in range(4))
    point = POINT.model_copy(update={"own": own})
    assert mapping(CHIP, point, "own") == own


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"stages": 33}, "stages must be from 1 to 32, the tiles of the system, got 33"),
        ({"tensor": (3,)}, "tensor must divide the 8 tiles of a stage, got 3"),
    ],
)
def test_what_cannot_be_mapped_is_refused(update: dict[str, object], message: str) -> None:
    point: TiledPoint = POINT.model_copy(update={"layouts": ("s-shaped",), **update})
    with pytest.raises(PhazeError, match=message):
        simulate_point("toy", point, load_transformer("gpt2", "case"), CHIP)


def test_own_tiles_are_for_the_layout_own_alone() -> None:
    with pytest.raises(
        ValueError, match="must have the tiles of every stage for layout own, and must be empty otherwise"
    ):
        TiledCase(title="x", show="table", batches={"gpt2": 1}, layouts=("own",))


def test_a_model_of_images_is_no_transformer() -> None:
    with pytest.raises(PhazeError, match="resnet-50 must be a transformer, got ResNet"):
        load_transformer("resnet-50", "case")


def test_figure_6_is_a_row_for_every_ring() -> None:
    rows = simulate_networks(("6",), {})
    assert len(rows) == 8
    assert rows["value"].abs().max() < 1e-9
    assert simulate_networks((), {}).empty


def test_figure_12_has_a_row_for_every_reading_and_setting() -> None:
    readings = {
        "few": ExchangeReading(
            most_adapters=2, switching=("pipelined",), half_duplex=(False,), pieces=(1, 4)
        ),
        "wide": ExchangeReading(
            compare="slowest-fastest", most_adapters=2, sends="direct", switching=("pipelined",),
            half_duplex=(False,), pieces=(1,),
        ),
    }  # fmt: skip
    rows = simulate_networks(("12",), readings)
    assert rows.groupby("reading").size().to_dict() == {"few": 10, "wide": 5}
    assert rows.groupby("group").size().to_dict() == {"ring": 3, "broken ring": 12}
    ring = rows[rows["group"] == "ring"]
    assert (ring["value"] == ring["other_s"] / ring["seconds"]).all()
    assert set(ring["setting"]) == {
        "ring, pipelined, full duplex, 1 pieces",
        "ring, pipelined, full duplex, 4 pieces",
        "ring, pipelined, full duplex, direct sends",
    }


def test_direct_sends_have_no_pieces() -> None:
    with pytest.raises(ValueError, match=r"pieces: must be \[1\] for direct sends, got \[1, 4\]"):
        ExchangeReading(sends="direct")


@pytest.mark.parametrize("name", ["wafer", "wafer-tile-dram", "wafer-row-dram-once"])
def test_systems_come_out_of_the_settings_as_they_were(name: str) -> None:
    study = TiledStudy(cases={"toy": CASE.model_copy(update={"systems": (name,)})})
    parts = load_tiled_systems(study)[name]
    machine = TiledMachine(
        name, TiledSystem.parse(parts["system"], name), TiledDevice.parse(parts["device"], name)
    )
    assert machine.chip == load_tiled_machine(name).chip


@pytest.mark.parametrize(
    ("model", "operators"),
    [
        ("llama-3.1-8b", r"grouped-query attention \(8 key-value heads of 32\), gated feed-forward networks"),
        ("mixtral-8x7b", "experts, grouped-query attention"),
        ("gemma-4-26b-a4b", "experts, attention to a window"),
        ("deepseek-v3", "experts, latent attention"),
    ],
)
def test_a_model_with_operators_that_palms_table_lacks_is_refused(model: str, operators: str) -> None:
    point = POINT.model_copy(update={"operators": "palm"})
    with pytest.raises(
        PhazeError, match=f"simulation on tiles does not support {operators}.* of model {model}"
    ):
        simulate_point("toy", point, load_transformer(model, "case"), CHIP)
    case = {"title": "Toy", "show": "table", "operators": "palm", "batches": {model: 8}}
    config = read_mapping(FOLDER / "config.yaml") | {"tiled": {"cases": {"toy": case}}}
    with pytest.raises(
        PhazeError, match=f"tiled: cases: toy: batches: simulation on tiles does not support {operators}"
    ):
        load_settings(config)


@pytest.mark.parametrize("model", ["resnet-50", "qwen3-30b-a3b"])
def test_a_model_of_any_kind_comes_out_of_the_settings_as_it_was(model: str) -> None:
    """Jobs get models as plain values: as their files have them, whatever their kind."""
    case = {"title": "Toy", "show": "table", "batches": {model: 8}, "degrees": {}}
    config = read_mapping(FOLDER / "config.yaml") | {"tiled": {"cases": {"toy": case}}}
    stored = load_settings(config).tiled_models[model].model_dump(mode="json")
    assert parse_model(stored, "case") == load_model_named(model)
