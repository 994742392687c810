"""The support matrix counts measured runs by family, device and stack, without simulated ones."""

from pathlib import Path

import pytest

from phaze.validate.intervals import generation
from phaze.validate.support import FAMILY_NAMES, MeasuredGroup, Support, family_of
from tests.commands import invoke


def test_a_cell_is_measured_near_or_assumed() -> None:
    groups = (
        MeasuredGroup("dense", "gb200", "one", 3, 0.1),
        MeasuredGroup("dense", "gb200", "other", 1, 0.3),
        MeasuredGroup("experts", "gb200", "one", 1, 0.2),
    )
    matrix = Support(groups, ("b200", "gb200", "mi300x"))
    assert [matrix.level("dense", device) for device in matrix.devices] == ["near", "measured", "assumed"]
    assert matrix.level("Mamba", "gb200") == "near"  # the device is measured
    assert matrix.level("Mamba", "b200") == "assumed"
    lines = list(matrix.matrix())
    assert lines[2][:3] == ("gb200", "4 runs, 15.0 %", "1 run, 20.0 %")


@pytest.mark.parametrize(
    ("features", "experts", "family"),
    [
        ("ZeRO-1", "no", "dense"),
        ("ZeRO-1", "balanced", "experts"),
        ("ZeRO-1", "natural", "experts"),
        ("ZeRO-1+latent attention+multi-token prediction", "balanced", "latent attention"),
        ("Mamba+ZeRO-1", "natural", "Mamba"),
    ],
)
def test_a_run_belongs_to_one_family(features: str, experts: str, family: str) -> None:
    assert family_of({"features": features, "experts": experts}) == family


def test_devices_of_a_generation_are_near_each_other() -> None:
    assert generation("h100-80gb") == generation("h200") != generation("gb200") == generation("b300")
    assert generation("tpu-v4") != generation("tpu-v6e")


def test_shipped_runs_are_all_counted_but_simulated_ones(project_root: Path) -> None:
    matrix = Support.load()
    lines = (project_root / "config/errors.csv").read_text().splitlines()[1:]
    assert sum(group.runs for group in matrix.groups) == sum(
        "vtrain-single-node," not in line for line in lines
    )
    assert {"tpu-v5p", "titan-v"} <= set(matrix.devices)
    assert not {"wse2", "grayskull"} & set(matrix.devices)
    assert all(family in FAMILY_NAMES for family, _ in matrix.measured)


def test_the_command_prints_the_matrix_as_text_and_json() -> None:
    text = invoke("validate", "--support").stdout
    assert text.startswith("device")
    assert '"level": "measured"' in invoke("validate", "--support", "--json").stdout
