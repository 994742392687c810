"""Schedules, optimizers and ZeRO on tiles: closed forms, and the engine that `plan` uses."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.cost.memory import Optimizer, parameter_bytes, state_bytes, update_bytes
from phaze.cost.network.delivery import deliver
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires
from phaze.cost.network.messages import Plan
from phaze.layout import Layout, Precision, Zero
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.traffic import passing
from phaze.spec.models import load_model_named, load_transformer
from phaze.spec.tiled import Tile
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles.chains import PalmLayers
from phaze.tiles.chip import Chip, load_tiled_machine
from phaze.tiles.on_tiles import (
    KINDS,
    programs_of,
    script_of,
    simulate_on_tiles,
    simulate_point,
    turns_of,
)
from phaze.tiles.placement import s_shaped
from phaze.tiles.runs import Recompute, TiledRun, runs_of
from phaze.tiles.stages import by_compute, evenly, in_flight
from phaze.tiles.steps import StagePart, StageProgram
from phaze.tiles.traffic import LinkTraffic

GRID = TileGrid(4, 8)
TILE = Tile(clock_hz=1e9, pe_x=16, pe_y=16, sram_bytes=1e6)
CHIP = Chip("toy", GRID, TILE, Wires(1e10, 1e-9, (4, 4), 2.5e9), PortMemory(GRID.edge(), 2e9, 1e-9))
LAYERS = PalmLayers(count=8, hidden=64, heads=4, sequence=32)
RUN = TiledRun(LAYERS, 48, 6, Layout(tp=4, dp=2), s_shaped(GRID, 2, 4), optimizer="sgd", recompute="never")
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2}


SMALL = replace(CHIP, tile=TILE.model_copy(update={"sram_bytes": 1e4}))
"""Chip whose SRAM holds neither weights nor activations of a stage."""


def plan_s(plan: Plan) -> float:
    return deliver(CHIP.topology, plan, "none").time_s if plan else 0.0


def part_s(program: StageProgram, part: StagePart) -> float:
    """Return the time of a part without contention: accesses next to the work, then collectives."""
    turns = turns_of(program, part, LinkTraffic(CHIP))
    return sum(max(turn.seconds, plan_s(turn.concurrent)) + plan_s(turn.plan) for turn in turns)


def engine_s(run: TiledRun) -> float:
    """Return the time of a batch by the engine of `plan`, from the times of the stages' parts alone."""
    programs = programs_of(CHIP, run)
    sent = script_of(run, programs).traffic.sent_bytes
    costs = []
    for q, program in enumerate(programs):
        times = {part: part_s(program, part) for part in KINDS.values()}
        forward, backward = (
            plan_s(passing(run.tiles_of(q), run.tiles_of(q + step), sent[q, q + step]))
            if (q, q + step) in sent
            else 0.0
            for step in (1, -1)
        )
        costs.append(
            StageCost(
                times["forward"],
                times["backward"],
                times["recompute"] if program.execution.recompute else 0.0,
                forward,
                backward,
                times["sync"],
                times["update"],
                times["gather"],
            )
        )
    return simulate(Pipeline(tuple(costs), run.microbatches, run.schedule, run.layout.vp)).time_s


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("zero", get_args(Zero))
def test_without_contention_a_run_takes_the_time_of_plans_engine(schedule: str, zero: Zero) -> None:
    chunks = SCHEDULES[schedule]
    for optimizer, recompute in product(get_args(Optimizer), ("always", "never")):
        run = replace(
            RUN, schedule=schedule, optimizer=optimizer, recompute=recompute,
            layout=replace(RUN.layout, zero=zero, vp=chunks),
        )  # fmt: skip
        found = simulate_on_tiles(CHIP, run)
        assert found.uncontended_s == pytest.approx(engine_s(run), rel=1e-6)
        assert found.time_s >= found.uncontended_s * (1 - 1e-9)


@pytest.mark.parametrize("microbatches", [1, 4, 12])
def test_gpipes_bubble_is_its_closed_form(microbatches: int) -> None:
    """(p − 1)/(m + p − 1) of the time of equal stages (Huang et al., NeurIPS 2019, Section 2.3)."""
    run = replace(RUN, schedule="gpipe", microbatches=microbatches)
    found = simulate_on_tiles(CHIP, run)
    busy = found.carried.work_s[:4] / found.alone_s
    assert 1 - busy == pytest.approx([3 / (microbatches + 3)] * 4, rel=1e-6)


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    """(p − 1)/(v m + p − 1) (Narayanan et al., SC 2021, Section 2.2)."""
    run = replace(RUN, schedule="interleaved", microbatches=8, layout=replace(RUN.layout, vp=2))
    found = simulate_on_tiles(CHIP, run)
    busy = found.carried.work_s[:4] / found.alone_s
    assert 1 - busy == pytest.approx([3 / (2 * 8 + 3)] * 4, rel=1e-6)


def test_schedules_differ_in_what_is_in_flight() -> None:
    """All microbatches under GPipe, as many as stages follow under 1F1B (PALM, IV.B)."""
    assert in_flight(4, 6, "gpipe", 1) == (6, 6, 6, 6)
    assert in_flight(4, 6, "1f1b", 1) == (4, 3, 2, 1)
    assert in_flight(4, 2, "1f1b", 1) == (2, 2, 2, 1)
    chunks = in_flight(8, 8, "interleaved", 2)
    groups = Pipeline((StageCost(1.0, 1.0),) * 8, 8, "interleaved", 2).in_flight
    assert all(chunks[q] + chunks[q + 4] >= groups[q] for q in range(4)), "peaks of chunks may not coincide"
    assert chunks[7] == 1


@pytest.mark.parametrize(
    ("optimizer", "precision", "zero"),
    [*product(get_args(Optimizer), get_args(Precision), get_args(Zero))],
)
def test_states_and_updates_are_those_of_the_memory_model(
    optimizer: Optimizer, precision: Precision, zero: Zero
) -> None:
    run = replace(RUN, optimizer=optimizer, layout=replace(RUN.layout, zero=zero, precision=precision))
    program = programs_of(SMALL, run)[0]
    parameters = 2 * 12 * 64**2 / 4
    size = parameter_bytes(optimizer, precision)
    assert program.held_bytes[0] == pytest.approx(state_bytes(parameters, size, zero, 2))
    moved = sum(step.access.total_bytes for step in program.steps("update"))
    assert moved == pytest.approx(update_bytes(parameters, optimizer, precision, zero, 2))


@pytest.mark.parametrize(("recompute", "schedule"), [*product(("always", "never"), ("gpipe", "1f1b"))])
def test_the_timeline_has_the_memory_that_stages_hold(recompute: Recompute, schedule: str) -> None:
    found = simulate_on_tiles(SMALL, replace(RUN, recompute=recompute, schedule=schedule))
    held = [sum(program.held_bytes) for program in programs_of(SMALL, found.run)]
    assert found.carried.timeline.peak_bytes == pytest.approx(held)
    assert found.dram_bytes == pytest.approx(8 * sum(held))
    assert found.row["tile_bytes"] == pytest.approx(max(held))


def exchanged(program: StageProgram, part: StagePart) -> dict[str, float]:
    """Return the bytes per tile of collectives among replicas, by kind."""
    sizes: dict[str, float] = {}
    for step in program.steps(part):
        for collective in (*step.before, *step.after):
            if len(collective.groups[0]) == 2:
                sizes[collective.kind] = sizes.get(collective.kind, 0.0) + collective.size_bytes
    return sizes


def test_zero_moves_the_collectives_of_weights() -> None:
    """Rajbhandari et al., SC 2020, Section 7: Ψ gradients and Ψ weights; 3 Ψ in all with stage 3."""
    whole = 2 * 2 * 12 * 64**2 / 4
    parts: tuple[StagePart, ...] = ("forward", "backward", "sync", "gather")
    programs = [
        programs_of(CHIP, replace(RUN, layout=replace(RUN.layout, zero=zero)))[0] for zero in range(4)
    ]
    found = [{part: exchanged(program, part) for part in parts} for program in programs]
    scattered, gathered = {"reduce_scatter": whole}, {"all_gather": whole}
    none: dict[str, float] = {}
    assert found[0] == {"forward": none, "backward": none, "sync": {"all_reduce": whole}, "gather": none}
    assert found[1] == {"forward": none, "backward": none, "sync": scattered, "gather": gathered}
    assert found[2] == {"forward": none, "backward": scattered, "sync": none, "gather": gathered}
    assert found[3] == {"forward": gathered, "backward": scattered | gathered, "sync": none, "gather": none}


def test_stages_have_the_least_compute_on_the_slowest() -> None:
    loads = [0.0, *[3.0] * 7, 9.0]
    for tiles in ([1, 1, 1], [2, 1, 1], [1, 1, 4]):
        worst = min(
            max(sum(loads[a:b]) / n for a, b, n in zip((0, i, j), (i, j, 9), tiles, strict=True))
            for i in range(1, 8)
            for j in range(i + 1, 9)
        )
        split = by_compute(loads, tiles)
        assert sum(split) == 9
        ends = (split[0], split[0] + split[1])
        parts = zip((0, *ends), (*ends, 9), tiles, strict=True)
        assert max(sum(loads[a:b]) / n for a, b, n in parts) == worst
    assert by_compute([1.0] * 8, [1] * 4) == evenly(8, 4) == (2, 2, 2, 2)
    assert evenly(10, 4) == (2, 3, 2, 3)


def test_only_stages_whose_activations_do_not_fit_recompute() -> None:
    all_stored = simulate_on_tiles(SMALL, replace(RUN, recompute="needed"))
    assert all_stored.recomputed == 0
    least = simulate_on_tiles(SMALL, replace(RUN, recompute="always"))
    assert least.recomputed == 4
    between = (all_stored.dram_bytes + least.dram_bytes) / 2
    some = simulate_on_tiles(SMALL, replace(RUN, recompute="needed", dram_bytes=between))
    assert 0 < some.recomputed < 4
    assert some.dram_bytes <= between
    kinds = [program.execution.recompute for program in programs_of(SMALL, some.run)]
    assert kinds == sorted(kinds, reverse=True), "the first stages have most in flight"
    lacking = (least.dram_bytes - 0.75 * least.dram_bytes) / GIB
    with pytest.raises(PhazeError, match=f"{lacking:,.0f} GiB are missing"):
        programs_of(SMALL, replace(some.run, dram_bytes=0.75 * least.dram_bytes))


WAFER = load_tiled_machine("wafer").chip


def point(**changes: object) -> TiledPoint:
    fields = {"system": "wafer", "model": "t-18b", "batch": 40, "show": "table", **changes}
    return TiledPoint.parse(fields, "point")


def test_a_trillion_parameters_do_not_fit_on_one_wafer() -> None:
    """16 bytes a parameter are 16 TB; PALM's reading has unlimited memory."""
    with pytest.raises(PhazeError, match=r"system wafer: dram.gib: .* GiB are missing"):
        simulate_point("x", point(model="t-1t"), load_transformer("t-1t", "x"), WAFER)
    palm = point(model="t-1t", operators="palm", dram="unlimited", recompute="always")
    ((_, run),) = runs_of("x", palm, load_transformer("t-1t", "x"), WAFER)
    assert len(programs_of(WAFER, run)) == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 50}, r"batch: must be a multiple of the 20 microbatches × 2 replicas, got 50; make it 80"),
        ({"tensor": (3,)}, "tensor must divide the 16 tiles of a stage, got 3"),
        ({"experts": 3}, "experts: must divide the 2 replicas of a stage, got 3"),
        ({"stages": ((10, 16), (10, 16))}, "must have all parts of the model, 42 layers; got 20 in 2"),
        ({"stages": ((20, 300), (22, 300))}, "at most the 320 tiles of the system, got 600"),
        ({"degrees": {"qkv": (2, 2, 2, 1)}}, "degrees: qkv: 2 × 2 × 2 × 1 is 8, must be the 16 tiles"),
        ({"degrees": {"qvk": (2, 2, 2, 2)}}, "degrees: qvk: must be an operator of the model: qkv"),
        ({"degrees": {"qkv": (16, 1, 1, 1)}}, "degrees: qkv: b must be at most 2, got 16"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        simulate_point("x", point(**changes), load_transformer("t-18b", "x"), WAFER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunks": 2}, "chunks: must be 1 for schedule 1f1b, got 2"),
        ({"schedule": "interleaved"}, "chunks: must be at least 2 for schedule interleaved, got 1"),
        ({"stages": ((10, 0), (32, 16))}, "stages"),
        ({"operators": "palm", "experts": 2}, "operators: must be all with degrees, experts or stage_parts"),
        ({"degrees": {}, "experts": 2}, "experts: must be 1 with degrees, got 2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        point(**changes)


def runs(**changes: object) -> list[TiledRun]:
    """Return the runs of GPT-2 on the wafer, without the samples that fill no whole microbatch."""
    fields = {"model": "gpt2", "sequence": 256, "microbatches": (2,), "layouts": ("line",)}
    tiled = point(**{**fields, "dram": "unlimited", "remainder": "drop", **changes})
    return [run for _, run in runs_of("x", tiled, load_model_named("gpt2"), WAFER)]


@pytest.mark.parametrize(("batch", "kept"), [(80, 80), (81, 80), (158, 80), (160, 160)])
def test_samples_that_not_every_replica_has_are_dropped_and_not_counted(batch: int, kept: int) -> None:
    """40 replicas with whole samples; PALM's replicas may have fractions of a sample."""
    (run,) = runs(batch=batch, stages=4, tensor=(2,))
    (exact,) = runs(batch=kept, stages=4, tensor=(2,))
    assert run.layout.dp == 40
    assert (run.samples, run.flops) == (kept, exact.flops)
    assert simulate_on_tiles(WAFER, run).row == simulate_on_tiles(WAFER, exact).row
    palm = replace(run, chain=LAYERS, split=())
    assert palm.samples == batch // 2 * 2


def test_a_microbatch_is_whole_on_the_replicas_of_every_stage() -> None:
    (run,) = runs(batch=150, stages=((7, 10), (7, 25)), tensor=(1,))
    assert [run.layout_of(q).dp for q in range(2)] == [10, 25]
    assert (run.replicas, run.microbatch, run.samples) == (50, 50, 100)
    # A microbatch of 20 fills the 10 replicas of the first stage, not the 310 of the second one.
    listed = {"batch": 40, "stages": ((7, 10), (7, 310)), "tensor": (1,)}
    with pytest.raises(
        PhazeError, match="each of 2 microbatches × 310 replicas, got 40; make it at least 620"
    ):
        runs(**listed)
    with pytest.raises(
        PhazeError, match="multiple of the 2 microbatches × 310 replicas, got 40; make it 620"
    ):
        runs(**listed, remainder="refuse")


def test_stages_have_the_layers_and_tiles_that_the_user_lists() -> None:
    listed = point(stages=((10, 64), (22, 128), (10, 128)), batch=320, dram="unlimited")
    ((_, run),) = runs_of("x", listed, load_model_named("t-18b"), WAFER)
    assert run.chain.count == 42
    assert run.parts_of == (10, 22, 10)
    assert [len(tiles) for tiles in run.groups] == [64, 128, 128]
    assert [run.layout_of(q).dp for q in range(3)] == [8, 16, 16]
    assert sorted(tile for tiles in run.groups for tile in tiles) == list(range(320))
    # The layers of a stage are those of the model: the embedding is in the first, the head in the last.
    names = [
        {operator.name for operator, _ in program.stage.operators} for program in programs_of(WAFER, run)
    ]
    assert ["logits" in stage for stage in names] == [False, False, True]
