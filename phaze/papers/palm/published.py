"""PALM's published results on tiles."""

from typing import Literal

from pydantic import Field

from phaze.papers.claims import Publication
from phaze.spec.noun import Noun
from phaze.spec.values import Name, Positive, PositiveInt


class PrintedWafer(Noun):
    """A row of PALM's Table VII, and the measured run that it is compared with."""

    palm: Positive
    """Samples per second that PALM's authors simulate."""
    printed: Positive
    """Samples per second that they compare with, scaled by them from GPUs to the wafer."""
    gpus: PositiveInt
    """GPUs of the measured run."""
    batch: PositiveInt
    """Samples in its batch."""
    measured_s: Positive
    """Its time per batch, from the FLOP/s that its authors print, with attention and vocabulary."""


class MeasuredRun(Noun):
    """A training run on GPUs, and how long a batch took."""

    measured_s: Positive
    """Time per batch of the measured run, from the FLOP/s that its authors print."""
    run: dict[str, int | str]
    """The run, as a row of a table of runs."""


class PrintedRun(MeasuredRun):
    """A row of PALM's Table IV, and the measured run that it is compared with."""

    palm: Positive
    """Sequences per second that PALM's authors simulate."""
    printed: Positive
    """Sequences per second that they compare with: without attention and vocabulary."""


RatioOf = Literal["cache", "nvlink", "sram", "hops", "router", "edge", "fabric"]


class PrintedRatio(Noun):
    """A ratio of PALM's Table I."""

    system: Name
    """Name of a file in config/systems."""
    of: RatioOf
    """What is divided by what; `phaze.papers.palm.hardware` says it in words."""
    published: Positive
    """The ratio, with digits cut off."""
    inputs: tuple[Positive, Positive] | None = None
    """What the paper seems to divide; none if no figures fit."""
    explanation: str = ""
    """Why ours differs; empty where only digits do."""


class PrintedInference(Noun):
    """A row of PALM's Table V, or one way to read what was printed of it."""

    model: Name
    """Name of a spec in config/models."""
    numbers: Literal["half", "int8"]
    """16-bit floating point, or 8-bit integers at the rate of the tile."""
    sequence: PositiveInt = 1
    """Tokens of a sample."""
    published: Positive
    """Samples per second of the chip."""
    palm: Positive
    """Samples per second that PALM simulates."""
    fetched: tuple[Literal["own", "shared"], ...] = ("own", "shared")
    """How weights may be fetched: by every replica, or a share by each and gathered."""
    explanation: str = ""
    """Why ours differs."""


class ProgramRun(Noun):
    """What the authors' program gives for what they print."""

    source: str
    """Where the program is, and how it was run."""
    microbatches: PositiveInt
    """Microbatches that it runs."""
    wafer: dict[str, dict[Name, Positive]]
    """Samples per second for Table VII by version of the program and model."""
    best_tensor: dict[Name, PositiveInt]
    """Slices of its fastest split by model (Figure 10)."""
    gaps: dict[Name, Positive]
    """How much faster its best split and mapping is than its worst, by model (Section V.B)."""


class PublishedTiled(Publication):
    """PALM's results."""

    gpu_flops: Positive
    """Peak of a GPU of the measured runs."""
    wafer: dict[Name, PrintedWafer] = Field(default_factory=dict)
    """Table VII by model."""
    gpus: dict[Name, PrintedRun] = Field(default_factory=dict)
    """Table IV by model."""
    other_runs: dict[Name, MeasuredRun] = Field(default_factory=dict)
    """Measured runs of the same source that Table IV does not have, to fit a constant on."""
    ratios: tuple[PrintedRatio, ...] = ()
    """Table I."""
    inference: tuple[PrintedInference, ...] = ()
    """Table V."""
    program: ProgramRun | None = None
    """The authors' program as run, beside what they print."""
    best_tensor: dict[Name, PositiveInt] = Field(default_factory=dict)
    """Slices of the split with the highest throughput by model (Figure 10)."""
    least_occupancy: dict[Name, PositiveInt] = Field(default_factory=dict)
    """Slices of the split with the shortest occupancy of links by model (Figure 9)."""
    optimum: Positive
    """N_m of least communication (Equation 6)."""
    gap: Positive
    """How much faster the best mapping and split is than the worst, at least (Section V.B)."""
    congestion_five: Positive
    """By which share a formula is short for five tasks of 8 MB (Figure 7)."""
    congestion_most: Positive
    """By which share it is at most."""
    gains: dict[Literal["ring", "broken ring"], Positive]
    """How much faster strategy 1 is where groups form rings, and strategy 2 where they do not (Figure 12)."""

    @property
    def palm(self) -> dict[str, float]:
        """Samples per second of Table VII as PALM's authors simulate them, by model."""
        return {model: row.palm for model, row in self.wafer.items()}
