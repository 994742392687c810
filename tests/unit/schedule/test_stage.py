"""The stage in the workflow: tables in, tables out, the same bytes with any cache."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze import tables
from phaze.base.store import Store
from phaze.schedule import bounds
from phaze.schedule.graphs import LayerSchedule
from phaze.schedule.stage import read_cases, schedule_layers
from phaze.schedule.verify import find_faults
from phaze.spec.settings import ScheduleSettings
from phaze.tables.columns import ENERGIES
from tests.unit.schedule.random_layers import transformer_graph

Inputs = tuple[pd.DataFrame, ...]
Results = tuple[pd.DataFrame, pd.DataFrame]
POINT = {"model": "toy", "layout": "tp2-b1"}
SETTINGS = ScheduleSettings(solver=("highs",), node_limit=10, wall_limit_s=100.0)
KINDS = {"forward": "forward", "backward": "split"}


@pytest.fixture(scope="module", autouse=True)
def few_barriers() -> Iterator[None]:
    """Limit the list of barriers, so that a layer with weight gradients needs a program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "MAX_STEPS", 20000)
        bounds.blocks_of.cache_clear()
        yield
    bounds.blocks_of.cache_clear()


def make_operators() -> Results:
    """Return tables operators and edges of one transformer layer with separate weight gradients."""
    operators, edges = [], []
    for direction, kind in KINDS.items():
        core, links = transformer_graph(kind)
        frame = pd.DataFrame({"core": core, "operator": range(len(core))})
        work = frame["operator"] + 100 * (direction == "backward")
        frame["work"] = np.where(frame["core"] == "none", -1, work)
        operators.append(frame.assign(direction=direction))
        edges.append(pd.DataFrame(links, columns=["source", "target"]).assign(direction=direction))
    sizes = [f"{part}_bytes" for part in ("input", "parameter", "output", "stashed")]
    numbers = dict.fromkeys(("tensor_flops", "vector_flops", *sizes), 0.0)
    all_operators = pd.concat(operators).assign(**POINT, layer="block", name="x", attention=False, **numbers)
    all_edges = pd.concat(edges).assign(**POINT, layer="block", bytes=1.0)
    return tables.Operators.check(all_operators), tables.Edges.check(all_edges)


def make_architectures() -> pd.DataFrame:
    """Return three architectures: two with the same cores, which differ in the global buffer alone."""
    designs = {"tensor_design": [0, 3, 3], "vector_design": [1, 4, 4], "fused_design": [2, 5, 5]}
    cores = {"num_tc": [4, 1, 1], "num_vc": [8, 2, 2]}
    return pd.DataFrame({"architecture": ["wide", "narrow", "narrow-too"], **cores, **designs, "shard": "s"})


def make_estimates(operators: pd.DataFrame) -> pd.DataFrame:
    """Return estimates of every work on every design of its core type."""
    rng = np.random.default_rng(0)
    rows = []
    designs = {"tensor": (0, 3), "vector": (1, 4), "fused": (2, 5), "network": (1, 4)}
    for work, core in operators.loc[operators["core"] != "none", ["work", "core"]].itertuples(index=False):
        for design, cores in zip(designs[core], (4, 1) if core == "tensor" else (8, 2), strict=True):
            every = rng.uniform(1e-5, 1e-4) if core != "vector" else rng.uniform(1e-6, 1e-5)
            one = every * (1 + (cores - 1) * rng.uniform(0.3, 1.0))
            energies = {f"{part}{which}_j": rng.random() for part in ENERGIES for which in ("", "_all")}
            moved = {column: rng.random() for column in ("hbm_bytes", "hbm_all_bytes")}
            latencies = {"latency_s": one, "latency_all_s": every}
            rows.append({"work": work, "design": design, **latencies, **energies, **moved})
    return pd.DataFrame(rows).assign(**POINT)


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """Return tables operators, edges, estimates, architectures and screens; one architecture is not kept."""
    operators, edges = make_operators()
    names, kept = np.repeat(["wide", "narrow", "narrow-too"], 2), [False, True, True, True, False, False]
    screens = pd.DataFrame({"architecture": names, "hbm_gib": [32.0, 80.0] * 3, "kept": kept})
    return operators, edges, make_estimates(operators), make_architectures(), screens


@pytest.fixture(scope="module")
def results(inputs: Inputs) -> Results:
    """Return tables solves and schedules."""
    return schedule_layers(*inputs, SETTINGS, Store())


@pytest.mark.solver
def test_results_are_tables(results: Results) -> None:
    """Columns, types, ranges and rules are validated."""
    solves, schedules = results
    assert len(tables.Solves.check(solves)) == 4
    assert len(tables.Schedules.check(schedules)) == 2 * (31 + 38)


@pytest.mark.solver
def test_energy_and_traffic_of_a_layer_are_those_of_its_operators_as_scheduled(
    results: Results, inputs: Inputs
) -> None:
    """On one core or on all, on the design of the core type; no-ops are free."""
    solves, schedules = results
    operators, _, estimates, chips, _ = inputs
    works = operators.set_index(["direction", "operator"])["work"]
    figures = estimates.set_index(["work", "design"])
    designs = chips.set_index("architecture")
    assert set(schedules["core"] < 0) == {False, True}, "some run on one core, some on all"
    for _, solve in solves.iterrows():
        same = (schedules[["architecture", "direction"]] == solve[["architecture", "direction"]]).all(axis=1)
        mine, spent = schedules[same & (schedules["resource"] != "none")], np.zeros(2)
        for _, row in mine.iterrows():
            core = "vector" if row["resource"] == "network" else row["resource"]
            design = designs.loc[row["architecture"], f"{core}_design"]
            figure = figures.loc[(works[row["direction"], row["operator"]], design)]
            hbm = "hbm_all" if row["core"] < 0 else "hbm"
            spent += figure[[f"{hbm}_j", f"{hbm}_bytes"]].to_numpy(float)
        assert solve[["hbm_j", "hbm_bytes"]].to_numpy(float) == pytest.approx(spent)


@pytest.mark.solver
def test_only_kept_architectures_are_scheduled(results: Results) -> None:
    """One kept HBM size is enough."""
    for frame in results:
        assert set(frame["architecture"]) == {"wide", "narrow"}


@pytest.mark.solver
def test_schedules_can_be_executed(results: Results, inputs: Inputs) -> None:
    """Read back from the table, every schedule passes the verifier and takes the time stated in solves."""
    solves, schedules = (frame.set_index(["architecture", "direction"]) for frame in results)
    for case in read_cases(*inputs[:4], overlap_communication=False):
        key = case.key[2], case.key[4]
        if key not in solves.index:
            continue
        rows = schedules.loc[[key]].sort_values("operator")
        schedule = LayerSchedule(*(rows[name].to_numpy() for name in ("start_s", "end_s", "core")))
        assert find_faults(case.layer, schedule) == ()
        assert schedule.latency_s == solves.loc[key, "objective_s"]
        assert tuple(rows["resource"]) == case.layer.core


@pytest.mark.solver
def test_solves_say_how_each_layer_was_proven(results: Results) -> None:
    """Bounds prove the forward pass; the backward pass with its weight gradients needs a program."""
    solves = results[0].set_index(["direction", "architecture"]).sort_index()
    nobody = ["optimal", "bounds", "none", "none", "none"]
    proven_by = ["status", "method", "solver", "version", "formulation"]
    assert (solves.loc["forward", proven_by] == nobody).all(axis=None)
    assert (solves.loc["forward", ["components", "variables", "constraints"]] == 0).all(axis=None)
    wide = solves.loc[("backward", "wide")]
    assert tuple(wide[["method", "solver", "formulation", "components"]]) == ("program", "highs", "sparse", 1)
    assert wide["variables"] > 100
    assert (solves["bound_s"] <= solves["objective_s"]).all()
    assert (solves["objective_s"] <= solves["all_cores_s"] * (1 + 1e-9)).all()
    assert (solves["gap"] < 0.1).all()


@pytest.mark.solver
def test_the_store_changes_no_result(inputs: Inputs, results: Results, tmp_path: Path) -> None:
    """Fresh, cached and re-read: the same tables to the last bit."""
    for _ in range(2):
        for found, fresh in zip(schedule_layers(*inputs, SETTINGS, Store(tmp_path)), results, strict=True):
            pd.testing.assert_frame_equal(found, fresh, check_exact=True)
    assert len(list(tmp_path.rglob("*.json"))) == (results[0]["method"] == "program").sum()


@pytest.mark.solver
def test_the_log_counts_what_decided_components(inputs: Inputs, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "phaze"):
        solves, _ = schedule_layers(*inputs, SETTINGS, Store())
    told = next(text for text in reversed(caplog.messages) if "components" in text)
    assert told.endswith(f" by bounds, {(solves['method'] == 'program').sum()} by program")


@pytest.mark.solver
def test_equal_layers_of_other_architectures_and_models_are_not_solved_again(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An architecture with the same latencies, and a model with the same layer, reuse the solutions."""
    schedule_layers(*inputs, SETTINGS, Store(tmp_path))
    monkeypatch.setattr("phaze.schedule.program.solve", lambda *_, **__: pytest.fail("a program was solved"))
    operators, edges, estimates, architectures, screens = inputs
    renamed = [frame.assign(model="other") for frame in (operators, edges, estimates)]
    solves, _ = schedule_layers(*renamed, architectures, screens.assign(kept=True), SETTINGS, Store(tmp_path))
    assert set(solves["architecture"]) == {"wide", "narrow", "narrow-too"}


@pytest.mark.slow
@pytest.mark.solver
def test_communication_may_overlap(inputs: Inputs, results: Results) -> None:
    """Then no layer takes longer, and some all-reduce overlaps with a weight gradient."""
    settings = SETTINGS.model_copy(update={"overlap_communication": True})
    apart = results[0]
    beside, schedules = schedule_layers(*inputs, settings, Store())
    assert (beside["bound_s"] <= apart["objective_s"]).all()
    assert (beside["objective_s"] < apart["objective_s"] * (1 - 1e-9)).any()
    network = schedules[schedules["resource"] == "network"]
    assert (network["core"] == 0).any()


def test_no_kept_architecture_makes_empty_tables(inputs: Inputs) -> None:
    """A shard without kept architectures is not an error."""
    screens = inputs[4].assign(kept=False)
    solves, schedules = schedule_layers(*inputs[:4], screens, SETTINGS, Store())
    assert len(tables.Solves.check(solves)) == len(tables.Schedules.check(schedules)) == 0


def test_without_any_solver_layers_are_still_scheduled(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Components with open bounds keep their gap, and the tables state the missing proof."""
    monkeypatch.setattr("phaze.solver.programs.HighsBackend.version", lambda _: None)
    solves, _ = schedule_layers(*inputs, SETTINGS, Store())
    wide = solves[(solves["direction"] == "backward") & (solves["architecture"] == "wide")].iloc[0]
    assert (wide["status"], wide["method"], wide["solver"]) == ("feasible", "program", "none")
    assert 0 < wide["gap"] < 0.2
