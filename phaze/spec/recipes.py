"""Published recipes: how a model was trained on how many devices, and what a release of a stack then sets.

`config/recipes/SOURCE.csv` has a row for each recipe, with the repository or paper that says it. Where a
source is a software stack, its rows also set the stack of a run that says its release.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.base.nearest import choices
from phaze.layout import Compute, Layout, Load, Zero, offload_of, recompute_of
from phaze.spec.files import FOLDER
from phaze.spec.noun import Noun
from phaze.spec.overlap import Overlap
from phaze.spec.plain import short
from phaze.spec.system import Captured, Stack
from phaze.spec.values import Count, Flag, Label, PositiveInt

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
SAID = ("capacity", "graphs", "moments", "nccl_ub", "agrees")
"""Columns that are for the reader alone."""
NUMBERS = ("gpus", "sequence", "global_batch", "microbatch", "tp", "cp", "ep", "etp", "pp", "vp", "zero")
FLAGS = {"true": True, "false": False}
JOINED = ("captured", "overlap")
"""Columns of several words joined by +."""
SETTINGS = "captured"
"""Column that tells recipes with settings of a stack."""
BLOCKS = re.compile(r"full:([1-9]\d{0,3})")
"""Full recomputation of so many blocks of every virtual stage (`--recompute-num-layers`)."""


class PublishedRecipe(Noun):
    """How a source trains a model on so many devices: its layout, the batch, and where it says so."""

    source: Label
    """Name of the file: the stack or model whose recipe it is."""
    release: Label
    """Release, or year and month of publication."""
    model: Label
    """Name in config/models, or its name as published."""
    system: Label
    """System, in the name that its device or its file begins with."""
    precision: Compute
    """Compute precision of products."""
    gpus: Count
    """Devices."""
    sequence: PositiveInt
    """Tokens of a sample."""
    global_batch: PositiveInt | None = None
    """Samples of a batch; none where it is not published."""
    microbatch: PositiveInt | None = None
    """Samples of a microbatch; none where it is not published."""
    tp: PositiveInt = 1
    """Tensor parallel."""
    cp: PositiveInt = 1
    """Context parallel."""
    ep: PositiveInt = 1
    """Expert parallel."""
    etp: PositiveInt = 1
    """Tensor parallel inside an expert."""
    pp: PositiveInt = 1
    """Pipeline parallel."""
    vp: PositiveInt | None = None
    """Virtual stages of a rank; none where it is not published, or without a pipeline."""
    zero: Zero
    """ZeRO stage: 0 nothing is sharded, 1 optimizer states, 2 also gradients, 3 also weights (FSDP)."""
    sequence_parallel: Flag | None = None
    """Whether activations between layers are cut along the sequence; with every tp >= 2 unless given."""
    cp_kind: Literal["", "all_gather", "p2p", "a2a"] = ""
    """How context parallel ranks exchange keys and values; p2p, Megatron-Core's default, unless given."""
    schedule: str = ""
    """Pipeline schedule; 1f1b or interleaved, as vp says, unless given."""
    recompute: Label = "none"
    """Recomputed activations: none, selective, full, `full:k` for k blocks of every virtual stage, or
    modules joined by +."""
    offload: Label = "none"
    """What waits in the host's memory: none, `layers:k`, or modules joined by +."""
    pipeline_layout: str = ""
    """Blocks of every virtual stage as Megatron-Core's layout string; equal stages unless given."""
    repository: Label
    """Repository, package or paper that says it."""
    commit: Label
    """Version of it."""
    file: Label
    """File, or table and section."""

    @property
    def dp(self) -> int:
        """Replicas; 0 where widths exceed the devices."""
        return self.gpus // (self.tp * self.cp * self.pp)

    @property
    def shape(self) -> str:
        """Layout in a few words, as published."""
        named = (("tp", self.tp), ("cp", self.cp), ("ep", self.ep), ("etp", self.etp), ("pp", self.pp))
        words = [f"{name} {width}" for name, width in (*named, ("vp", self.vp or 1)) if width > 1]
        words += [f"dp {self.dp}", *([f"mbs {self.microbatch}"] if self.microbatch else [])]
        words += [f"ZeRO-{self.zero}", *([self.schedule] if self.schedule else [])]
        words += [f"recompute {self.recompute}"] * (self.recompute != "none")
        return " ".join([*words, *([f"offload {self.offload}"] * (self.offload != "none"))])

    @property
    def stated_in(self) -> str:
        """Repository or paper, and the place there."""
        return f"{self.repository} {self.commit}, {self.file}"

    @property
    def recomputed_blocks(self) -> int | None:
        """Blocks of every virtual stage that are recomputed in full; None: all that the layout recomputes."""
        found = BLOCKS.fullmatch(self.recompute)
        return int(found[1]) if found else None

    def layout(self, microbatch: int, vp: int, load: Load) -> Layout:
        """Layout with a load of experts, and the microbatch and virtual stages that the source leaves open.

        Raises PhazeError for recomputation and offload that phaze has no word for.
        """
        return Layout(
            tp=self.tp,
            cp=self.cp,
            ep=self.ep,
            etp=self.etp,
            pp=self.pp,
            vp=self.vp or vp,
            dp=self.dp,
            microbatch=self.microbatch or microbatch,
            sequence_parallel=self.tp > 1 if self.sequence_parallel is None else self.sequence_parallel,
            zero=self.zero,
            recompute="full" if self.recomputed_blocks else recompute_of(self.recompute),
            compute=self.precision,
            cp_kind=(self.cp_kind or "p2p") if self.cp > 1 else "all_gather",
            load=load,
            offload=offload_of(self.offload),
        )


class StackRecipe(PublishedRecipe):
    """What a recipe of a release also sets of the software stack."""

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
    of_stacks = [one for one in published_recipes(folder) if isinstance(one, StackRecipe)]
    every = [one for one in of_stacks if one.source == stack]
    if not every:
        known = ", ".join(sorted({one.source for one in of_stacks}))
        raise PhazeError(f"release: stack {stack} has no recipes by release; those that have: {known}")
    system = device.split("-", maxsplit=1)[0]
    found = [one for one in every if (one.model, one.system, one.precision) == (model, system, precision)]
    if not found:
        _refuse(every, {"model": model, "system": system, "precision": precision})
    releases = sorted({one.release for one in found})
    chosen = ([one for one in releases if one <= release] or releases[:1])[-1]
    own = (one for one in found if one.release == chosen)
    return min(own, key=lambda one: (max(one.gpus / gpus, gpus / one.gpus), one.gpus))


def _refuse(recipes: Sequence[StackRecipe], asked: dict[str, str]) -> None:
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
                f"{choices(value, tuple(known), 'config/recipes')}: leave release out"
            )


@cache
def published_recipes(folder: Path = FOLDER) -> tuple[PublishedRecipe, ...]:
    """Recipes of all sources; PhazeError naming file, line and column of one that cannot be read."""
    return tuple(chain.from_iterable(map(load_recipes, sorted((folder / "recipes").glob("*.csv")))))


def load_recipes(path: Path) -> tuple[PublishedRecipe, ...]:
    """Recipes of a source, with settings of a stack where its table has them."""
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        rows, columns = list(table), table.fieldnames or ()
    kind = StackRecipe if SETTINGS in columns else PublishedRecipe
    if unknown := [name for name in columns if name not in (*kind.model_fields, *SAID)]:
        near = choices(unknown[0], (*kind.model_fields, *SAID), "config/recipes/README.md")
        raise PhazeError(f"{path}: line 1: {unknown[0]}: is no column; known are {near}")
    found = []
    for line, row in enumerate(rows, 2):
        where = f"{path}: line {line}"
        found.append(kind.parse({**_values(kind, row, where), "source": path.stem}, where))
    return tuple(found)


def _values(kind: type[PublishedRecipe], row: Mapping[str | None, str], where: str) -> dict[str, object]:
    """Fields of a row; empty ones are left out. PhazeError for cells without a column."""
    if None in row:
        raise PhazeError(f"{where}: has more cells than columns")
    found: dict[str, object] = {name: row[name] for name in kind.model_fields if row.get(name)}
    for name in found.keys() & {*NUMBERS}:
        found[name] = int(row[name]) if row[name].isdecimal() else row[name]
    for name in found.keys() & {*JOINED}:
        found[name] = tuple(row[name].split("+"))
    if "sequence_parallel" in found:
        found["sequence_parallel"] = FLAGS.get(row["sequence_parallel"], row["sequence_parallel"])
    return found
