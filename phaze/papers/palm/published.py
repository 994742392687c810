"""PALM's published results on tiles."""

from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.papers.publication import Columns, Publication
from phaze.spec.noun import Noun
from phaze.spec.values import Name, Positive, PositiveInt


class PrintedWafer(Noun):
    """Row of PALM's Table VII, with the measured run behind the reference figure."""

    palm: Positive
    """Samples per second simulated by PALM's authors."""
    printed: Positive
    """Reference samples per second in the paper, scaled by its authors from GPUs to the wafer."""
    gpus: PositiveInt
    """GPUs of the measured run."""
    batch: PositiveInt
    """Samples in the batch of the measured run."""
    measured_s: Positive
    """Time per batch of the measured run, from its published FLOP/s, with attention and vocabulary."""


class MeasuredRun(Noun):
    """Training run on GPUs, with its measured time per batch."""

    measured_s: Positive
    """Time per batch of the measured run, from its published FLOP/s."""
    run: dict[str, int | str]
    """Settings of the run, as in a table of measured runs."""


class PrintedRun(MeasuredRun):
    """Row of PALM's Table IV, with the measured run behind the reference figure."""

    palm: Positive
    """Sequences per second simulated by PALM's authors."""
    printed: Positive
    """Reference sequences per second in the paper, without attention and vocabulary."""


class RatioReading(Noun):
    """Interpretation of a kind of ratio in PALM's Table I."""

    kind: Literal["sram-to-compute", "hops-to-memory", "links-to-memory"]
    """SRAM per 16-bit peak, most hops to DRAM, or link over DRAM bandwidth."""
    ours: Columns
    """Ratio of figures of a system, by their names in `phaze.papers.palm.besides`."""
    reading: str
    """Description of numerator and denominator."""


class PrintedRatio(Noun):
    """Ratio in PALM's Table I."""

    system: Name
    """Name of a file in config/systems."""
    of: Name
    """Numerator and denominator, one of `ratio_readings`."""
    published: Positive
    """Printed ratio, with digits truncated."""
    inputs: tuple[Positive, Positive] | None = None
    """Numerator and denominator that the paper seems to use; None if no figures fit."""
    explanation: str = ""
    """Reason for the difference from ours; empty if only digits differ."""


class PrintedInference(Noun):
    """Row of PALM's Table V, or one interpretation of a row."""

    model: Name
    """Name of a spec in config/models."""
    numbers: Literal["half", "int8"]
    """Compute precision: 16-bit floating point, or 8-bit integers at the tile's rate."""
    sequence: PositiveInt = 1
    """Tokens in a sample."""
    published: Positive
    """Published samples per second of the chip."""
    palm: Positive
    """Samples per second simulated by PALM's authors."""
    fetched: tuple[Literal["own", "shared"], ...] = ("own", "shared")
    """Allowed ways to fetch weights: whole by every replica, or one shard per replica and an all-gather."""
    explanation: str = ""
    """Reason for the difference from ours."""


class ProgramRun(Noun):
    """Results of the authors' program for figures of the paper."""

    source: str
    """Location of the program, and the way it was run."""
    microbatches: PositiveInt
    """Microbatches per batch that the program runs."""
    wafer: dict[str, dict[Name, Positive]]
    """Samples per second for Table VII by version of the program and model."""
    best_tensor: dict[Name, PositiveInt]
    """Tensor-parallel ranks of the program's fastest split, by model (Figure 10)."""
    gaps: dict[Name, Positive]
    """Throughput of the best split and mapping over the worst, by model (Section V.B)."""


class PublishedTiled(Publication):
    """Published results of PALM."""

    gpu_flops: Positive
    """Peak FLOP/s of a GPU of the measured runs."""
    wafer: dict[Name, PrintedWafer] = Field(default_factory=dict)
    """Table VII by model."""
    gpus: dict[Name, PrintedRun] = Field(default_factory=dict)
    """Table IV by model."""
    other_runs: dict[Name, MeasuredRun] = Field(default_factory=dict)
    """Measured runs of the same source that are not in Table IV; a constant is fitted on them."""
    ratio_readings: dict[Name, RatioReading] = Field(default_factory=dict)
    """Interpretations of Table I."""
    ratios: tuple[PrintedRatio, ...] = ()
    """Table I."""
    inference: tuple[PrintedInference, ...] = ()
    """Table V."""
    program: ProgramRun | None = None
    """Results of the authors' program, which differ from the printed ones."""
    best_tensor: dict[Name, PositiveInt] = Field(default_factory=dict)
    """Tensor-parallel ranks of the split with the highest throughput, by model (Figure 10)."""
    least_occupancy: dict[Name, PositiveInt] = Field(default_factory=dict)
    """Tensor-parallel ranks of the split with the lowest link occupancy, by model (Figure 9)."""
    optimum: Positive
    """N_m with minimum communication (Equation 6)."""
    gap: Positive
    """Minimum ratio of best to worst throughput over mappings and splits (Section V.B)."""
    congestion_five: Positive
    """Relative underestimate of a formula for five tasks of 8 MB (Figure 7)."""
    congestion_most: Positive
    """Maximum relative underestimate of a formula (Figure 7)."""
    gains: dict[Literal["ring", "broken ring"], Positive]
    """Speed-up of strategy 1 if groups form rings, and of strategy 2 if they do not (Figure 12)."""

    @model_validator(mode="after")
    def _readings_are_known(self) -> Self:
        if unknown := {ratio.of for ratio in self.ratios} - {*self.ratio_readings}:
            raise ValueError(
                f"ratios: of must be one of {', '.join(self.ratio_readings)}, got {min(unknown)}"
            )
        return self

    @property
    def palm(self) -> dict[str, float]:
        """Samples per second of Table VII simulated by PALM's authors, by model."""
        return {model: row.palm for model, row in self.wafer.items()}
