"""Settings of published recipes by release: software stacks that are found from the release of a run.

`config/stacks/recipes/NAME.csv` has a row for each release, model, system and precision of a stack, with the
repository, commit and file that say it.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.base.nearest import choices
from phaze.layout import Compute
from phaze.spec.files import FOLDER
from phaze.spec.noun import Noun
from phaze.spec.overlap import Overlap
from phaze.spec.plain import short
from phaze.spec.system import Captured, Stack
from phaze.spec.values import Label, PositiveInt

STACK = "megatron-bridge"
"""Stack of a run that says its release and no stack."""
RELEASE = re.compile(r"\d\d\.\d\d(\.\d\d)?")
"""A release in a text such as `26.04.01 NeMo Container`."""
TOKENS = ("deepep", "hybridep", "ncclep")
"""Dispatchers that send a token once to each rank, whatever the number of its experts there."""
ROUTER_KERNELS = (31, 17)
"""Kernels of router and dispatch with moe_router_fusion, with all-to-all and with the dispatchers above
(Megatron-LM, Optimizing DeepSeek-V3 Training Performance on GB200, Sections 2.1.4 and 2.2.1)."""
FP8_ATTENTION = "{}-fp8"
"""Generation of an attention kernel whose operands are scaled to eight bits."""


class StackRecipe(Noun):
    """What a recipe of a release sets for a model, a system and a precision."""

    release: Label
    """Release of the container, such as 26.04.01."""
    model: Label
    """Name in config/models, or its name as published."""
    system: Label
    """System, in the name that its device begins with."""
    precision: Compute
    """Numbers that products multiply."""
    gpus: PositiveInt
    """Devices of the published run."""
    captured: tuple[Captured, ...] = ()
    """What CUDA graphs capture."""
    dispatcher: Literal["", "alltoall", "deepep", "hybridep", "ncclep"] = ""
    """Token dispatcher; empty without experts."""
    experts: Literal["", "each", "fused"] = ""
    """Products of experts: one launch for each expert, or one fused kernel for all; empty without experts."""
    overlap: Overlap = ()
    """Communication that overlaps with compute."""
    attention: Literal["bf16", "fp8"] = "bf16"
    """Operands of the attention kernel."""

    def applied(self, stack: Stack) -> Stack:
        """Stack with the settings of the recipe."""
        own: dict[str, object] = {"overlap": self.overlap, "cuda_graphs": self.captured}
        if self.dispatcher:
            own["dispatch"] = "tokens" if self.dispatcher in TOKENS else "rows"
            own["router_kernels"] = ROUTER_KERNELS[own["dispatch"] == "tokens"]
        if self.experts:
            own["experts"] = self.experts
        if self.attention == "fp8":
            own["attention"] = (*map(FP8_ATTENTION.format, stack.attention[:1]), *stack.attention)
        return stack.model_copy(update=own)


def release_of(text: str) -> str:
    """Release that a text names; PhazeError for a text with none."""
    found = RELEASE.match(text.strip())
    if found is None:
        raise PhazeError(f"release must be as 26.04 or 26.04.01, got {short(text)}")
    return found[0]


def recipe_of(
    stack: str, release: str, model: str, device: str, precision: str, gpus: int, folder: Path = FOLDER
) -> StackRecipe:
    """Recipe of a run: of its release, or of the last release before that has such a run, else the next one.

    Of several numbers of devices the nearest by ratio. Raises PhazeError for a stack without recipes, and for
    a model, device or precision of which no recipe is known.
    """
    path = folder / "stacks" / "recipes" / f"{stack}.csv"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in path.parent.glob("*.csv")))
        raise PhazeError(f"release: stack {stack} has no recipes by release; those that have: {known}")
    system = device.split("-", maxsplit=1)[0]
    every = load_recipes(path)
    found = [one for one in every if (one.model, one.system, one.precision) == (model, system, precision)]
    if not found:
        _refuse(every, {"model": model, "system": system, "precision": precision})
    releases = sorted({one.release for one in found})
    chosen = ([one for one in releases if one <= release] or releases[:1])[-1]
    own = (one for one in found if one.release == chosen)
    return min(own, key=lambda one: (max(one.gpus / gpus, gpus / one.gpus), one.gpus))


def _refuse(recipes: tuple[StackRecipe, ...], asked: dict[str, str]) -> None:
    """Raise PhazeError for the first part of a question that no recipe has together with the parts before."""
    left = list(recipes)
    for name, value in asked.items():
        known = sorted({str(getattr(one, name)) for one in left})
        left = [one for one in left if getattr(one, name) == value]
        if not left:
            before = ", ".join(f"{key} {asked[key]}" for key in list(asked)[: list(asked).index(name)])
            of = f" with {before}" if before else ""
            raise PhazeError(
                f"release: no recipe is known of {name} {value}{of}; known are "
                f"{choices(value, tuple(known), 'config/stacks/recipes')}: leave release out"
            )


@cache
def load_recipes(path: Path) -> tuple[StackRecipe, ...]:
    """Recipes of a CSV; PhazeError naming the line of one that cannot be read."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(_recipe(row, f"{path}: line {line}") for line, row in enumerate(rows, 2))


def _recipe(row: dict[str, str], source: str) -> StackRecipe:
    own: dict[str, object] = {name: row[name] for name in StackRecipe.model_fields if row.get(name)}
    for name in ("captured", "overlap"):
        own[name] = tuple(filter(None, row.get(name, "").split("+")))
    return StackRecipe.parse({**own, "gpus": int(row["gpus"])}, source)
