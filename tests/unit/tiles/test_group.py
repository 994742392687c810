"""Stages on groups of tiles."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from phaze.cost.network.mesh import Grid, Memory, Wires
from phaze.tiles.chip import Chip, Tile
from phaze.tiles.group import GroupTimes, measure
from phaze.tiles.operators import Transformer
from phaze.tiles.placement import s_shaped
from phaze.tiles.steps import Mode, Stage
from phaze.tiles.tile import Training, forward_access

GRID = Grid(8, 8)
CORE = Tile(64, 128, 0.9765625e9, 3.75e6, inf)
CHIP = Chip("small wafer", GRID, CORE, Wires(1024e9, 1e-9, (4, 4), 256e9), Memory(GRID.edge(), 256e9))
LAYER = Transformer(8, 1024, 512, 16)
INFERENCE = Mode(Training(backward=False))


def run(chip: Chip = CHIP, mode: Mode | None = None) -> GroupTimes:
    return measure(chip, Stage(s_shaped(GRID, 4, 4)[0], ((LAYER, (4, 4, 1, 1)),) * 2), mode)


def test_a_stage_takes_at_least_the_time_of_its_flops() -> None:
    times = run(mode=Mode(Training(recompute=True)))
    for part, passes in (("forward", 1), ("recompute", 1), ("backward", 2)):
        flops = passes * 2 * (24 * 8 * 512 * 1024**2 + 4 * 8 * 512**2 * 1024)
        assert times.seconds(part) >= flops / (16 * CORE.peak_flops_per_s)  # type: ignore[arg-type]
        assert 0 < times.parts[part].compute_utilisation <= 1  # type: ignore[index]
        assert sum(times.parts[part].spent.values()) == pytest.approx(times.seconds(part))  # type: ignore[arg-type,index]


def test_inference_has_a_forward_pass_only() -> None:
    times = run(mode=Mode(Training(backward=False)))
    assert list(times.parts) == ["forward"]
    assert times.seconds("backward") == 0


@pytest.mark.parametrize("sram_bytes", [1e5, 3e6, 1e7, 1e9])
def test_traffic_is_that_of_the_strategy(sram_bytes: float) -> None:
    chip = replace(CHIP, tile=replace(CORE, sram_bytes=sram_bytes))
    times = run(chip)
    moved = times.parts["forward"].traffic
    ops, capacity = times.program.sizes, sram_bytes
    wanted = [forward_access(times.strategy, op, capacity) for op in ops]
    assert moved.read_bytes == pytest.approx(sum(some.read_bytes for some in wanted))
    assert moved.write_bytes == pytest.approx(sum(some.write_bytes for some in wanted))
    # Two all-reduces a layer over four tiles, of 8/4 × 512 × 1024 elements of 2 bytes.
    assert moved.sent_bytes == pytest.approx(2 * 2 * 2 * 3 / 4 * 2 * 512 * 1024 * 2)
    assert moved.sram_bytes > 0
    assert run(chip, Mode(rate="peak")).parts["forward"].traffic.sram_bytes == 0


def test_a_tile_holds_what_adam_with_mixed_precision_needs() -> None:
    memory = run().memory
    parameters = 2 * 12 * 1024**2 / 4
    assert memory.weights_bytes == memory.gradients_bytes == 2 * parameters
    assert memory.optimizer_bytes == 12 * parameters
    assert memory.total_bytes == 16 * parameters + memory.activation_bytes
    assert memory.sram_bytes == 0
    assert run().strategy == "S_PTY"


def test_recompute_keeps_the_input_of_the_stage_only() -> None:
    kept, again = (run(mode=Mode(Training(recompute=some, in_flight=4))).memory for some in (False, True))
    assert again.microbatch_bytes == 8 / 4 * 512 * 1024 * 2
    one = kept.activation_bytes / 4
    assert again.activation_bytes == one + 3 * again.microbatch_bytes
    assert kept.microbatch_bytes < one, "the last output is not kept for the backward pass"


def test_recomputing_needs_less_memory_and_may_not_fit_either() -> None:
    stage = Stage(s_shaped(GRID, 4, 4)[0], ((LAYER, (4, 4, 1, 1)),) * 2)
    modes = [Mode(Training(recompute=some, in_flight=8)) for some in (False, True)]
    needed = measure(CHIP, stage, modes[0]).memory.total_bytes
    for room, fits in ((needed, [True, True]), (needed - 1, [False, True]), (1.0, [False, False])):
        chip = replace(CHIP, dram_bytes=room * GRID.tiles)
        assert [measure(chip, stage, mode).fits for mode in modes] == fits


def test_without_memory_all_has_to_be_in_sram() -> None:
    large = replace(CHIP, memory=None, tile=replace(CORE, sram_bytes=1e9))
    assert run(large).fits
    assert run(large).parts["forward"].dram_utilisation == 0


def test_a_batch_ends_with_synchronisation_update_and_gather() -> None:
    times = run(mode=Mode(Training(recompute=True, zero=1)))
    assert min(times.seconds(part) for part in ("recompute", "sync", "update", "gather")) > 0


def test_the_documented_example_runs(project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (project_root / "config/commands.md").read_text(encoding="utf-8")
    (example,) = (
        block.split("```")[0]
        for block in text.split("```python\n")[1:]
        if "phaze.tiles" in block.split("```")[0]
    )
    exec(compile(example, "commands.md", "exec"), {})
    assert "TileMemory(" in capsys.readouterr().out
