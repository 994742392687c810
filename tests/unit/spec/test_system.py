"""Systems of devices on levels."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.spec.systems import load_cluster, load_device, load_system, load_system_of

PEAK_FLOPS = {"a100-80gb": 312e12, "h100-80gb": 989e12, "tpu-v4": 275e12}


@pytest.mark.parametrize("name", sorted(PEAK_FLOPS))
def test_a_device_by_the_template_has_the_published_peak(name: str) -> None:
    device = load_device(name)
    units = device.num_tc * device.pe_x * device.pe_y
    assert 2 * units * device.clock_hz == pytest.approx(PEAK_FLOPS[name], rel=0.005)


def test_a_system_with_levels_is_a_flat_one_for_the_planners_only_with_the_bandwidth_that_is_given() -> None:
    cluster, device = load_cluster("a100-selene")
    flat = load_system("a100-selene", flat=40e9)
    assert flat.devices == cluster.devices
    assert flat.network_bandwidth_bytes_per_s == 40e9
    assert flat.hbm_bandwidth_bytes_per_s == device.hbm_bandwidth_bytes_per_s
    with pytest.raises(PhazeError, match=r"levels with 3e\+11, 2\.5e\+10 bytes/s.*--flat-bandwidth"):
        load_system("a100-selene")


def test_a_system_of_one_level_is_a_flat_one() -> None:
    assert load_system("tpu-v4").network_bandwidth_bytes_per_s == 300e9
    assert load_system("paper", flat=1e9).network_bandwidth_bytes_per_s == 1e9


def test_an_architecture_without_a_clock_does_not_run_at_that_of_another_device() -> None:
    with pytest.raises(PhazeError, match=r"tpu-v4 has neither clock.*h100 has those of h100-80gb: give"):
        load_system_of("tpu-v4", "h100", flat=50e9)
    own = load_system_of("config/devices/tpu-v4.yaml", "h100", flat=50e9)
    assert own.clock_hz == load_device("tpu-v4").clock_hz


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "a1000"}, "there is no device 'a1000'; there are a100-80gb"),
        ({"levels": []}, "levels: .*at least 1 item"),
        ({"levels": [{"devices": 8}]}, r"levels\.0\.bandwidth_bytes_per_s: Field required"),
        (
            {"levels": [{"devices": n, "bandwidth_bytes_per_s": 1.0} for n in (8, 12)]},
            "each must hold whole groups of the one before, got 12 devices above 8",
        ),
        (
            {"levels": [{"devices": 8, "bandwidth_bytes_per_s": 0}]},
            r"levels\.0\.bandwidth_bytes_per_s: should be greater than 0, got 0",
        ),
        (
            {"levels": [{"devices": 8, "bandwidth_bytes_per_s": 1.0, "sustained": 1.5}]},
            r"levels\.0\.sustained: should be less than or equal to 1, got 1\.5",
        ),
    ],
)
def test_a_mistake_in_a_cluster_is_one_clear_message(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    fields = {"device": "a100-80gb", "levels": [{"devices": 8, "bandwidth_bytes_per_s": 1.0}], **change}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises(PhazeError, match=message):
        load_cluster(str(path))
