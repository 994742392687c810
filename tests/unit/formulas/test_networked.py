"""Plans replayed on networks: messages share links, and a flat network gives the flat time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.fabric import Fabric, fabric
from phaze.formulas.networked import consecutive_devices, replay_on, script_on, time_per_batch_s
from phaze.formulas.replay import replay
from phaze.layout import Layout
from phaze.map.networks import read_topology
from phaze.pipeline.traffic import simulate_script
from phaze.plan.plan import Plan, Stage
from phaze.plan.pricing.price import sent_to_slices_bytes
from phaze.spec.network import Matrix, Torus
from phaze.spec.system import Cluster, Level
from phaze.spec.systems import load_network
from tests.unit.formulas.test_replay import (
    BANDWIDTH,
    HBM_BANDWIDTH,
    STAGE,
    flushing,
    random_plan,
    random_stages,
    with_data,
)


def switch(bandwidth: float = BANDWIDTH) -> Cluster:
    """Return devices around one switch."""
    return Cluster(device="a", levels=(Level(devices=64, bandwidth_bytes_per_s=bandwidth),))


def nodes(inside: float, between: float) -> Cluster:
    """Return nodes of four devices."""
    levels = Level(devices=4, bandwidth_bytes_per_s=inside), Level(devices=64, bandwidth_bytes_per_s=between)
    return Cluster(device="a", levels=levels)


def full(devices: int) -> Matrix:
    """Return a link between every two devices."""
    return Matrix(bandwidths_bytes_per_s=((BANDWIDTH,) * devices,) * devices)


def on(system: Cluster | Matrix, plan: Plan) -> Fabric:
    return fabric(system, plan.devices)


def free_s(plan: Plan, fabric: Fabric) -> float:
    """Return the time of a batch in which no message waits for another one."""
    script = script_on(plan, fabric, consecutive_devices(plan), "longest")
    return time_per_batch_s(simulate_script(script, fabric.topology, "none"))


@pytest.mark.parametrize("system", [switch(), nodes(4e9, 5e8), full(20)])
def test_messages_that_wait_for_each_other_take_no_less(system: Cluster | Matrix) -> None:
    for seed in range(8):
        plan = random_plan(seed)
        found = replay_on(plan, on(system, plan))
        assert found.time_s >= free_s(plan, found.fabric) * (1 - 1e-9)
        assert 0 <= found.link_share <= found.carried.utilisation.max() <= 1 + 1e-9
        assert found.carried.sent_bytes.sum() == pytest.approx(found.carried.received_bytes.sum())


def test_with_a_link_between_every_two_devices_tensors_take_the_flat_time() -> None:
    """One tensor at a time enters a stage; rings have their own links, which tensors use at other times."""
    for seed in range(1, 16, 2):
        rng = np.random.default_rng(seed)
        stages = [
            replace(s, longest_arriving_bytes=s.arriving_bytes, longest_departing_bytes=s.departing_bytes)
            for s in random_stages(rng, [2] * 3)
        ]
        plan = flushing(stages, 8)
        assert replay_on(plan, on(full(6), plan)).time_s == pytest.approx(replay(plan).time_s, rel=1e-9)


def test_gradients_go_inside_nodes_first() -> None:
    """Eight replicas in two nodes: 3/4 of the weights twice inside, then 1/4 of them between, 2 · 1/2."""
    weights = 8e8
    plan = flushing([with_data(STAGE, 8, weight_bytes=weights)], 8)
    found = replay_on(plan, on(nodes(4e9, 5e8), plan))
    inside, between = 2 * 0.75 * weights / 4e9, 2 * 0.5 * weights / 4 / 5e8
    assert found.time_s == pytest.approx(STAGE.compute_s + inside + between, rel=1e-9)
    assert found.exposed_share == pytest.approx((inside + between) / found.time_s)


def sliced(seed: int, tensor: int = 3) -> Plan:
    """Return a random plan whose stages have tensor-parallel ranks that all-reduce for a part of every
    pass.
    """
    plan = random_plan(seed)
    rng = np.random.default_rng(seed)
    names = ("forward", "recompute", "backward")

    def reduced(stage: Stage) -> dict[str, float]:
        parts = {name: rng.uniform(0.1, 0.6) * stage.passes[name].seconds for name in names}
        return {f"{name}_reduced_bytes": part * BANDWIDTH / 3.0 for name, part in parts.items()}

    return replace(
        plan, stages=tuple(replace(s, layout=replace(s.layout, tp=tensor), **reduced(s)) for s in plan.stages)
    )


def test_slices_take_their_planners_time_where_nothing_else_is_sent() -> None:
    """All-reduces are already in the passes: on separate links they add no time, and are counted once."""
    for seed in range(8):
        plan = sliced(seed)
        silent = replace(plan, stages=tuple(_alone(stage) for stage in plan.stages))
        without = replace(silent, stages=tuple(replace(s, **NONE_REDUCED) for s in silent.stages))
        fast = on(switch(), plan)
        found, same = replay_on(silent, fast), replay_on(without, fast)
        assert found.time_s == pytest.approx(same.time_s, rel=1e-9)
        passes = sum(sent_to_slices_bytes(s) * s.layout.tp for s in plan.stages) * plan.microbatches
        batches = found.timeline.pipeline.batches
        assert found.carried.sent_bytes.sum() == pytest.approx(passes * batches * _fullest(plan), rel=1e-9)


def _alone(stage: Stage) -> Stage:
    tensors = ("arriving_bytes", "longest_arriving_bytes", "departing_bytes", "longest_departing_bytes")
    return replace(stage, weight_bytes=0.0, **dict.fromkeys(tensors, 0.0))


NONE_REDUCED = {f"{name}_reduced_bytes": 0.0 for name in ("forward", "recompute", "backward")}


def _fullest(plan: Plan) -> float:
    """Return the simulated microbatches over those of the batch: every lane has the maximum."""
    pipeline = replay(plan).pipeline
    return pipeline.lane_microbatches * pipeline.lanes / plan.microbatches


@pytest.mark.parametrize("system", [switch(), nodes(4e9, 1e9)])
def test_slices_stages_and_replicas_share_the_links(system: Cluster) -> None:
    for seed in range(8):
        plan = sliced(seed)
        found = replay_on(plan, on(system, plan))
        silent = replace(plan, stages=tuple(replace(s, **NONE_REDUCED) for s in plan.stages))
        without = replay_on(silent, on(system, plan))
        assert found.carried.sent_bytes.sum() == pytest.approx(found.carried.received_bytes.sum())
        assert found.carried.sent_bytes.sum() > without.carried.sent_bytes.sum()
        assert (found.carried.utilisation <= 1 + 1e-9).all()


def test_memory_that_operators_share_counts_as_contention_on_any_network() -> None:
    busy = replace(STAGE, forward_hbm_bytes=1.5 * HBM_BANDWIDTH)
    plan = flushing([busy] * 2, 6)
    found = replay_on(plan, on(switch(), plan))
    assert found.time_s == pytest.approx(free_s(plan, found.fabric) + 7 * 0.5)
    assert found.time_s == pytest.approx(replay(plan).time_s)


def test_a_tensor_makes_the_next_all_reduce_wait() -> None:
    """One stage sends for 2 s, and its next all-reduce has to wait for it; before, there was no wait."""
    reduced = {"layout": Layout(tp=2), "forward_reduced_bytes": 2.5e8, "backward_reduced_bytes": 2.5e8}
    first = replace(STAGE, **reduced, departing_bytes=2e9, longest_departing_bytes=2e9)
    last = replace(STAGE, **reduced, arriving_bytes=2e9, longest_arriving_bytes=2e9)
    plan = flushing([first, last], 8)
    silent = replace(plan, stages=tuple(replace(s, **NONE_REDUCED) for s in plan.stages))
    found, without = (replay_on(one, on(switch(), plan)) for one in (plan, silent))
    waits_s = [one.time_s - free_s(one.plan, one.fabric) for one in (found, without)]
    assert waits_s[0] > waits_s[1] + 0.1


def test_all_reduces_of_slices_between_nodes_take_longer_than_planned() -> None:
    """Tensor-parallel ranks in two nodes: 2 · 3/4 of the tensor inside, then 2 · 1/2 of a quarter of it on a
    slow link.
    """
    stage = replace(STAGE, layout=Layout(tp=8), first_layer=0, last_layer=0, forward_reduced_bytes=2e8)
    plan = flushing([stage], 4)
    inside, between = 2 * 0.75 * 2e8 / 4e9, 2e8 / 4 / (BANDWIDTH / 64)
    found = replay_on(plan, on(nodes(4e9, BANDWIDTH / 64), plan))
    work = 3.0 - 4 * 7 / 8 * 2e8 / BANDWIDTH
    assert found.time_s == pytest.approx(4 * (work + inside + between))
    assert found.bound_by.resource == "all-reduces of slices"


def test_identical_devices_can_be_exchanged() -> None:
    """With a link between every two devices, the assignment of nodes to stages does not matter."""
    for seed in range(5):
        plan = sliced(seed, tensor=2)
        place = np.random.default_rng(seed).permutation(plan.devices)
        network = full(plan.devices)
        matrix = np.array(network.bandwidths_bytes_per_s)[place][:, place]
        other = Matrix(bandwidths_bytes_per_s=tuple(map(tuple, matrix.tolist())))
        same, found = (replay_on(plan, on(system, plan)) for system in (network, other))
        assert found.time_s == same.time_s


def test_without_contention_half_of_any_bandwidth_is_never_faster() -> None:
    """Links that serve first come first served have anomalies (Graham, 1969), up to 2 % here; see
    test_contention.
    """
    for seed in range(10):
        plan = sliced(seed)
        times = {}
        for speeds in ((4e9, 1e9), (2e9, 1e9), (4e9, 5e8), (2e9, 5e8)):
            found = replay_on(plan, on(nodes(*speeds), plan))
            times[speeds] = free_s(plan, found.fabric)
            assert found.time_s >= times[speeds] * (1 - 1e-9)
        for (inside, between), time_s in times.items():
            for half in ((inside / 2, between), (inside, between / 2)):
                assert times.get(half, np.inf) >= time_s * (1 - 1e-9)


@pytest.mark.parametrize("name", ["a100-selene", "tpu-v4", "h100"])
def test_systems_of_the_project_are_networks(name: str) -> None:
    plan = random_plan(9)
    system = load_network(name)
    assert isinstance(system, Cluster)
    found = replay_on(plan, on(system, plan))
    assert found.time_s >= found.alone_s > 0


def test_memory_is_the_schedules_whatever_the_network() -> None:
    plan = random_plan(9)
    flat, far = replay(plan), replay_on(plan, on(nodes(4e9, 1e8), plan))
    assert far.timeline.peak_bytes.tolist() == flat.timeline.peak_bytes.tolist()


def test_more_devices_than_a_system_has_are_refused() -> None:
    with pytest.raises(PhazeError, match=r"must be at most 64, as it is one level, .*, got 65"):
        fabric(switch(), 65)
    with pytest.raises(PhazeError, match="has 3 devices, the plan needs 4"):
        fabric(full(3), 4)


def test_a_torus_must_hold_the_devices_of_its_levels() -> None:
    with pytest.raises(ValueError, match="must have the 64 devices of the levels, got 60"):
        Cluster(device="a", levels=switch().levels, torus=Torus(shape=(3, 4, 5), bandwidth_bytes_per_s=1.0))


def test_tiles_of_a_chip_are_no_devices_of_a_plan() -> None:
    with pytest.raises(PhazeError, match="is a mesh of tiles"):
        load_network("wafer")


def test_a_table_in_csv_is_a_network_as_it_is_a_topology(tmp_path: Path) -> None:
    table, named = tmp_path / "net.csv", tmp_path / "net.yaml"
    table.write_text(",4,\n4,,2\n,2,\n")
    named.write_text("kind: file\npath: net.csv\nunit_bytes_per_s: 10\nlatency_s: 0.5\nabsent: refuse\n")
    rows = ((0.0, 4.0, 0.0), (4.0, 0.0, 2.0), (0.0, 2.0, 0.0))
    assert load_network(str(table)) == Matrix(bandwidths_bytes_per_s=rows)
    tenfold = tuple(tuple(10 * one for one in row) for row in rows)
    assert load_network(str(named)) == Matrix(bandwidths_bytes_per_s=tenfold, latency_s=0.5, absent="refuse")
    found = read_topology(table).bandwidth_bytes_per_s
    assert found[np.array(rows) > 0].tolist() == [4.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("net.csv", ",1\n1,,3\n", "net.csv: bandwidths: row 1 must have 2 numbers, one per device, got 3"),
        ("net.csv", ",x\n1,\n", "net.csv: bandwidth from 0 to 1 must be > 0, or empty for no link, got x"),
        ("net.yaml", "kind: file\npath: net.json\n", "net.json: must be a CSV table"),
        ("net.yaml", "kind: file\npath: ../net.csv\n", "may only name files in its own folder"),
        ("net.yaml", "kind: file\n", "net.yaml: path: Field required"),
    ],
)
def test_a_bad_table_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PhazeError, match=said):
        load_network(str(tmp_path / name))


def test_a_matrix_must_be_square() -> None:
    with pytest.raises(ValueError, match="row 1 must have 2 numbers, one per device, got 1"):
        Matrix(bandwidths_bytes_per_s=((0.0, 1.0), (1.0,)))
