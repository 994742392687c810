"""The space contains every layout once, and only layouts with the fixed values."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.runtimes.grid import COLUMNS, LayoutGrid
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import Runtime, TrainingTask
from phaze.runtimes.space import legal_space, space
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.spec.blocks import Experts
from phaze.spec.model import Model
from phaze.workload.lower.sharding import slice_model
from tests.unit.runtimes.examples import SMALL
from tests.unit.workload.examples import MODELS

SPARSE = SMALL.model_copy(update={"experts": Experts(count=6, per_token=2, width=30)})


def listed(grid: LayoutGrid) -> list[tuple[Layout, str]]:
    return [(grid.layout(place), grid.schedule_of(place)) for place in range(len(grid))]


def brute_force(runtime: Runtime, task: TrainingTask) -> set[tuple[Layout, str]]:
    """Every combination of numbers up to the devices, filtered one by one."""
    numbers = range(1, task.devices + 1)
    widths = [w for w in product(numbers, repeat=4) if w[0] * w[1] * w[2] * w[3] == task.devices]
    batches = [b for b in range(1, task.global_batch + 1) if task.global_batch % b == 0]
    stages = range(1, task.model.layers + 3)
    layouts = set()
    words = runtime.recomputes(task.model)
    for (tp, cp, pp, dp), microbatch, vp, schedule, zero, cut, recompute, kind in product(
        widths, batches, stages, runtime.schedules, runtime.zeros, (False, True), words, runtime.cp_kinds
    ):
        least, most = SCHEDULES[schedule].chunks
        nameless = (zero and dp * cp == 1) or (cut and tp == 1) or (schedule != "1f1b" and pp == 1)
        nameless |= cp == 1 and kind != runtime.cp_kinds[0]
        if nameless or not least <= vp <= most or (vp > 1 and pp * vp > task.model.layers + 2):
            continue
        for ep, etp in _folded(task, tp, tp * cp * dp):
            layout = Layout(tp, cp, ep, etp, pp, vp, dp, microbatch, cut, zero, recompute, cp_kind=kind)
            layouts.add((layout, schedule))
    return layouts


def _folded(task: TrainingTask, tp: int, ranks: int) -> list[tuple[int, int]]:
    if not task.experts:
        return [(1, 1)]
    return [
        (ep, etp)
        for ep in range(1, task.experts + 1)
        for etp in range(1, ranks + 1)
        if ranks % (ep * etp) == 0 and (tp % etp == 0 or ep == task.experts)
    ]


@pytest.mark.parametrize("runtime", [MEGATRON, TORCHTITAN], ids=lambda runtime: runtime.name)
@pytest.mark.parametrize(
    ("devices", "global_batch", "model"), [(8, 12, SMALL), (16, 8, SMALL), (8, 4, SPARSE)]
)
def test_the_space_is_what_counting_one_by_one_finds(
    runtime: Runtime, devices: int, global_batch: int, model: Model
) -> None:
    task = TrainingTask(model, 240, global_batch, devices)
    grid = space(runtime, task)
    layouts = listed(grid)
    assert len(layouts) == len(set(layouts)) == len(grid)
    assert set(layouts) == brute_force(runtime, task)


def test_rules_of_all_at_once_are_those_of_one() -> None:
    task = TrainingTask(SMALL, 240, 12, 6)
    for runtime in (MEGATRON, TORCHTITAN):
        grid = space(runtime, task)
        broken = runtime.illegal(task, grid)
        refused = [any(places[i] for places in broken.values()) for i in range(len(grid))]
        assert 0 < sum(refused) < len(grid)
        assert refused == [runtime.why_not(task, *layout) is not None for layout in listed(grid)]


def test_the_legal_layouts_are_those_that_no_rule_refuses_and_the_others_are_counted_once() -> None:
    for runtime in (MEGATRON, TORCHTITAN):
        for devices, global_batch, fixed in (
            (12, 24, {}),
            (16, 20, {}),
            (24, 48, {"pp": 2}),
            (8, 6, {"zero": 3}),
        ):
            task = TrainingTask(SMALL, 240, global_batch, devices)
            grid, legal = space(runtime, task, fixed), legal_space(runtime, task, fixed)
            broken = runtime.illegal(task, grid)
            assert listed(legal.grid) == listed(grid.take(~np.any(list(broken.values()), axis=0)))
            assert legal.layouts == len(grid) == len(legal.grid) + sum(legal.illegal.values())
            assert list(legal.illegal) == list(broken)
            assert all(0 <= legal.illegal[name] <= places.sum() for name, places in broken.items())


def test_a_rule_looks_at_the_columns_that_it_names() -> None:
    task, numbers = TrainingTask(SMALL, 240, 24, 12), np.random.default_rng(0)
    for runtime in (MEGATRON, TORCHTITAN):
        grid = space(runtime, task)
        for rule in runtime.rules:
            others = {
                name: numbers.permutation(getattr(grid, name)) for name in COLUMNS if name not in rule.columns
            }
            assert (rule.broken(task, replace(grid, **others)) == rule.broken(task, grid)).all(), rule.name


@pytest.mark.parametrize(
    "fixed",
    [
        {"tp": 2, "pp": 4},
        {"schedule": "interleaved", "vp": 2},
        {"zero": 1, "recompute": "full", "dp": 4},
        {"sequence_parallel": 1, "microbatch": 3},
    ],
    ids="-".join,
)
def test_what_is_fixed_is_the_part_of_the_space_that_has_it(fixed: dict[str, int | str]) -> None:
    task = TrainingTask(SMALL, 240, 24, 16)

    def has(layout: Layout, schedule: str) -> bool:
        return all(
            (schedule if name == "schedule" else getattr(layout, name)) == value
            for name, value in fixed.items()
        )

    assert listed(space(MEGATRON, task, fixed)) == [row for row in listed(space(MEGATRON, task)) if has(*row)]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_grid_that_leaves_out_a_column_is_refused(column: str) -> None:
    grid = space(MEGATRON, TrainingTask(SMALL, 240, 24, 16))
    others = {name: value for name, value in vars(grid).items() if name != column}
    with pytest.raises(TypeError, match=column):
        LayoutGrid(**others)


def test_microbatches_go_up_to_the_batch() -> None:
    task = TrainingTask(SMALL, 240, 256, 2)
    assert set(space(MEGATRON, task).microbatch) == {2**power for power in range(9)}
    assert legal_space(MEGATRON, task).families.microbatch.max() == 256
    assert set(space(MEGATRON, task, {"microbatch": 128}).microbatch) == {128}


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"tensor": 2}, "tensor: is not a field of a layout; known are .* all are in config/commands.md"),
        ({"schedule": "gpipe"}, "schedule: must be one of 1f1b, interleaved with megatron, got gpipe"),
        ({"tp": 0}, "tp: must be a whole number from 1 to 2147483647, got 0"),
        ({"vp": "two"}, "vp: must be a whole number from 1 to 2147483647, got two"),
        ({"zero": 4}, "zero: must be one of 0, 1, 2, 3 with megatron, got 4"),
        (
            {"recompute": "mlp+moe_act"},
            "recompute: must be one of none, full, selective, or of core_attn, layernorm, mlp",
        ),
        ({"tp": 3}, "megatron: no layout of 16 devices has tp=3"),
        ({"pp": 1, "vp": 2}, "megatron: no layout of 16 devices has pp=1, vp=2"),
    ],
)
def test_what_cannot_be_fixed_is_named(fixed: dict[str, int | str], message: str) -> None:
    with pytest.raises(PhazeError, match=message.replace("(", "[(]")):
        space(MEGATRON, TrainingTask(SMALL, 240, 24, 16), fixed)


def test_every_set_of_modules_may_be_recomputed_and_one_that_is_asked_for_alone() -> None:
    task = TrainingTask(SMALL, 240, 24, 16)
    words = ("none", "full", "selective", "layernorm", "mlp", "layernorm+mlp")
    assert MEGATRON.recomputes(SMALL) == words
    every = legal_space(MEGATRON, task)
    assert every.families.recomputes == words
    assert len(every.grid) == len(words) * len(every.families)
    for recompute in ("mlp", "core_attn+mlp"):
        legal = legal_space(MEGATRON, task, {"recompute": recompute})
        assert len(legal.grid) == len(legal.families) == len(every.families)
        assert {layout.recompute for layout, _ in listed(legal.grid)} == {recompute}


def test_no_set_of_modules_names_what_another_one_of_it_recomputes() -> None:
    """A mixture of experts with dense layers: 2 · 2 sets of layernorm and mlp, with moe, with moe_act and
    shared_experts, or without them; the empty set is excluded, and there are two more options.
    """
    words = MEGATRON.recomputes(MODELS["nemotron-3-nano-30b-a3b"])
    sets = [frozenset(word.split("+")) for word in words[3:]]
    names = set().union(*sets)
    assert names >= {"moe", "moe_act", "shared_experts"}
    others = len(names - {"moe", "moe_act", "shared_experts"})
    assert len(set(sets)) == len(sets) == 2**others * 5 - 1
    assert not any("moe" in modules and modules & {"moe_act", "shared_experts"} for modules in sets)


def test_a_grid_gives_back_its_layouts() -> None:
    layouts = [
        (Layout(tp=2, pp=2, vp=2, sequence_parallel=True, recompute="full"), "interleaved"),
        (Layout(), "1f1b"),
    ]
    grid = MEGATRON.grid(SMALL, layouts)
    assert listed(grid) == layouts
    assert listed(grid.take(grid.tp == 1)) == layouts[1:]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [MEGATRON, TORCHTITAN], ids=lambda runtime: runtime.name)
def test_every_legal_layout_can_be_cut(runtime: Runtime) -> None:
    """Valid layouts can shard the model: with grouped, latent and sink heads, experts and scans."""
    names = ("nemotron-3-nano-30b-a3b", "qwen3.5-35b-a3b", "deepseek-v2", "gpt-oss-20b", "gpt2-xl")
    for model in (MODELS[name] for name in names):
        assert isinstance(model, Model)
        trained, sequence = model.model_copy(update={"mtp": 0}), 1024
        grid = legal_space(runtime, TrainingTask(trained, sequence, 16, 32)).grid
        _, first = np.unique(np.stack([grid.tp, grid.cp, grid.cp_kind, grid.etp]), axis=1, return_index=True)
        assert len(first) >= 5
        for place in first.tolist():
            slice_model(trained, sequence, grid.layout(place), 2)
