"""Published recipes: layouts and batches of trained models, and a release's stack settings.

`config/recipes/SOURCE.csv` has one row per recipe, with the repository or paper that states it. If the source
is a software stack, its rows also set the stack of measured runs that name a release.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean
from phaze.base.printed import short
from phaze.layout import (
    MODEL_WIDTHS,
    Compute,
    Layout,
    Load,
    ModelWidths,
    Zero,
    named_widths,
    offload_of,
    recompute_of,
)
from phaze.spec.derived import DerivedNoun
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.model import Model
from phaze.spec.models import load_transformer
from phaze.spec.overlap import Overlap
from phaze.spec.system import Captured, Stack
from phaze.spec.values import Count, Flag, Label, PositiveInt, Text

STACK = "megatron-bridge"
"""Default software stack of a run that names a release."""
RELEASE = re.compile(r"\d\d\.\d\d(\.\d\d)?")
"""Pattern of a release in a text such as `26.04.01 NeMo Container`."""
TOKENS = ("deepep", "hybridep", "ncclep")
"""Dispatchers that send a token once to each rank, however many of its experts are there."""
ROUTER_KERNELS = ((31, 14), (17, 17))
"""Numbers of router and dispatch kernels with moe_router_fusion, forward and backward.

The first pair is for all-to-all, the second for the dispatchers above. Forward: Megatron-LM, Optimizing
DeepSeek-V3 Training Performance on GB200, Sections 2.1.4 and 2.2.1. Backward, counted from
megatron/core/transformer/moe: two products, four casts around them, one sum into the weight's gradient;
gradients of top-k, of the scores for the auxiliary loss and of the loss, two kernels that scale it
(`MoEAuxLossAutoScaler`), one sum of both gradients of the logits; the exchange of the gradients of
probabilities or, for the dispatchers above, a cast, the gradient of their multi-hot form, and a scatter
into zeros.
"""
FP8_ATTENTION = "{}-fp8"
"""Name of an attention kernel with FP8 operands, given the name of its generation."""
UNUSED_COLUMNS = ("capacity", "graphs", "nccl_ub", "agrees")
"""Columns for human readers only, which phaze does not use."""
NUMBERS = ("gpus", "sequence", "global_batch", "microbatch", *MODEL_WIDTHS, "zero")
FLAGS = {"true": True, "false": False}
JOINED = ("captured", "overlap")
"""Columns that list several values, joined by +."""
SETTINGS = "captured"
"""Column that marks tables with stack settings; other tables lack it."""
BLOCKS = re.compile(r"full:([1-9]\d{0,3})")
"""Pattern of full recomputation of k blocks per virtual stage (`--recompute-num-layers`)."""


class PublishedRecipe(DerivedNoun, ModelWidths[int]):
    """Published training setup of a model: layout, batch, number of devices and source."""

    source: Label
    """Name of the file: the stack or model that the recipe belongs to."""
    release: Label
    """Release, or year and month of publication."""
    model: Label
    """Name in config/models, or the published name."""
    system: Label
    """System, by the first part of the name of its device or file."""
    precision: Compute
    """Compute precision of GEMMs."""
    gpus: Count
    """Number of devices."""
    sequence: PositiveInt
    """Tokens per sample."""
    global_batch: PositiveInt | None = None
    """Samples per training step; None if unpublished."""
    microbatch: PositiveInt | None = None
    """Samples per microbatch; None if unpublished."""
    vp: PositiveInt | None = None
    """Virtual stages per pipeline rank; None if unpublished or without a pipeline."""
    zero: Zero
    """ZeRO stage: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 also weights (FSDP)."""
    sequence_parallel: Flag | None = None
    """True if activations between layers are sharded along the sequence; default: true for tp >= 2."""
    cp_kind: Literal["", "all_gather", "p2p", "a2a"] = ""
    """Exchange of keys and values between context-parallel ranks; default: p2p, as in Megatron-Core."""
    schedule: Text = ""
    """Pipeline schedule; default: 1f1b, or interleaved if vp > 1."""
    recompute: Label = "none"
    """Recomputed activations: none, selective, full, `full:k` for k blocks per virtual stage, or modules
    joined by +."""
    offload: Label = "none"
    """Data offloaded to host memory: none, `layers:k`, or modules joined by +."""
    moments: Literal["", "fp32", "bf16"] = ""
    """Format of Adam's moments; default: fp32."""
    pipeline_layout: Text = ""
    """Blocks of every virtual stage as Megatron-Core's layout string; default: equal stages."""
    repository: Label
    """Repository, package or paper that states the recipe."""
    commit: Label
    """Version of the repository, package or paper."""
    file: Label
    """File, or table and section, that states the recipe."""

    @property
    def dp(self) -> int:
        """Number of replicas; 0 if the other widths exceed the number of devices."""
        return self.gpus // (self.tp * self.cp * self.pp)

    @property
    def shape(self) -> str:
        """Short description of the layout, as published."""
        words = [
            *named_widths(self),
            f"dp {self.dp}",
            *([f"mbs {self.microbatch}"] if self.microbatch else []),
        ]
        words += [f"ZeRO-{self.zero}", *([self.schedule] if self.schedule else [])]
        words += [f"recompute {self.recompute}"] * (self.recompute != "none")
        words += [f"offload {self.offload}"] * (self.offload != "none")
        return " ".join([*words, *(["optimizer adam-bf16"] * (self.moments == "bf16"))])

    @property
    def stated_in(self) -> str:
        """Repository or paper with version, and the file or table in it."""
        return f"{self.repository} {self.commit}, {self.file}"

    @property
    def recomputed_blocks(self) -> int | None:
        """Number of fully recomputed blocks per virtual stage; None if the recipe states no number."""
        match = BLOCKS.fullmatch(self.recompute)
        return int(match[1]) if match else None

    def layout(self, microbatch: int, vp: int, load: Load) -> Layout:
        """Layout of the recipe with an expert load; `microbatch` and `vp` apply if the source states none.

        Raises PhazeError for recomputation and offload options that phaze does not support.
        """
        widths = {name: getattr(self, name) for name in MODEL_WIDTHS if name != "vp"}
        return Layout(
            **widths,
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
            optimizer="adam-bf16" if self.moments == "bf16" else "adam",
        )


class StackRecipe(PublishedRecipe):
    """Training recipe published with a release of a software stack, and the stack's settings."""

    captured: tuple[Captured, ...] = ()
    """Parts captured by CUDA graphs."""
    dispatcher: Literal["", "alltoall", "deepep", "hybridep", "ncclep"] = ""
    """Token dispatcher; empty for models without experts."""
    experts: Literal["", "each", "fused"] = ""
    """Expert GEMMs: `each`, one launch per expert, or `fused`, one kernel for all; empty without
    experts."""
    overlap: Overlap = ()
    """Communication that overlaps with compute."""
    attention: Literal["bf16", "fp8"] = "bf16"
    """Precision of the attention kernel's operands."""

    def applied(self, stack: Stack) -> Stack:
        """Copy of the stack with the recipe's settings."""
        changes: dict[str, object] = {"overlap": self.overlap, "cuda_graphs": self.captured}
        if self.dispatcher:
            changes["dispatch"] = "tokens" if self.dispatcher in TOKENS else "rows"
            changes["router_kernels"] = ROUTER_KERNELS[changes["dispatch"] == "tokens"]
        if self.experts:
            changes["experts"] = self.experts
        if self.attention == "fp8":
            # FP8 kernels first; a device without them falls back to the stack's own preference.
            changes["attention"] = (*map(FP8_ATTENTION.format, stack.attention[:1]), *stack.attention)
        return stack.model_copy(update=changes)


def month_of(date: str) -> str:
    """Month of a date such as 2025-04 or 2025-04-30; PhazeError for another form."""
    if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-\d\d)?", date):
        raise PhazeError(f"date must be a month such as 2025-04, got {short(date)}")
    return date[:7]


def release_of(text: str) -> str:
    """Parse the release at the start of a string; PhazeError if there is none."""
    match = RELEASE.match(text.strip())
    if match is None:
        raise PhazeError(f"release must look like 26.04 or 26.04.01, got {short(text)}")
    return match[0]


def published_model(model: Model, folder: Path = FOLDER) -> str:
    """Name under which recipes list a model of these sizes, or else its own.

    Sizes are layers, width, heads, heads of keys and values, and number and width of experts, or else the
    width of the dense network.
    """
    return _names_by_size(folder).get(_sizes(model), model.name)


def _sizes(model: Model) -> tuple[int, ...]:
    networks = (model.experts.count, model.experts.width) if model.experts else (0, model.feed_forward)
    return model.layers, model.hidden, model.heads, model.key_value_heads or model.heads, *networks


@cache
def _names_by_size(folder: Path) -> dict[tuple[int, ...], str]:
    """Name of every model with recipes, by its sizes (config/models, or a file next to the tables)."""
    names = {recipe.model for recipe in published_recipes(folder)}
    spec_names = {path.stem for path in (folder / "models").glob("*.yaml")} & names
    sizes = {_sizes(load_transformer(name, "model", folder)): name for name in spec_names}
    listed_sizes = read_mapping(folder / "recipes" / "models.yaml")
    return sizes | {tuple(numbers): name for name, numbers in listed_sizes.items()}  # type: ignore[arg-type]


def recipe_of(
    stack: str, release: str, model: Model, device: str, precision: str, gpus: int
) -> StackRecipe | None:
    """Find the recipe of a run, in its release or else in a nearby release; None if no release has one.

    A model is found by its sizes, and a device by the first part of its name. The latest release with a
    recipe that is not newer than the run's is chosen, or else the earliest newer one. Among several numbers
    of devices it is the one with the nearest ratio. Raises PhazeError for a stack without recipes.
    """
    with_releases = [recipe for recipe in published_recipes() if isinstance(recipe, StackRecipe)]
    of_stack = [recipe for recipe in with_releases if recipe.source == stack]
    if not of_stack:
        stacks = ", ".join(sorted({recipe.source for recipe in with_releases}))
        raise PhazeError(f"release: stack {stack} has no recipes by release; stacks with recipes: {stacks}")
    system = device.split("-", maxsplit=1)[0]
    key = published_model(model), system, precision
    matching = [recipe for recipe in of_stack if (recipe.model, recipe.system, recipe.precision) == key]
    if not matching:
        return None
    releases = sorted({recipe.release for recipe in matching})
    nearest_release = ([name for name in releases if name <= release] or releases[:1])[-1]
    candidates = (recipe for recipe in matching if recipe.release == nearest_release)
    return min(candidates, key=lambda recipe: (max(recipe.gpus / gpus, gpus / recipe.gpus), recipe.gpus))


@cache
def published_recipes(folder: Path = FOLDER) -> tuple[PublishedRecipe, ...]:
    """Load the recipes of all sources; PhazeError names file, line and column of an invalid one."""
    return tuple(chain.from_iterable(map(load_recipes, sorted((folder / "recipes").glob("*.csv")))))


def load_recipes(path: Path) -> tuple[PublishedRecipe, ...]:
    """Recipes published by one source, with stack settings if the table has columns for them."""
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        rows, columns = list(table), table.fieldnames or ()
    kind = StackRecipe if SETTINGS in columns else PublishedRecipe
    if unknown := [name for name in columns if name not in (*kind.model_fields, *UNUSED_COLUMNS)]:
        near = did_you_mean(unknown[0], (*kind.model_fields, *UNUSED_COLUMNS), "config/recipes/README.md")
        raise PhazeError(f"{path}: line 1: {unknown[0]}: is not a column", near)
    recipes = []
    for line, row in enumerate(rows, 2):
        where = f"{path}: line {line}"
        recipes.append(kind.parse({**_values(kind, row, where), "source": path.stem}, where))
    return tuple(recipes)


def _values(kind: type[PublishedRecipe], row: Mapping[str | None, str], where: str) -> dict[str, object]:
    """Non-empty fields of a table row; PhazeError for cells without a column."""
    if None in row:
        raise PhazeError(f"{where}: has more cells than columns")
    fields: dict[str, object] = {name: row[name] for name in kind.model_fields if row.get(name)}
    # Anything else than digits stays text, so that the type refuses it by name and value.
    for name in fields.keys() & {*NUMBERS}:
        fields[name] = int(row[name]) if row[name].isdecimal() else row[name]
    for name in fields.keys() & {*JOINED}:
        fields[name] = tuple(row[name].split("+"))
    if "sequence_parallel" in fields:
        fields["sequence_parallel"] = FLAGS.get(row["sequence_parallel"], row["sequence_parallel"])
    return fields
