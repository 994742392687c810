"""Random plans over runtimes, families of models, layouts, pipeline splits, expert loads and overlaps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from random import Random

from phaze.layout import Compute, Load
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Machine
from phaze.plan.question import PlanQuestion
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.layout_string import equal_counts
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.registry import RUNTIMES
from phaze.runtimes.rules import Runtime, TrainingTask
from phaze.runtimes.space import legal_space
from phaze.spec.models import load_transformer
from phaze.spec.overlap import Overlap
from phaze.spec.systems import load_cluster, stack_for

FAMILIES = {
    "gpt": "gpt2", "bert": "bert-large", "dense": "llama-3.1-8b", "normed queries": "qwen3-8b",
    "experts": "mixtral-8x7b", "many experts": "qwen3-30b-a3b", "latent, odd experts": "deepseek-v2",
    "latent, further tokens": "deepseek-v3", "sparse": "glm-5", "windows, sinks": "gpt-oss-20b",
    "chunks": "llama-4-scout", "shared keys": "gemma-4-26b-a4b", "mamba": "nemotron-3-nano-30b-a3b",
    "delta rule": "qwen3.5-35b-a3b", "normed heads": "minimax-m2.5",
}  # fmt: skip
"""A model of every family that transformers are described by."""
SYSTEMS: dict[str, tuple[str, ...]] = {
    "bf16": ("h100", "a100-roce", "gb200"), "fp8": ("h100",), "fp8-cs": ("h100",), "fp8-block": ("h100",),
    "mxfp8": ("b200",), "nvfp4": ("gb300",),
}  # fmt: skip
"""Systems whose devices multiply in each compute format."""
SIZES = ((8, 32), (16, 64), (24, 48))
"""Numbers of devices with global batches."""
MOST_TOKENS = 2048
LOADS: tuple[Load, ...] = ("balanced", "natural", "1.5", "max_vio_0.72")
KINDS = ("dp", "tp", "pp", "ep")


@dataclass(frozen=True)
class Drawn:
    """Random plan of one runtime and family, on a machine with a random overlap."""

    family: str
    question: PlanQuestion
    recipe: Recipe

    @property
    def runtime(self) -> Runtime:
        return self.question.runtime

    @property
    def priced(self) -> PricedLayout:
        return PricedLayout.of_recipe(self.question, self.recipe)

    def __str__(self) -> str:
        recipe, machine = self.recipe, self.question.machine
        overlap = "+".join(machine.stack.overlap) or "none"
        where = f"{self.runtime.name} {recipe.model.name} on {device_of(machine).name}, {machine.stack.name}"
        split = f"blocks {recipe.blocks} recomputed {recipe.recomputed}"
        return f"{where}, overlap {overlap}: {recipe.layout} {recipe.schedule}, {split}"


@cache
def machine(system: str, runtime: str, devices: int) -> Machine:
    """Machine with the usual software of a runtime."""
    return load_machine(system, stack=stack_for(load_cluster(system)[0], runtime), devices=devices)


@lru_cache(64)  # a grid may have megabytes
def legal(runtime: Runtime, name: str, devices: int, batch: int, compute: Compute) -> LayoutGrid | None:
    """All layouts that a runtime can run; None if there are none."""
    model = load_transformer(name, "laws")
    sequence = min(MOST_TOKENS, model.position_count or MOST_TOKENS)
    grid = legal_space(runtime, TrainingTask(model, sequence, batch, devices, compute=compute)).grid
    return grid if len(grid) else None


@lru_cache(64)
def question(
    runtime: Runtime,
    name: str,
    system: str,
    sizes: tuple[int, int],
    compute: Compute,
    load: Load,
    overlap: Overlap,
) -> PlanQuestion:
    """Planning request whose layer costs are shared by all draws of it."""
    devices, batch = sizes
    model = load_transformer(name, "laws")
    sequence = min(MOST_TOKENS, model.position_count or MOST_TOKENS)
    own = machine(system, runtime.name, devices)
    own = replace(own, stack=own.stack.model_copy(update={"overlap": overlap}))
    return PlanQuestion(
        TrainingTask(model, sequence, batch, devices, compute=compute, load=load), own, runtime
    )


def draw(random: Random, runtimes: tuple[str, ...] = tuple(RUNTIMES)) -> Drawn:
    """Draw a plan that a runtime can run."""
    while True:
        runtime = RUNTIMES[random.choice(runtimes)]
        family = random.choice(list(FAMILIES))
        compute = random.choice(("bf16", *runtime.computes))
        systems = ("tpu-v5p",) if runtime.name == "maxtext" else SYSTEMS[compute]
        sizes, system, name = random.choice(SIZES), random.choice(systems), FAMILIES[family]
        grid = legal(runtime, name, *sizes, compute)
        if grid is not None:
            break
    usual = machine(system, runtime.name, sizes[0]).stack.overlap
    overlap = usual if random.random() < 0.5 else random.choice(_overlaps())
    experts = load_transformer(name, "laws").experts
    load = random.choice(LOADS) if experts and random.random() < 0.5 else "balanced"
    asked = question(runtime, name, system, sizes, compute, load, overlap)
    place = random.randrange(len(grid))
    layout = replace(grid.layout(place), load=load)
    blocks = _blocks(random, asked, layout.stages)
    recomputed = _recomputed(random, asked, layout.recompute, blocks)
    task = asked.task
    schedule = grid.schedule_of(place)
    recipe = Recipe(task.model, task.sequence, task.global_batch, layout, schedule, blocks, recomputed)
    return Drawn(family, asked, recipe)


@cache
def _overlaps() -> tuple[Overlap, ...]:
    return tuple(kinds for count in range(5) for kinds in combinations(KINDS, count))  # type: ignore[misc]


def _blocks(random: Random, asked: PlanQuestion, stages: int) -> tuple[int, ...]:
    """Blocks of every stage; only the ends may have none, and further tokens are predicted on the last."""
    model = asked.task.model
    if stages == 1:
        return (model.layers + model.mtp,)
    blocks = [0, *(1,) * (stages - 2), model.mtp]
    if sum(blocks) > model.layers + model.mtp:  # the head is alone
        blocks = [0, *(1,) * (stages - 3), model.mtp, 0]
    even = random.random() < 0.5
    for _ in range(model.layers + model.mtp - sum(blocks)):
        blocks[blocks.index(min(blocks)) if even else random.randrange(stages)] += 1
    return tuple(blocks)


def _recomputed(
    random: Random, asked: PlanQuestion, recompute: str, blocks: tuple[int, ...]
) -> tuple[int, ...]:
    """Numbers of recomputed blocks that the runtime allows."""
    counts = asked.runtime.recomputed_counts
    if recompute != "full":
        return (0,) * len(blocks)
    if counts == "all" or random.random() < 0.3:
        return blocks
    if counts == "equal":
        return equal_counts(blocks, asked.task.model.mtp, random.randint(1, max(blocks)))
    numbers = tuple(random.randint(0, held) for held in blocks)
    return numbers if any(numbers) else blocks
