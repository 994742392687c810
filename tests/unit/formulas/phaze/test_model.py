"""Placement tables from tables: every kept architecture at every HBM size, or the reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.base.units import GIB
from phaze.cost.space import OPTIONAL
from phaze.formulas.phaze.flush import Placement, place_chain
from phaze.formulas.phaze.model import place_model
from phaze.formulas.phaze.point import Conditions, read_point
from phaze.formulas.phaze.rows import PlacedStage, binding, stage_costs, time_parts
from phaze.layout import Layout
from phaze.spec.architecture import EnergyFigures
from phaze.spec.counts import TokenFlops
from phaze.spec.settings import Training
from phaze.spec.system import Scenario
from phaze.tables import Architectures, Placements, Screens, Solves, Stages
from phaze.tables.columns import SAMPLE_ENERGIES
from tests.unit.formulas.phaze.examples import ample_setting

NAMES = ("a0", "a1", "a2")
CONDITIONS = Conditions(
    Scenario(
        devices=16,
        global_batch=64,
        network_bandwidth_bytes_per_s=1e9,
        hbm_bandwidth_bytes_per_s=1.2e12,
        clock_hz=1e9,
        all_reduce_factor=2.0,
    ),
    Training(
        hbm_gib=(1.0, 2.0, 8.0),
        recompute=(False, True),
        optimizer="adam",
        precision="mixed",
        schedule="1f1b",
        gradients="every-stage",
    ),
    EnergyFigures(
        mac_j=1e-12,
        register_j_per_byte=1e-13,
        sram_j_per_byte={1: 1e-13, 2: 2e-13},
        hbm_j_per_byte=3e-11,
        link_j_per_byte=8e-11,
        leakage_w_per_mm2=0.15,
    ),
    sequence=128,
    flops_per_token=TokenFlops(needed=5e9, paper=6e9),
)
Placed = tuple[pd.DataFrame, pd.DataFrame]
Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]


def tables() -> Tables:
    """Return layers, graph, solves, architectures and screens of 10 blocks on three architectures."""
    point = {"model": "toy", "layout": "tp2-b2"}
    layers = pd.DataFrame(
        {
            **point,
            "layer": ["embedding", "block", "head"],
            "parameters": [30_000_000, 20_000_000, 30_000_000],
            "parameter_bytes": [6e7, 4e7, 6e7],
            **dict.fromkeys(("expert_parameters", "embedding_parameters", "tied_parameters"), 0),
            "attention_bytes": 0.0,
            "activation_bytes": [1e7, 1e8, 5e7],
            "input_bytes": [0.0, 1e7, 1e7],
            "output_bytes": [1e7, 1e7, 0.0],
            "tensor_parallel": True,
            "forward_tensor_flops": 1e12,
            "forward_vector_flops": 1e9,
            "operators": 12,
        }
    )
    graph = pd.DataFrame(
        {"model": "toy", "position": [2, 0, 1], "layer": ["head", "embedding", "block"], "count": [1, 1, 10]}
    )
    return layers, graph, solves(point), architectures(), screens(point)


def solves(point: dict[str, object]) -> pd.DataFrame:
    rows = [
        {
            **point | {"architecture": name, "layer": layer, "direction": direction, "status": "feasible"},
            "objective_s": base * (1 + a) * passes,
            "bound_s": (1 - 0.05 * a) * base * (1 + a) * passes,
            "gap": 0.05 * a,
            "mac_j": joules * passes,
        }
        for a, name in enumerate(NAMES)
        for layer, base, joules in (("embedding", 0.001, 1.0), ("block", 0.02, 2.0), ("head", 0.01, 4.0))
        for direction, passes in (("forward", 1), ("backward", 2))
    ]
    rest = {name: 0 for name in Solves.columns if name not in rows[0]}
    rest |= {"method": "program", "solver": "highs", "version": "1", "formulation": "sparse"}
    return Solves.check(pd.DataFrame(rows).assign(**{**rest, "z_needed": False}))


def architectures() -> pd.DataFrame:
    frame = Architectures.empty().reindex(range(4))
    sizes = {name: 2 for name, column in Architectures.columns.items() if column.dtype != "bool"}
    return Architectures.check(
        frame.assign(
            **sizes | dict.fromkeys(OPTIONAL, 0), shard="s", architecture=[*NAMES, "dropped"],
            area_interpolated=False, named=[True, False, False, False],
        )
    )  # fmt: skip


def screens(point: dict[str, object]) -> pd.DataFrame:
    bounds = point | {"lower_s": 1.0, "lower_j": 1.0, "feasible_s": 2.0}
    rows = [
        {
            **bounds | {"architecture": name, "hbm_gib": hbm, "recompute": recompute},
            "kept": name != "dropped" and hbm == 8.0,
        }
        for name in (*NAMES, "dropped")
        for hbm in CONDITIONS.training.hbm_gib
        for recompute in CONDITIONS.training.recompute
    ]
    return Screens.check(pd.DataFrame(rows))


@pytest.fixture(scope="module")
def placed() -> Placed:
    placements, stages = place_model(*tables(), CONDITIONS, Layout(pp=4, dp=2, tp=2))
    return Placements.check(placements), Stages.check(stages)


def test_every_kept_architecture_is_placed_with_and_without_recomputation(
    placed: Placed,
) -> None:
    ours = placed[0][placed[0]["planner"] == "phaze"]
    assert len(ours) == 3 * 3 * 2
    assert set(ours["architecture"]) == set(NAMES)


def test_an_architecture_with_its_own_hbm_is_placed_with_that_alone() -> None:
    """Also if the study considers no such size."""
    layers, graph, solved, chips, kept = tables()
    own = chips.assign(hbm_gib=np.where(chips["architecture"] == NAMES[0], 6.0, 0.0))
    expert = Layout(pp=4, dp=2, tp=2)
    found = place_model(layers, graph, solved, own, kept, CONDITIONS, expert)[0]
    mine = found["architecture"] == NAMES[0]
    assert set(found.loc[mine, "hbm_gib"]) == {6.0}
    assert set(found.loc[mine, "planner"]) == {"phaze", "expert", "expert-even"}
    six = replace(CONDITIONS, training=CONDITIONS.training.model_copy(update={"hbm_gib": (6.0,)}))
    every = place_model(layers, graph, solved, chips, kept, six, expert)[0]
    for rows, others in ((found[mine], every), (found[~mine], place_model(*tables(), CONDITIONS, expert)[0])):
        same = others[others["architecture"].isin(rows["architecture"])]
        pd.testing.assert_frame_equal(_sorted(rows), _sorted(same))


def _sorted(placements: pd.DataFrame) -> pd.DataFrame:
    keys = ["architecture", "planner", "hbm_gib", "recompute"]
    return placements.sort_values(keys, ignore_index=True)


def test_utilisation_is_of_the_peak_at_an_architectures_own_clock(placed: Placed) -> None:
    layers, graph, solved, chips, kept = tables()
    fast = chips.assign(clock_hz=2 * CONDITIONS.scenario.clock_hz)
    found = place_model(layers, graph, solved, fast, kept, CONDITIONS)[0]
    usual = placed[0][placed[0]["planner"] == "phaze"]
    assert _sorted(found)["mfu"].to_numpy() == pytest.approx(_sorted(usual)["mfu"].to_numpy() / 2)


def test_placements_are_those_of_the_dynamic_program_and_carry_the_bound(placed: Placed) -> None:
    layers, graph, solved, _, _ = tables()
    point = read_point(layers, graph, CONDITIONS)
    ours = placed[0][placed[0]["planner"] == "phaze"].set_index(["architecture", "hbm_gib", "recompute"])
    for setting in CONDITIONS.settings(Layout(microbatch=2)):
        for name in NAMES:
            row = ours.loc[(name, setting.memory_bytes / GIB, setting.recompute)]
            for column, value in (("time_per_batch_s", "objective_s"), ("bound_s", "bound_s")):
                one = solved[solved["architecture"] == name].set_index(["direction", "layer"])[value]
                latencies = (one[way][list(point.kinds)].to_numpy() for way in ("forward", "backward"))
                found = place_chain(point.runs.chain(*latencies), Layout(tp=2), setting)
                expected = found.time_s if isinstance(found, Placement) else np.inf
                assert row[column] == pytest.approx(expected, rel=1e-12)


def test_what_does_not_fit_is_a_row_with_the_limit_and_by_how_much(placed: Placed) -> None:
    rows = placed[0]
    tight = rows[(rows["hbm_gib"] == 1.0) & ~rows["recompute"] & (rows["planner"] == "phaze")]
    assert set(tight["status"]) == {"infeasible"}
    assert set(tight["binding"]) == {"memory"}
    assert tight["reason"].str.contains(r"given: .* too little").all()
    assert np.isinf(tight["time_per_batch_s"]).all()
    assert (tight["samples_per_s"] == 0).all()


def test_throughput_and_utilisation_follow_from_the_time(placed: Placed) -> None:
    rows = placed[0][placed[0]["status"] == "placed"]
    np.testing.assert_allclose(rows["samples_per_s"], 64 / rows["time_per_batch_s"])
    np.testing.assert_allclose(rows["tokens_per_s"], 128 * rows["samples_per_s"])
    peak = 16 * 2 * 2 * 2 * 2 * 1e9
    np.testing.assert_allclose(rows["mfu"], rows["tokens_per_s"] * 5e9 / peak)
    np.testing.assert_allclose(rows["mfu_paper"], rows["tokens_per_s"] * 6e9 / peak)


def test_energy_of_a_sample_is_the_sum_of_its_parts_counted_by_hand(placed: Placed) -> None:
    """Recomputation in all stages but the last, two tensor-parallel ranks, links, and leakage of 2 um2."""
    energy = {"embedding": 1.0, "block": 2.0, "head": 4.0}
    chain = ["embedding", *["block"] * 10, "head"]
    keys = list(Placements.keys)
    stages = placed[1].set_index(keys)
    rows = placed[0][placed[0]["status"] == "placed"].set_index(keys)
    assert rows["stages"].max() > 1
    for key, row in rows.iterrows():
        mine = stages.loc[[key]].sort_values("stage")
        again = mine["first_layer"].iloc[-1] if key[keys.index("recompute")] else 0
        spent = sum(energy[layer] * (3 + (i < again)) for i, layer in enumerate(chain)) * 2 / 2
        sent = 2 * 1e7 * 2 * (len(mine) - 1) / 2
        ring = 2 * (row["data"] - 1) * (mine["gradient_bytes"] * mine["devices"]).sum() / 64
        assert row["mac_j"] == pytest.approx(spent)
        assert row["link_j"] == pytest.approx(8e-11 * (sent + ring))
        device_s = row["devices_used"] * row["time_per_batch_s"]
        assert row["leakage_j"] == pytest.approx(1.5e-7 * 2 * device_s / 64)
    np.testing.assert_allclose(rows[[*SAMPLE_ENERGIES][1:]].sum(axis=1), rows["joules_per_sample"])
    assert np.isinf(placed[0].loc[placed[0]["status"] == "infeasible", "joules_per_sample"]).all()


def test_only_what_is_placed_has_stages_and_these_share_out_all_layers(placed: Placed) -> None:
    keys = list(Placements.keys)
    counted = placed[1].groupby(keys)["stage"].count().rename("counted")
    both = placed[0].set_index(keys).join(counted)
    assert (both["counted"].fillna(0) == both["stages"]).all()
    for _, rows in placed[1].groupby(keys):
        assert rows["first_layer"].iloc[0] == 0
        assert rows["last_layer"].iloc[-1] == 11
        assert (rows["first_layer"].to_numpy()[1:] == rows["last_layer"].to_numpy()[:-1] + 1).all()


def test_memory_and_load_of_a_stage_are_the_sums_of_their_parts(placed: Placed) -> None:
    rows = placed[1]
    parts = ["weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "stashed_bytes"]
    np.testing.assert_allclose(rows["memory_bytes"], rows[parts].sum(axis=1))
    np.testing.assert_allclose(rows["headroom_bytes"], rows["hbm_gib"] * GIB - rows["memory_bytes"])
    np.testing.assert_allclose(rows["load_s"], rows["forward_s"] + rows["backward_s"] + rows["transfer_s"])
    np.testing.assert_allclose(rows["optimizer_bytes"], 6 * rows["weight_bytes"])
    assert (rows["headroom_bytes"] >= 0).all()


def test_the_slowest_stage_has_the_load_of_the_placement(placed: Placed) -> None:
    keys = list(Placements.keys)
    slowest = placed[1].groupby(keys)["load_s"].max()
    stated = placed[0][placed[0]["status"] == "placed"].set_index(keys)["max_load_s"]
    np.testing.assert_allclose(slowest.sort_index(), stated.sort_index())


def test_only_named_architectures_get_the_experts_placement(placed: Placed) -> None:
    experts = placed[0][placed[0]["planner"] != "phaze"]
    assert set(experts["architecture"]) == {"a0"}
    assert set(experts["planner"]) == {"expert", "expert-even"}
    done = experts[experts["status"] == "placed"]
    assert set(zip(done["stages"], done["data"], done["devices_used"], strict=True)) == {(4, 2, 16)}


def test_the_expert_is_never_faster_than_the_best_placement(placed: Placed) -> None:
    columns = ["architecture", "hbm_gib", "recompute"]
    wide = placed[0].pivot(index=columns, columns="planner", values="time_per_batch_s").loc["a0"]
    assert (wide["phaze"] <= wide["expert"] * (1 + 1e-12)).all()
    assert (wide["expert"] <= wide["expert-even"] * (1 + 1e-12)).all()


def test_an_expert_for_another_tensor_width_is_left_to_its_own_file() -> None:
    placements, _ = place_model(*tables(), CONDITIONS, Layout(pp=4, dp=2, tp=1))
    assert set(placements["planner"]) == {"phaze"}


def test_a_shard_of_which_nothing_is_kept_gives_empty_tables() -> None:
    layers, graph, solved, chips, screened = tables()
    nothing = solved.iloc[:0], chips, screened.assign(kept=False)
    placements, stages = place_model(layers, graph, *nothing, CONDITIONS)
    assert Placements.check(placements).empty
    assert Stages.check(stages).empty


def test_a_kept_architecture_without_a_schedule_is_an_error() -> None:
    layers, graph, solved, chips, screened = tables()
    with pytest.raises(ValueError, match="a layer of a1 has no schedule"):
        place_model(layers, graph, solved[solved["architecture"] != "a1"], chips, screened, CONDITIONS)


def test_blocks_of_two_kinds_in_turns_are_all_repeated() -> None:
    layers = tables()[0]
    wide = layers[layers["layer"] == "block"].assign(layer="wide")
    for names, expected in (
        ("embedding block block block head", (1, 3)),
        ("embedding block wide block wide block wide head", (1, 6)),
        ("embedding wide block block wide block block head", (1, 6)),
        ("embedding block block wide wide wide head", (3, 3)),
        ("embedding block head", (0, 1)),
    ):
        runs = pd.DataFrame({"layer": names.split(), "count": 1}).assign(model="toy")
        runs["position"] = range(len(runs))
        point = read_point(pd.concat([layers, wide]), runs, CONDITIONS)
        assert point.repeated() == expected, names


def test_the_parts_of_the_time_sum_to_it() -> None:
    layers, graph, _, _, _ = tables()
    point = read_point(layers, graph, CONDITIONS)
    chain = point.runs.chain(np.array([0.01, 0.2, 0.1]), np.array([0.02, 0.4, 0.2]))
    for setting in CONDITIONS.settings(Layout(microbatch=2)):
        found = place_chain(chain, Layout(tp=2), setting)
        if isinstance(found, Placement):
            costs = stage_costs(chain, found, setting)
            assert sum(time_parts(costs, found, setting).values()) == pytest.approx(found.time_s, rel=1e-12)


def cost(**values: float) -> PlacedStage:
    nothing = dict.fromkeys(("recomputed_s", "static_bytes", "activation_bytes", "stashed_bytes"), 0.0)
    return PlacedStage(first_layer=0, last_layer=0, devices=1, **{**nothing, **values})


@pytest.mark.parametrize(
    ("slowest", "stages", "sync_s", "expected"),
    [
        (cost(forward_s=1.0, backward_s=2.0, load_s=3.0), 1, 1.0, "compute"),
        (cost(forward_s=1.0, backward_s=2.0, load_s=10.0), 1, 1.0, "transfers"),
        (cost(forward_s=3.0, backward_s=0.5, recomputed_s=4.0, load_s=7.5), 2, 1.0, "recompute"),
        (cost(forward_s=1.0, backward_s=2.0, load_s=3.0), 9, 1.0, "pipeline bubbles"),
        (cost(forward_s=1.0, backward_s=2.0, load_s=3.0), 1, 99.0, "network sync"),
    ],
)
def test_what_binds_is_the_largest_part_of_the_time(
    slowest: PlacedStage, stages: int, sync_s: float, expected: str
) -> None:
    layers = tuple(range(i, i + 1) for i in range(stages))
    placement = Placement(Layout(), layers, (1,) * stages, 0.0, slowest.load_s, sync_s)
    parts = time_parts([slowest] * stages, placement, ample_setting(microbatches=4))
    assert binding(parts, 100.0, 100.0) == expected


def test_memory_binds_where_more_of_it_would_help() -> None:
    assert binding({"compute": 1.0}, 100.0, 98.9) == "memory"
    assert binding({"compute": 1.0}, 100.0, 99.1) == "compute"


def test_the_settings_put_the_largest_memory_first_and_keep_the_order_of_recompute() -> None:
    two = replace(CONDITIONS, training=CONDITIONS.training.model_copy(update={"hbm_gib": (2.0, 8.0)}))
    found = [(s.recompute, s.memory_bytes / GIB) for s in two.settings(Layout(microbatch=2))]
    assert found == [(False, 8.0), (False, 2.0), (True, 8.0), (True, 2.0)]
