"""Mapped plans: every device is used once, never slower than the default orders, reproducible."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import phaze.map.plan_maps
from phaze.base.errors import PhazeError
from phaze.base.store import Store
from phaze.cost.network.fabric import fabric
from phaze.formulas.networked import (
    consecutive_devices,
    replay_on,
    script_on,
    silent_script,
    time_per_batch_s,
)
from phaze.formulas.replay import replay
from phaze.map.ensemble import Chains
from phaze.map.heuristics import block_map
from phaze.map.plan_maps import CHAINS, devices_of, lanes_of, map_plan, map_rows, stored_stages, within_units
from phaze.map.study import MapQuestion, map_plans
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.traffic import silent, simulate_script
from phaze.plan.plan import Plan
from phaze.spec.network import Matrix
from phaze.spec.settings import PlanMapSettings
from phaze.spec.system import Cluster, Level
from phaze.tables import BY_HAND, PlanDevices, PlanMaps
from phaze.workload.operator_graphs import stage_graph
from tests.unit.map.plans import BANDWIDTH, plan, stage
from tests.unit.map.test_networks import NODES, pod

FAST = Chains(steps=200, count=CHAINS)
SEARCH = PlanMapSettings(planners=("phaze", "piper"), steps=FAST.steps)
PLANS = {
    "equal": plan([stage(4)] * 4, 8),
    "unflushed": plan([stage(4), stage(2), stage(2)], 16, "2bw"),
    "sliced": plan([stage(2, 2), stage(2, 1)], 4),
}


def scaled(system: Cluster) -> Cluster:
    """Return a system with links at which communication counts."""
    levels = tuple(
        Level(devices=level.devices, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * 1e7)
        for level in system.levels
    )
    if system.torus is None:
        return system.model_copy(update={"levels": levels})
    torus = system.torus.model_copy(update={"bandwidth_bytes_per_s": 4e8, "latency_s": 0.0})
    return system.model_copy(update={"levels": levels, "torus": torus})


SYSTEMS: dict[str, Cluster | Matrix] = {
    "torus": scaled(pod(4, 4, 4)),
    "nodes": scaled(NODES),
    "matrix": Matrix(
        bandwidths_bytes_per_s=tuple(tuple((1 + (i * j) % 7) * 1e8 for j in range(16)) for i in range(16))
    ),
}


PAIRS = [
    ("equal", "torus"),
    ("equal", "matrix"),
    ("unflushed", "nodes"),
    ("sliced", "torus"),
    ("sliced", "nodes"),
]


@pytest.mark.parametrize(("one", "system"), PAIRS)
def test_every_device_does_one_thing_and_no_default_order_is_faster(one: str, system: str) -> None:
    """Tensor-parallel ranks of a group have consecutive numbers in a unit."""
    found = map_plan(PLANS[one], SYSTEMS[system], 16, FAST)
    used = [device for replicas in found.placed for slices in replicas for device in slices]
    assert len(set(used)) == len(used) == found.plan.devices
    assert max(used) < found.devices
    for stage_, replicas in zip(found.plan.stages, found.placed, strict=True):
        assert [len(slices) for slices in replicas] == [stage_.layout.tp] * stage_.layout.dp
        for slices in replicas:
            assert list(slices) == list(range(slices[0], slices[0] + len(slices)))
            assert slices[0] % found.lanes.unit == 0
    assert [each.method for each in found.mappings[:2]] == list(BY_HAND)
    assert found.best.simulated_s == min(each.simulated_s for each in found.mappings)
    assert found.alone_s <= found.best.simulated_s * (1 + 1e-9)


@pytest.mark.parametrize("system", ["torus", "nodes"])
def test_all_reduce_first_is_the_order_in_which_plans_are_replayed(system: str) -> None:
    one = PLANS["equal"]
    network = SYSTEMS[system]
    assert isinstance(network, Cluster)
    mapped = map_plan(one, network, 64, FAST)
    again = replay_on(one, fabric(network, 64))
    default = mapped.mappings[0]
    assert default.simulated_s == pytest.approx(again.time_s, rel=1e-12)
    assert mapped.alone_s == pytest.approx(again.alone_s, rel=1e-12)
    placed = devices_of(one, mapped.lanes, default.mapping)
    assert placed == consecutive_devices(one)


def test_mapping_finds_a_ring_that_no_default_order_has() -> None:
    """Two stages of two replicas that send much and reduce nothing, on pairs (0, 3) and (1, 2)."""
    few = [replace(stage(2, arriving=1e8, departing=1e8), weight_bytes=0.0)] * 2
    slow, fast = 1e8, 1e10
    rows = [[slow] * 4 for _ in range(4)]
    for a, b in ((0, 3), (1, 2)):
        rows[a][b] = rows[b][a] = fast
    system = Matrix(bandwidths_bytes_per_s=tuple(map(tuple, rows)))
    mapped = map_plan(plan(few, 4), system, 4, FAST)
    assert mapped.best.method == "local-search"
    assert mapped.best.simulated_s < 0.3 * min(one.simulated_s for one in mapped.mappings[:2])
    assert sorted(sorted(lane) for lane in mapped.best.mapping.T.tolist()) == [[0, 3], [1, 2]]


def test_the_estimate_is_the_simulated_time_where_nothing_is_contended() -> None:
    """One lane on a switch without levels: GPipe with one microbatch, and no all-reduce."""
    switch = Cluster.model_validate({"device": "a", "levels": [{"devices": 4, "bandwidth_bytes_per_s": 1e9}]})
    mapped = map_plan(plan([replace(stage(1), recompute_s=0.0)] * 3, 1), switch, 4, FAST)
    assert mapped.mappings[0].estimated_s == pytest.approx(mapped.mappings[0].simulated_s, rel=1e-9)


def test_the_same_plan_gives_the_same_map() -> None:
    one, other = (map_plan(PLANS["unflushed"], SYSTEMS["torus"], 16, FAST) for _ in range(2))
    for a, b in zip(one.mappings, other.mappings, strict=True):
        assert (a.method, a.estimated_s, a.simulated_s) == (b.method, b.estimated_s, b.simulated_s)
        assert np.array_equal(a.mapping, b.mapping)


def test_blocks_hold_stages_of_some_lanes() -> None:
    found = block_map(4, 8, 2, 2)
    assert found[:2, :2].tolist() == [[0, 1], [2, 3]]
    assert found[:2, 2:4].tolist() == [[4, 5], [6, 7]]
    assert found[2:, :2].tolist() == [[16, 17], [18, 19]]
    assert sorted(found.ravel().tolist()) == list(range(32))
    ragged = block_map(3, 5, 2, 2)
    assert sorted(ragged.ravel().tolist()) == list(range(15))


def test_devices_that_fill_no_node_are_on_a_whole_one() -> None:
    """Three devices of a node of four: the mapping and the simulator have all four."""
    mapped = map_plan(plan([stage(1)] * 3, 4), scaled(NODES), 3, FAST)
    assert mapped.devices == 4
    assert mapped.mappings[-1].mapping.max() < 4


def test_nothing_sent_takes_as_long_as_all_that_is_sent_in_no_time() -> None:
    network = fabric(SYSTEMS["torus"], 64)
    for one in map(within_units, PLANS.values()):
        every = silent(script_on(one, network, consecutive_devices(one)))
        expected, found = (
            time_per_batch_s(simulate_script(script, network.topology, "none"))
            for script in (every, silent_script(one))
        )
        assert found == expected


def test_a_network_with_too_few_devices_is_an_error() -> None:
    with pytest.raises(PhazeError, match="has 16 devices, the plan needs 18"):
        map_plan(plan([stage(6)] * 3, 6), SYSTEMS["matrix"], 16, FAST)


def test_units_that_need_more_devices_than_the_study_has_take_a_larger_part() -> None:
    """Groups of 2 and of 1 device: units of 2, 8 devices for a plan of 6."""
    mapped = map_plan(PLANS["sliced"], scaled(pod(4, 4, 4)), 6, FAST)
    assert (PLANS["sliced"].devices, lanes_of(PLANS["sliced"]).devices, mapped.devices) == (6, 8, 8)


def rows_of(one: Plan, **key: object) -> tuple[dict[str, object], list[dict[str, object]]]:
    row = {
        "model": "m", "hbm_gib": 32.0, "status": "placed", "schedule": one.schedule, "microbatch": 1,
        "microbatches": one.microbatches, "network_bandwidth_bytes_per_s": BANDWIDTH,
        "hbm_bandwidth_bytes_per_s": 1e12, "sync_s": one.claimed.sync_s,
        "all_reduce_factor": one.claimed.network.all_reduce_factor,
        **key,
    }  # fmt: skip
    widths = [{"data": stage_.layout.dp, "tensor": stage_.layout.tp} for stage_ in one.stages]
    stages = [{**row, "stage": q, **vars(s), **widths[q]} for q, s in enumerate(one.stages)]
    return row, stages


def test_the_plans_of_the_fastest_accelerators_are_mapped_equal_ones_once() -> None:
    cases = [
        rows_of(PLANS["equal"], architecture=name, planner=planner, time_per_sample_s=time)
        for name, time in (("a", 1.0), ("b", 1.0), ("c", 2.0))
        for planner in ("phaze", "piper", "expert")
    ]
    plans = pd.DataFrame([row for row, _ in cases])
    stages = pd.DataFrame([one for _, rows in cases for one in rows])
    asked = MapQuestion({"t": SYSTEMS["torus"], "n": SYSTEMS["nodes"]}, 16, SEARCH)
    maps, devices = map_plans(plans, stages, asked, Store())
    maps, devices = PlanMaps.check(maps), PlanDevices.check(devices)
    keys = ["architecture", "planner", "system"]
    assert set(maps[keys].itertuples(index=False, name=None)) == {
        (a, p, s) for a in "ab" for p in ("phaze", "piper") for s in "tn"
    }
    assert maps.groupby(keys)["chosen"].sum().eq(1).all()
    assert devices.groupby(keys).size().eq(16).all()
    assert maps.drop(columns=keys).drop_duplicates().shape[0] == len(maps) // 4


def test_plans_that_were_mapped_are_not_mapped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the additional plan is mapped; the others are returned bit-identical."""
    row, stages = rows_of(PLANS["equal"], architecture="a", planner="phaze", time_per_sample_s=1.0)
    more, of_more = rows_of(PLANS["sliced"], architecture="a", planner="piper", time_per_sample_s=2.0)
    asked = MapQuestion({"t": SYSTEMS["torus"], "n": SYSTEMS["nodes"]}, 16, SEARCH)
    both = pd.DataFrame([row, more]), pd.DataFrame([*stages, *of_more])
    fresh = map_plans(*both, asked, Store())
    made: list[object] = []

    def count(plan: dict[str, object], *rest: object) -> object:
        made.append(plan["time_per_sample_s"])
        return map_rows(plan, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(phaze.map.plan_maps, "map_rows", count)
    for number, given in enumerate([(pd.DataFrame([row]), pd.DataFrame(stages)), both, both]):
        with Store(tmp_path / "maps", "code") as store:
            found = map_plans(*given, asked, store)
        assert made == [[1.0] * 2, [1.0] * 2 + [2.0] * 2, [1.0] * 2 + [2.0] * 2][number]
    for one, other in zip(found, fresh, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_a_model_without_plans_has_no_maps() -> None:
    row, stages = rows_of(PLANS["equal"], architecture="a", planner="phaze", time_per_sample_s=1.0)
    plans = pd.DataFrame([row | {"status": "infeasible"}])
    asked = MapQuestion({"t": SYSTEMS["torus"]}, 16, SEARCH)
    maps, devices = map_plans(plans, pd.DataFrame(stages), asked, Store())
    assert maps.empty
    assert devices.empty


def test_a_plan_whose_units_do_not_fit_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Groups of 2 and of 1 device need 8 devices for a plan of 6, and the network has 6."""
    row, stages = rows_of(PLANS["sliced"], architecture="a", planner="phaze", time_per_sample_s=1.0)
    six = Matrix(bandwidths_bytes_per_s=((1e9,) * 6,) * 6)
    asked = MapQuestion({"six": six, "t": SYSTEMS["torus"]}, 6, SEARCH)
    maps, _ = map_plans(pd.DataFrame([row]), pd.DataFrame(stages), asked, Store())
    assert set(maps["system"]) == {"t"}
    assert "six has too few devices" in caplog.text


def test_with_equal_widths_the_stages_are_those_of_the_plan() -> None:
    found = stored_stages(plan([stage(4)] * 3, 8), "model")
    assert (len(found.stages), found.replicas, found.microbatches) == (3, 4, 2)
    assert found.recompute
    assert [(e.source, e.target, e.bytes) for e in found.edges] == [(0, 1, 6e6), (1, 2, 6e6)]
    first = found.stages[0]
    assert (first.forward_s, first.backward_s, first.parameter_bytes) == (0.01, 0.02, 8e6)


def test_replicas_of_a_lane_are_workers_that_share_its_microbatches() -> None:
    """4, 2 and 6 replicas form two lanes of 2, 1 and 3 workers, as in the simulated pipeline."""
    wide = plan([stage(4), stage(2), stage(6)], 12)
    lanes = lanes_of(wide)
    assert (lanes.count, lanes.shape, lanes.unit, lanes.devices) == (2, (6, 2), 1, 12)
    assert lanes.workers == ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2))
    assert lanes.workers == replay(wide).pipeline.workers
    found = stored_stages(wide, "model")
    assert found.microbatches == 6
    assert [s.forward_s for s in found.stages] == pytest.approx([0.005, 0.005, 0.01, *[0.01 / 3] * 3])
    passed = {(e.source, e.target): e.bytes for e in found.edges}
    assert passed == pytest.approx({(0, 2): 3e6, (1, 2): 3e6, (2, 3): 2e6, (2, 4): 2e6, (2, 5): 2e6})


@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 3), (4, 6), (6, 4), (3, 9)])
def test_workers_pass_on_what_their_microbatches_do(a: int, b: int) -> None:
    """Microbatch n goes from worker n mod a to worker n mod b: counted one by one."""
    lanes = gcd(a, b)
    found = stored_stages(plan([stage(a), stage(b)], 36 * lanes), "model")
    workers, others = a // lanes, b // lanes
    counted = np.zeros((workers, others))
    for n in range(36):
        counted[n % workers, n % others] += 6e6
    passed = np.zeros_like(counted)
    for edge in found.edges:
        passed[edge.source, edge.target - workers] = edge.bytes * found.microbatches
    assert passed == pytest.approx(counted)


@pytest.mark.parametrize("widths", [(4, 4), (4, 8), (6, 4, 2), (1, 2), (3, 3, 3)])
def test_a_link_of_a_ring_carries_what_all_replicas_need(widths: tuple[int, ...]) -> None:
    """Every replica of a stage sends 2 (d - 1)/d of the weights; with one lane a ring has no links."""
    graph = stage_graph(stored_stages(plan([stage(d) for d in widths], 24), "model"))
    lanes = gcd(*widths)
    shares = {q: 2 * (d - 1) / d * 8e6 for q, d in enumerate(widths)}
    of = [q for q, d in enumerate(widths) for _ in range(d // lanes)]
    link = 2 * (lanes - 1) / lanes * graph.parameter_bytes
    assert link == pytest.approx([shares[q] if lanes > 1 else 0.0 for q in of])


def test_a_tensor_parallel_group_is_a_unit_and_every_slice_needs_the_whole_tensor() -> None:
    wide = plan([stage(2, 4), stage(2, 4)], 4)
    assert lanes_of(wide).unit == 4
    assert stored_stages(wide, "model").edges[0].bytes == 6e6


def test_unequal_groups_pass_on_by_as_many_pairs_as_the_wider_has_slices() -> None:
    """4 tensor-parallel ranks send to 2, which need 2 tensors, and receive 4: a mean of 3 over 4 pairs."""
    unequal = plan([stage(2, 4), stage(2, 2)], 4)
    lanes = lanes_of(unequal)
    assert (lanes.unit, lanes.devices) == (4, 16)
    assert stored_stages(unequal, "model").edges[0].bytes == pytest.approx(6e6 * (2 + 4) / 2 / 4)


def test_microbatches_that_do_not_divide_count_for_the_fullest_lane() -> None:
    wide = plan([stage(3), stage(3)], 10)
    pipeline: Pipeline = replay(wide).pipeline
    assert stored_stages(wide, "model").microbatches == pipeline.lane_microbatches == 4
