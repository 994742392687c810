"""Random recipes from everything that a runtime can run."""

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random

from phaze.layout import Compute, Layout
from phaze.runtimes.layout_string import equal_counts
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import Runtime, TrainingTask
from phaze.runtimes.space import legal_space
from phaze.spec.model import Model
from phaze.spec.models import load_transformer
from tests.unit.runtimes.examples import SMALL

DENSE = (("llama-3.1-8b", 64, 512), ("llama-3.1-405b", 1024, 2048), ("t-18b", 256, 1024))
"""Models with device counts and batch sizes."""
OF_TODAY = (
    ("deepseek-v3", 16, 64), ("qwen3-30b-a3b", 32, 128), ("gpt-oss-120b", 32, 128),
    ("nemotron-3-nano-30b-a3b", 32, 128), ("qwen3.5-35b-a3b", 32, 128), ("glm-5", 16, 64),
)  # fmt: skip
"""Models with experts, latent and sparse attention, windows, scans and multi-token prediction."""


def drawn(
    runtime: Runtime,
    number: int,
    models: Sequence[tuple[str, int, int]] = DENSE,
    computes: Sequence[Compute] = ("bf16",),
) -> Iterator[Recipe]:
    """Several valid recipes for each model and precision, with random stages."""
    random = Random(7)
    for (name, devices, batch), compute in product(models, computes):
        model = load_transformer(name, "test")
        sequence = 2048
        task = TrainingTask(model, sequence, batch, devices, compute=compute)
        grid = legal_space(runtime, task).grid
        for place in random.sample(range(len(grid)), number):
            layout = grid.layout(place)
            blocks = divided(random, model.layers + model.mtp, layout.stages)
            counts = recomputed(random, runtime, layout, blocks, model.mtp)
            yield Recipe(model, sequence, batch, layout, grid.schedule_of(place), blocks, counts)


def divided(random: Random, layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of stages; only the ends may have none."""
    if stages == 1:
        return (layers,)
    least = [0, *(1,) * (stages - 2), 0]
    for _ in range(layers - sum(least)):
        least[random.randrange(stages)] += 1
    return tuple(least)


def recomputed(
    random: Random, runtime: Runtime, layout: Layout, blocks: tuple[int, ...], mtp: int
) -> tuple[int, ...]:
    """No blocks, all blocks, or numbers of first blocks of every stage that the runtime allows."""
    if layout.recompute != "full":
        return (0,) * len(blocks)
    if runtime.recomputed_counts == "any":
        numbers = tuple(random.randint(0, count) for count in blocks)
        return numbers if any(numbers) else blocks
    if runtime.recomputed_counts == "all" or random.random() < 0.3:
        return blocks
    return equal_counts(blocks, mtp, random.randint(1, max(blocks)))


def small(layout: Layout, schedule: str, blocks: tuple[int, ...], recomputed: tuple[int, ...] = ()) -> Recipe:
    """Recipe of the small model with a batch of 24 samples."""
    return Recipe(SMALL, 240, 24, layout, schedule, blocks, recomputed or (0,) * len(blocks))


def of_model(model: Model) -> Recipe:
    """Recipe of another model on one device."""
    return Recipe(model, 240, 24, Layout(), "1f1b", (model.layers + model.mtp,), (0,))
