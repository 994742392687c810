"""Answer of `phaze chip`: the chip to build for some models, its plans, and other chips beside it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from phaze.spec.architecture import Architecture, ArchitectureSpace
from phaze.spec.names import ChipObjective, Rank
from phaze.spec.noun import Noun
from phaze.spec.system import Cluster
from phaze.spec.training_plan import RankedPlan
from phaze.spec.values import Count, Label, Positive, PositiveInt, Result, Size, Text


class ModelOnChips(Noun):
    """Training of a model for which a chip is chosen."""

    model: Label
    """Name of the model."""
    sequence: PositiveInt
    """Tokens per sample."""
    global_batch: PositiveInt
    """Samples per training step."""
    devices: Count | None = None
    """Number of devices; null: that of the question."""


class ChipPrices(Noun):
    """Prices of the parts of a chip, in the user's currency."""

    per_mm2: Positive
    """Price of a mm² of die, with yield, test and packaging."""
    per_gib: Result
    """Price of a GiB of HBM."""
    currency: Text | None = None
    """Currency of the prices."""


class ChipQuestion(Noun):
    """Question for the best chip: models, cluster, and the space of designs."""

    models: tuple[ModelOnChips, ...] = Field(min_length=1)
    """Models to train, each on all devices."""
    devices: Count
    """Number of devices."""
    cluster: Cluster
    """Network of the devices."""
    space: ArchitectureSpace
    """Designs to choose from, with their area limit."""
    hbm_gib: tuple[Positive, ...] = Field(min_length=1)
    """HBM capacities of a design, in GiB."""
    rank: Rank
    """Kind of step time that is compared."""
    objective: ChipObjective = "time"
    """What the chip is chosen for: least step time, or least area, energy or price per throughput."""
    prices: ChipPrices | None = None
    """Prices of the parts of a chip, which the objective `cost` needs."""
    gap: Size
    """Gap to the best score at which a search ends."""


class PlanOnChip(Noun):
    """Best plan of a model on a chip."""

    model: Label
    """Name of the model."""
    plan: RankedPlan | None = None
    """The plan; null if no layout fits, or none was found in time."""
    stopped: Text | None = None
    """Reason why the search on this chip ended early; null if it did not."""
    bound_s: Result | None = None
    """Lower bound in seconds on the step time of every layout on this chip; null if no layout fits."""
    times_best: Positive | None = None
    """Score by the objective, relative to the best one of this model on any chip of the space."""
    tokens_per_s_mm2: Result | None = None
    """Tokens per second and mm² of a chip's area."""
    tokens_per_j: Result | None = None
    """Tokens per joule that the chips take: cores, buffers, HBM, links and leakage."""
    tokens_per_s_price: Result | None = None
    """Tokens per second and unit of the price of a chip; null without prices."""


class ChipForModels(Noun):
    """Chip with its plans of all models."""

    role: Label
    """Why the chip is listed: `all` for the common one, the name of a model for its best chip, a changed key
    such as glb_mib=16; `built` for an architecture as it is, such as TPU v4, and `template` for the design
    nearest to another, such as an H100."""
    chip: Architecture
    """The design, with its HBM."""
    area_low_mm2: Result
    """Least area in mm² that the sources of the technology support; equal to the area where they agree."""
    area_high_mm2: Result
    """Largest area in mm² that the sources of the technology support."""
    price: Positive | None = None
    """Price of a chip with its HBM; null without prices."""
    plans: tuple[PlanOnChip, ...]
    """Plan of every model, in the order of the question."""


class BoundForModel(Noun):
    """Best score of a model on any chip of the space, with its lower bound.

    A score is the step time in seconds, or per token per second the mm² or the price of the chips, or the
    joules of a token. Less is better.
    """

    model: Label
    """Name of the model."""
    score: Result
    """Score of the best plan that was found on any chip."""
    bound: Result
    """Lower bound on the score of every layout on every chip."""
    stopped: Text | None = None
    """Reason why the search for this model ended early; null if it did not."""


class ChipRegret(Noun):
    """Chip in a case, which is a model under one assumption."""

    model: Label
    """Name of the model."""
    assumption: Text
    """Assumption, as a clause after `if`."""
    chip: Label
    """Name of the chip."""
    hbm_gib: Positive
    """HBM capacity in GiB."""
    regret: Result | None
    """Share by which a score is above that of the best chip of the case; null if the model does not fit."""


class RobustChoice(Noun):
    """Regret of chips if rates, vector cores, overlap or the load of experts are not as assumed."""

    compared: tuple[ChipRegret, ...] = Field(min_length=1)
    """Compared chips, each in the case of its largest regret, by increasing regret; the first is chosen."""
    cases: tuple[ChipRegret, ...] = Field(min_length=1)
    """Best chip of every model under every assumption, with the regret of the chosen chip."""
    gap: Size
    """Most by which a chip that is not compared can be better than the best compared one in any case."""


class ChipChoice(Noun):
    """The chip to build for some models, with bounds over all designs and layouts."""

    format: Literal["phaze-chip"] = "phaze-chip"
    """Name of the format."""
    question: ChipQuestion
    """The question."""
    designs: PositiveInt
    """Number of designs within the area limit, each with all HBM capacities."""
    chosen: ChipForModels
    """Chip for all models: the smallest geometric mean of scores relative to the best chip of each, or the
    smallest largest regret if the choice is robust."""
    others: tuple[ChipForModels, ...]
    """Best chip of each model, where it is another one; chips with changed keys; references."""
    bounds: tuple[BoundForModel, ...]
    """Best score and lower bound of every model."""
    gap: Size
    """Most by which any chip of the space can be better for all models, in the geometric mean of scores."""
    robust: RobustChoice | None = None
    """Regrets by which the chip was chosen; null if it was not."""
    stopped: Text | None = None
    """Reason why the search ended early; null if it did not."""
    trust: Text
    """How far prices of chips that do not exist can be trusted."""
