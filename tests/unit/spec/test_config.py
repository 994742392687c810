"""Every mistake in a study gives one message with file, key, value and what is allowed, before any job
runs.
"""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from snakemake.utils import update_config

from phaze.base.errors import PhazeError
from phaze.spec.architecture import Architecture
from phaze.spec.config import check_config_files, load_settings
from phaze.spec.files import FOLDER
from phaze.spec.names import MOST
from phaze.spec.planning import Clusters
from phaze.spec.study import ScenarioChoice
from phaze.spec.system import Cluster, Scenario
from phaze.spec.systems import load_device
from phaze.spec.topology import LevelTopology
from tests.studies import study_settings

Config = dict[str, object]
Change = Callable[[Config], object]

TWICE = {"hbm_bandwidth_factor": 2, "hbm_bandwidth_bytes_per_s": 1e12}
STUDIES = sorted((FOLDER / "studies").glob("*.yaml"))


@pytest.fixture(name="config")
def study_of_the_paper_space() -> Config:
    return study_settings("phaze-space")


def put(path: str, value: object) -> Change:
    """Return a change that sets a key, given with dots between sections."""

    def change(config: Config) -> None:
        *sections, key = path.split("/")
        section = config
        for name in sections:
            section = section.setdefault(name, {})  # type: ignore[assignment]
        section[key] = value

    return change


def walk_without_grid(config: Config) -> None:
    put("architectures/grid", None)(config)
    put("screen/strategy", "hysteresis")(config)


def test_the_space_of_the_paper_has_68_layouts(config: Config) -> None:
    settings = load_settings(config)
    assert sum(len(settings.layouts(model)) for model in settings.study.models) == 68
    assert settings.shards == ("small-buffer",)


def test_named_architectures_are_in_the_first_shard_of_the_grid(config: Config) -> None:
    """In their own shards they would double the number of jobs; without a grid each has one."""
    put("architectures/grid", {"glb_mib": [64, 256]})(config)
    settings = load_settings(config)
    assert settings.shards == ("small-buffer", "large-buffer")
    members = [settings.members(shard).get("named", []) for shard in settings.shards]
    assert [list(chips) for chips in members] == [list(settings.architectures), []]
    assert settings.named_shards == ()
    put("architectures/grid", None)(config)
    settings = load_settings(config)
    assert settings.shards == tuple(f"named-{name}" for name in settings.architectures)
    for name in settings.architectures:
        assert list(settings.members(settings.shard_of(name))["named"]) == [name]


def test_a_shard_depends_on_what_its_architecture_lacks(config: Config) -> None:
    """Sizes, clock and bandwidth of the study are for architectures that have none of their own."""
    put("architectures/grid", None)(config)
    put("training/hbm_gib", [48, 96])(config)
    settings = load_settings(config)
    scenario = next(iter(settings.scenarios))
    network = {"network_bandwidth_bytes_per_s", "all_reduce_factor"}
    speeds = {"clock_hz", "hbm_bandwidth_bytes_per_s"}
    for name, chip in settings.architectures.items():
        shard = settings.shard_of(name)
        assert settings.sizes_of(shard) == ((chip.hbm_gib,) if chip.hbm_gib else (48, 96))
        missing = {key for key in speeds if not getattr(chip, key)} | {"bytes_per_element"}
        assert settings.hardware(scenario, shard, collectives=False).keys() == missing
        assert settings.hardware(scenario, shard).keys() == missing | network
    assert settings.hardware(scenario).keys() == speeds | network | {"bytes_per_element"}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_that_comes_with_phaze_is_valid(config: Config, path: Path) -> None:
    load_settings(merged(config, yaml.safe_load(path.read_text())), source=str(path))


def merged(base: Config, over: Config) -> Config:
    """Settings of a study and changes to them, merged by Snakemake."""
    settings = copy.deepcopy(base)
    update_config(settings, over)
    return settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("modles", []), r"study\.yaml: modles: is not a known key, got \[\]"),
        (put("models", []), r"study\.yaml: models: list at least one model"),
        (put("models", ["bert-large", "bert-large"]), "'bert-large' is given twice"),
        (put("models", ["bert-huge"]), "models: 'bert-huge' is not among"),
        (put("training/microbatches", [0]), r"training\.microbatches\.0: should be greater than 0, got 0"),
        (put("training/microbatches", [3]), "3 does not divide scenarios.tpu-v4-pod.global_batch 4096"),
        (put("training/hbm_gib", ["much"]), r"training\.hbm_gib\.0: must be a number.*got 'much'"),
        (put("training/hbm_gib", [-1]), r"training\.hbm_gib\.0: should be greater than 0, got -1"),
        (put("training/optimizer", "lion"), r"training\.optimizer: should be 'adam'.*got 'lion'"),
        (put("training/schedule", "zero-bubble"), r"training\.schedule: should be '1f1b' or 'gpipe'"),
        (
            put("schedule/solver", ["gurobi"]),
            r"schedule\.solver\.0: should be 'glpk' or 'highs', got 'gurobi'",
        ),
        (walk_without_grid, r"screen\.strategy: hysteresis needs a grid"),
        (put("schedule/solver", []), r"schedule\.solver: .*at least 1 item"),
        (put("scenarios/tpu-v4-pod/system", "moon"), r"systems/moon\.yaml: there is no system 'moon'"),
        (put("scenarios/tpu-v4-pod/devices", 0), r"scenarios\.tpu-v4-pod\.devices.*greater than 0, got 0"),
        (put("scenarios/tpu-v4-pod/area_limit_mm2", "tpu-v9"), "'tpu-v9' is not among architectures.named"),
        (put("scenarios/Paper", {}), r"scenarios\.Paper.*should match pattern"),
        (
            put("architectures/named", ["tpu-v4-as-built", "tpu-v4", "tpu-v9"]),
            "no architecture 'tpu-v9'; did you mean tpu-v",
        ),
        (put("architectures/grid", {"pe_x": [0]}), r"grid\.pe_x\.0: should be greater than 0, got 0"),
        (put("architectures/grid", {"pe_x": [2, 2]}), "pe_x: 2 is given twice"),
        (
            put("architectures/baseline", "phaze-per-model"),
            "'phaze-per-model' is not among architectures.named",
        ),
        (
            put("workloads/gpt2-xl/model", "gpt5"),
            r"models/gpt5\.yaml: there is no model 'gpt5'; did you mean gpt",
        ),
        (put("workloads/gpt2-xl/model", "no/such/config.json"), r"no/such/config\.json: cannot be read"),
        (put("workloads/gpt2-xl/tensor", [3]), r"workloads\.gpt2-xl: tensor: 3 must be > 0 and divide heads"),
        (put("workloads/gpt2-xl/sequence", 4096), r"sequence: 4096 must be > 0 and at most position_count"),
        (
            put("workloads/gpt2-xl/sequence", "long"),
            r"workloads\.gpt2-xl\.sequence: must be a whole number",
        ),
        (
            put("report/sensitivity", {"x": {"clock": 1}}),
            r"report\.sensitivity\.x\.clock: is not a known key",
        ),
        (put("report/sensitivity", {"x": {}}), r"report\.sensitivity\.x: give a factor or a bandwidth"),
        (put("report/sensitivity", {"x": TWICE}), "give hbm_bandwidth_factor or hbm_.*_per_s, not both"),
    ],
)
def test_a_mistake_is_one_clear_message(config: Config, change: Change, message: str) -> None:
    change(config)
    with pytest.raises(PhazeError, match=message):
        load_settings(config, source="study.yaml")


LONG = "x" * 5000
PLACES = (
    "workloads/gpt2-xl/model", "scenarios/tpu-v4-pod/system", "architectures/technology",
    "architectures/baseline", "report/published", "plans/folder",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [LONG, f"{LONG}.yaml", f"a/{LONG}", "a\0b", ""], ids=["long", "yaml", "path", "nul", "none"]
)
@pytest.mark.parametrize("place", PLACES)
def test_names_that_no_file_can_have_are_one_message(config: Config, place: str, name: str) -> None:
    put(place, name)(config)
    with pytest.raises(PhazeError, match=place.rpartition("/")[2]) as error:
        load_settings(config, source="study.yaml")
    assert len(str(error.value)) < 1000
    assert "\n" not in str(error.value)


def test_keys_that_no_file_can_have_are_one_message(config: Config) -> None:
    for section in ("workloads", "scenarios", "report/sensitivity", "plans/inputs", "plans/cases"):
        changed = copy.deepcopy(config)
        put(f"{section}/{LONG}", {})(changed)
        with pytest.raises(PhazeError, match=r"study\.yaml: .*x\.\.\.") as error:
            load_settings(changed, source="study.yaml")
        assert all(len(line) < 500 for line in str(error.value).splitlines())


PLANNED = {"label": "A", "own": {"workload": "gpt2-xl", "microbatch": 1, "architecture": "tpu-v4"}}
CASE = {"input": "a", "show": "table", "clusters": [{"devices": [1], "memory_gib": [1]}], "microbatches": [1]}


@pytest.mark.parametrize("name", ["a{case}.json", "{input}", "<results>.json", "}a"])
@pytest.mark.parametrize(
    ("key", "about"),
    [("plans/inputs/a/file", r"plans\.inputs\.a\.file"), ("plans/folder", r"plans\.folder"),
     ("workloads/gpt2-xl/model", r"workloads\.gpt2-xl\.model"),
     ("scenarios/tpu-v4-pod/system", r"scenarios\.tpu-v4-pod\.system")],
)  # fmt: skip
def test_what_the_workflow_would_fill_in_is_no_path(
    config: Config, tmp_path: Path, key: str, about: str, name: str
) -> None:
    """Snakemake takes `a{case}.json` for a pattern: it would plan the file `abars.json` next to it."""
    inputs = {"a": {**PLANNED, "file": "a.json"}}
    put("plans", {"folder": str(tmp_path), "inputs": inputs, "cases": {"bars": CASE}})(config)
    put(key, name)(config)
    for file in ("a.json", "abars.json", "a{case}.json"):
        (tmp_path / file).write_text("{}")
    with pytest.raises(
        PhazeError, match=rf"^study\.yaml: {about}: .*should match pattern .*, got '{re.escape(name)}'$"
    ):
        load_settings(config, source="study.yaml")


def test_two_architectures_of_one_name_are_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = yaml.safe_load((FOLDER / "architectures/phaze-common.yaml").read_text()) | {"name": "tpu-v4"}
    folder = FOLDER.resolve()
    monkeypatch.chdir(tmp_path)
    Path("evil.yaml").write_text(yaml.safe_dump(fields))
    put("architectures/named", ["tpu-v4-as-built", "tpu-v4", "evil.yaml"])(config)
    with pytest.raises(
        PhazeError, match=r"^study\.yaml: architectures\.named: 'tpu-v4' and 'evil\.yaml' are both named"
    ):
        load_settings(config, folder, source="study.yaml")


def test_every_place_allows_as_many_devices() -> None:
    cluster = {"device": "a100-80gb", "levels": [{"devices": MOST + 1, "bandwidth_bytes_per_s": 1e9}]}
    level = {"kind": "levels", "levels": [{"devices": MOST + 1, "bandwidth_gib_per_s": 1}]}
    plans = {"devices": [MOST + 1], "memory_gib": [1]}
    nouns = ((Scenario, {"devices": MOST + 1}), (ScenarioChoice, {"devices": MOST + 1}), (Cluster, cluster),
             (LevelTopology, level), (Clusters, plans))  # fmt: skip
    for noun, fields in nouns:
        with pytest.raises(
            PhazeError, match=rf"devices.*: should be less than or equal to {MOST}, got {MOST + 1}\b"
        ):
            noun.parse(fields, "x.yaml")


def test_a_removed_key_says_what_replaces_it(config: Config) -> None:
    put("report/maps", {"systems": ["tpu-v4"]})(config)
    with pytest.raises(PhazeError, match=r"report: maps: was removed: write a plan with `phaze place -o"):
        load_settings(config)


def test_graphs_of_maps_take_k_from_their_models(config: Config) -> None:
    graph = {"label": "ResNet", "microbatch": 1, "system": "titan-v-ethernet"}
    config["maps"] = {"graphs": {"net": {**graph, "model": "resnet-152"}}}
    assert load_settings(config).study.maps.graphs["net"].hyper_operators == 32
    config["maps"] = {"graphs": {"net": {**graph, "model": "resnet-50"}}}
    with pytest.raises(PhazeError, match=r"graphs\.net\.hyper_operators: must be given: model resnet-50"):
        load_settings(config)


def test_a_key_given_twice_is_refused_where_snakemake_keeps_the_last(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("models: [a]\nmodels: [b]\n")
    with pytest.raises(PhazeError, match=r"study\.yaml: is not valid YAML: key 'models' is given twice"):
        check_config_files([study])
    study.write_text("models: [b]\n")
    assert check_config_files(["/x/snakemake-runtime-cache/config.yaml", study]) == [study]


@pytest.mark.parametrize(
    "scenario",
    [{"system": "paper"}, {"system": "h100", "network_bandwidth_bytes_per_s": 50e9}, {"system": "tpu-v4"}],
)
def test_half_and_double_are_those_of_the_study_s_own_system(config: Config, scenario: Config) -> None:
    put("scenarios", {"mine": scenario})(config)
    settings = load_settings(config)
    unvaried, varied = settings.scenarios["mine"], settings.variations("mine")
    hbm, network = unvaried.hbm_bandwidth_bytes_per_s, unvaried.network_bandwidth_bytes_per_s
    assert varied["hbm-double"] == {"hbm_bandwidth_bytes_per_s": 2 * hbm}
    assert varied["hbm-half"] == {"hbm_bandwidth_bytes_per_s": hbm / 2}
    assert varied["network-tenfold"] == {"network_bandwidth_bytes_per_s": 10 * network}


def test_a_variation_may_also_give_a_bandwidth(config: Config) -> None:
    factors = {"hbm_bandwidth_bytes_per_s": 3e12, "network_bandwidth_factor": 2}
    put("report/sensitivity", {"x": factors})(config)
    settings = load_settings(config)
    network = settings.scenarios["tpu-v4-pod"].network_bandwidth_bytes_per_s
    assert settings.variations("tpu-v4-pod") == {
        "x": {"hbm_bandwidth_bytes_per_s": 3e12, "network_bandwidth_bytes_per_s": 2 * network}
    }


def test_scenarios_with_equal_hardware_share_their_estimates(config: Config) -> None:
    config["scenarios"] = {
        "paper": {"system": "paper"},
        "half-devices": {"system": "paper", "devices": 512},
        "fast-memory": {"system": "paper", "hbm_bandwidth_bytes_per_s": 3e12},
    }
    settings = load_settings(config)
    assert settings.estimates_of("half-devices") == "paper"
    assert settings.estimates_of("fast-memory") == "fast-memory"


def test_a_scenario_that_is_null_is_left_out(config: Config) -> None:
    """Snakemake merges a study into the default study's scenarios, which it may not want."""
    over = {"scenarios": {"tpu-v4-pod": None, "small": {"system": "paper", "devices": 8}}}
    assert list(load_settings(merged(config, over)).scenarios) == ["small"]
    put("scenarios/small", None)(over)
    with pytest.raises(PhazeError, match=r"scenarios: .*at least 1 item"):
        load_settings(merged(config, over), source="study.yaml")


def test_the_baseline_is_tpu_v4_as_it_is_built(config: Config) -> None:
    """With the sizes of the device, for runs and maps; the paper's model of it is the area limit."""
    settings = load_settings(config)
    built = settings.architectures[str(settings.study.architectures.baseline)]
    device = load_device("tpu-v4-as-built")
    for name in Architecture.model_fields:
        assert getattr(built, name) == getattr(device, name), name
    scenario = settings.scenarios["tpu-v4-pod"]
    for name in ("clock_hz", "hbm_bandwidth_bytes_per_s"):
        assert getattr(scenario, name) == getattr(device, name)
    assert settings.area_limit("tpu-v4-pod") == settings.architectures["tpu-v4"].model_dump(mode="json")
    torus = Cluster.from_file(FOLDER / "systems/tpu-v4.yaml")
    assert scenario.network_bandwidth_bytes_per_s <= torus.levels[0].bandwidth_bytes_per_s
