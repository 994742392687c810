"""Systems of devices with network levels."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.plan.machines import load_machine
from phaze.spec.files import FOLDER
from phaze.spec.system import Cluster
from phaze.spec.systems import (
    flat_scenario,
    load_cluster,
    load_device,
    runtime_for,
    sized,
    stack_for,
)

PEAK_FLOPS = {
    "a100-40gb": 312e12, "a100-80gb": 312e12, "h100-80gb": 989e12, "h200": 989e12, "b200": 2.25e15,
    "mi300x": 1307e12, "tpu-v4-as-built": 275e12, "tpu-v5e": 197e12, "tpu-v5p": 459e12,
}  # fmt: skip
"""Dense 16-bit products, from data sheets."""


INNER, OUTER = ({"devices": number, "bandwidth_bytes_per_s": 1.0} for number in (8, 64))
CARDS = {"nics_per_node": 4, "nic_bytes_per_s": 4e10}
"""Network cards shared by eight devices of a node."""


@pytest.mark.parametrize("name", sorted(PEAK_FLOPS))
def test_a_device_by_the_template_has_the_published_peak(name: str) -> None:
    device = load_device(name)
    units = device.num_tc * device.pe_x * device.pe_y
    assert 2 * units * device.clock_hz == pytest.approx(PEAK_FLOPS[name], rel=0.005)


def test_a_system_with_levels_is_a_flat_one_for_the_planners_only_with_the_bandwidth_that_is_given() -> None:
    cluster, device = load_cluster("a100-selene")
    flat = flat_scenario("a100-selene", flat=40e9)
    assert flat.devices == cluster.devices
    assert flat.network_bandwidth_bytes_per_s == 40e9
    assert flat.hbm_bandwidth_bytes_per_s == device.hbm_bandwidth_bytes_per_s
    with pytest.raises(PhazeError, match=r"levels with 3e\+11, 2\.5e\+10 bytes/s.*--flat-bandwidth"):
        flat_scenario("a100-selene")


def test_shares_of_network_cards_are_those_of_numbers_also_in_text() -> None:
    """YAML 1.1 takes 50e9 as text."""
    inner = {"devices": 8, "bandwidth_bytes_per_s": "450e9"}
    for cards in (CARDS, {"nics_per_node": 4, "nic_bytes_per_s": "40e9"}):
        cluster = Cluster.parse({"device": "h100-80gb", "levels": [inner, {"devices": 256, **cards}]}, "test")
        assert cluster.levels[1].bandwidth_bytes_per_s == 4 * 40e9 / 8


def test_a_system_of_one_level_is_a_flat_one() -> None:
    """With the all-reduce factor of its shares: 2, and 4 where collectives reach half of what messages do."""
    pod, paper = flat_scenario("tpu-v4"), flat_scenario("paper", flat=1e9)
    assert (pod.network_bandwidth_bytes_per_s, pod.all_reduce_factor) == (300e9, 2)
    assert (paper.network_bandwidth_bytes_per_s, paper.all_reduce_factor) == (1e9, 4)


def test_a_file_of_a_flat_network_says_how_it_is_written_as_a_level(tmp_path: Path) -> None:
    path = tmp_path / "flat.yaml"
    path.write_text("devices: 8\nnetwork_bandwidth_bytes_per_s: 1.0e+9\n")
    for load in (load_cluster, flat_scenario, load_machine):
        with pytest.raises(PhazeError, match=r"flat\.yaml: network_bandwidth_bytes_per_s: .* give a device"):
            load(str(path))


def test_a_system_without_a_stack_has_that_of_its_device_or_of_megatron_core(
    tmp_path: Path, project_root: Path
) -> None:
    text = (project_root / "config/systems/h100.yaml").read_text()
    path = tmp_path / "own.yaml"
    path.write_text(text.replace("stack: megatron-bridge\n", ""))
    assert load_cluster(str(path))[0].stack == "megatron-core"
    assert load_machine(str(path)).stack.name == "megatron-core"
    assert load_cluster("tpu-v4")[0].stack == "maxtext"
    assert (runtime_for("h100"), runtime_for("tpu-v4")) == ("megatron", "maxtext")
    with pytest.raises(PhazeError, match=r"runtime: must be maxtext on tpu-v4-as-built .*, got torchtitan"):
        runtime_for("tpu-v4", requested="torchtitan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"device": "a1000"},
            r"no device 'a1000'; did you mean a100-80gb or a100-40gb\? all \d+ are in config/devices",
        ),
        ({"levels": []}, "levels: .*at least 1 item"),
        (
            {"levels": [INNER, OUTER | {"port_devices": 2}]},
            "port_devices: was renamed to ring_port_devices; .*nics_per",
        ),
        (
            {"levels": [INNER, OUTER | CARDS]},
            r"levels\.1\.bandwidth_bytes_per_s: must not .* gets 2e\+10; got 1",
        ),
        ({"levels": [INNER | CARDS]}, r"levels\.0\.nics_per_node: needs an inner level"),
        ({"levels": [INNER, OUTER | {"nics_per_node": 2}]}, "nic_bytes_per_s must be given together"),
        ({"levels": [{"devices": 8}]}, r"levels\.0\.bandwidth_bytes_per_s: Field required"),
        (
            {"levels": [{"devices": n, "bandwidth_bytes_per_s": 1.0} for n in (8, 12)]},
            "must be a multiple of those of the level before, got 12 above 8",
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


def test_a_system_grows_on_its_outermost_level_and_shrinks_to_the_levels_that_are_needed() -> None:
    cluster, _ = load_cluster("h100")
    for devices, widths in {
        16384: [8, 16384], 6144: [8, 6144], 64: [8, 64], 16: [8, 16], 8: [8], 4: [4], 3: [3], 1: [1],
    }.items():  # fmt: skip
        other = sized(cluster, devices, "h100")
        assert [level.devices for level in other.levels] == widths
        assert [level.bandwidth_bytes_per_s for level in other.levels] == [450e9, 50e9][: len(widths)]
    assert sized(sized(cluster, 16384, "h100"), 6144, "h100") == cluster


def test_racks_have_equal_parts_in_use_where_a_number_does_not_fill_them() -> None:
    rack, _ = load_cluster("gb300")
    for devices, widths in {256: [64, 256], 144: [72, 144], 136: [68, 136], 64: [64]}.items():
        assert [level.devices for level in sized(rack, devices, "gb300").levels] == widths
    with pytest.raises(PhazeError, match=r"gb300: devices must be a multiple of 72, .* got 100"):
        sized(rack, 100, "gb300")


def test_a_part_of_a_torus_has_levels_alone() -> None:
    pod, _ = load_cluster("tpu-v4")
    part = sized(pod, 512, "tpu-v4")
    assert (part.devices, part.torus) == (512, None)
    assert sized(pod, 4096, "tpu-v4").torus is not None


@pytest.mark.parametrize(
    ("system", "devices", "message"),
    [
        ("h100", 12, "h100: devices must be a multiple of 8, whole groups of a level, got 12"),
        ("h100", 16380, "h100: devices must be a multiple of 8, whole groups of a level, got 16380"),
        ("h100", 0, "h100: devices must be >= 1, got 0"),
        ("tpu-v4", 8192, "tpu-v4: devices must be at most 4096, as it is a torus, got 8192"),
    ],
)
def test_devices_that_a_system_cannot_have_are_refused(system: str, devices: int, message: str) -> None:
    with pytest.raises(PhazeError, match=f"^{message}$"):
        sized(load_cluster(system)[0], devices, system)


def test_one_level_cannot_grow() -> None:
    node = sized(load_cluster("h100")[0], 8, "h100")
    with pytest.raises(
        PhazeError, match="node: devices must be at most 8, as it is one level, with no network"
    ):
        sized(node, 16, "node")


def test_a_device_of_three_figures_is_filled_in_from_the_nearest_generation(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    figures = {"peak_flops_per_s": 1.0e15, "hbm_gib": 90, "hbm_bandwidth_bytes_per_s": 3.5e12}
    path.write_text(yaml.safe_dump(figures))
    device, near = load_device(str(path)), load_device("h100-80gb")
    assert {name: getattr(device, name) for name in figures} == pytest.approx(figures)
    assert (device.name, device.assumed_from) == ("own", near.name)
    assert (device.products, device.attention) == (near.products, near.attention)
    path.write_text(yaml.safe_dump(figures | {"like": "b200", "kernel_s": 0.0}))
    assert (load_device(str(path)).assumed_from, load_device(str(path)).kernel_s) == ("b200", 0.0)
    for change, message in (
        ({"clock_hz": 1e9}, "clock_hz: must not be given together with peak_flops_per_s"),
        ({"hbm_gib": -1}, "hbm_gib: should be greater than 0"),
        ({"colour": "red"}, "colour: is not a known key"),
    ):
        path.write_text(yaml.safe_dump(figures | change))
        with pytest.raises(PhazeError, match=message):
            load_device(str(path))


def test_devices_that_are_like_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    figures = {"peak_flops_per_s": 1.0e15, "hbm_gib": 90, "hbm_bandwidth_bytes_per_s": 3.5e12}
    for name, like in (("a", "b"), ("b", "c"), ("c", "b")):
        (tmp_path / f"devices/{name}.yaml").write_text(yaml.safe_dump(figures | {"like": like}))
    with pytest.raises(PhazeError, match=r"b\.yaml: like: .* got the circle b -> c -> b$"):
        load_device("a", tmp_path)


def test_a_device_of_three_figures_may_lie_with_the_others(tmp_path: Path) -> None:
    """It is not a candidate for the nearest device, not even its own."""
    (tmp_path / "devices").mkdir()
    copy(FOLDER / "devices/h100-80gb.yaml", tmp_path / "devices")
    for name, peak in (("mine", 150e12), ("yours", 160e12)):
        figures = {"peak_flops_per_s": peak, "hbm_gib": 96, "hbm_bandwidth_bytes_per_s": 4.0e12}
        (tmp_path / f"devices/{name}.yaml").write_text(yaml.safe_dump(figures))
    assert load_device("mine", tmp_path).assumed_from == "h100-80gb"


def test_templates_are_a_system(project_root: Path) -> None:
    cluster, device = load_cluster(str(project_root / "config/templates/system.yaml"))
    assert cluster.levels[1].bandwidth_bytes_per_s == 4 * 50e9 / 8
    assert device.assumed_from is not None


def test_a_runtime_has_the_stack_of_the_system_that_belongs_to_it() -> None:
    """By its name or its file, as the default or for this runtime; else the usual one."""
    mi300x, h100 = (load_cluster(name)[0] for name in ("mi300x", "h100"))
    assert stack_for(mi300x, "torchtitan") == "torchtitan"
    assert stack_for(mi300x, "megatron") == "primus"
    turned = mi300x.model_copy(update={"stack": "torchtitan", "stacks": ("primus",)})
    assert stack_for(turned, "megatron") == "primus"
    assert stack_for(turned.model_copy(update={"stacks": ()}), "megatron") == "megatron-core"
    assert hash(mi300x) == hash(load_cluster("mi300x")[0]), "caches have clusters as keys"
    assert stack_for(h100, "megatron") == "megatron-bridge"
    assert stack_for(h100, "torchtitan") == "torchtitan"
