"""Published results and claims of papers, one class per part of a study.

Snakemake reads them before any job is planned. Claims are evaluated by `papers.claims`, with what a report
needs; this module imports none of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from phaze.spec.architecture import Architecture
from phaze.spec.derived import DerivedNoun
from phaze.spec.files import FOLDER, named_file
from phaze.spec.names import Partitioner
from phaze.spec.noun import Noun
from phaze.spec.rows import ClaimTexts
from phaze.spec.study import Study
from phaze.spec.values import Chip, Name, Positive, PositiveInt, refuse_unknown

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.boolop,
    ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip
Number = int | float
Row = dict[str, Number | str]
Plain = dict[str, object]
Design = Literal["baseline_expert", "baseline", "common"]
"""Baseline with the hand-designed placement; baseline and common accelerator with the searched placement."""
Mean = Literal["per_model", "common", "common_over_baseline", "common_over_family"]
"""Published mean speed-up: of per-model accelerators and of the common one over the baseline with the expert
placement, and of the common one over the baseline and over `compared_family` with the searched placement.
"""
Share = Annotated[float, Field(gt=0, le=1)]
Size = Literal[
    "layers", "operators", "parameter_bytes", "activation_bytes", "tensor_flops", "vector_flops"
]  # fmt: skip
"""Published size of a model: layers, operators and weights of a layer, activations and FLOPs in total."""
OUT_OF_MEMORY = "OOM"
_PRINTED = re.compile(r"\d+(\.\d+)?|OOM")
MappingName = Literal["cs-map", "p2p-map", "ours"]
PublishedPartitions = dict[Partitioner, dict[MappingName, dict[str, Positive]]]
"""Published speed-ups by partitioner, mapping and shape SxR."""


def _of_columns(text: str) -> str:
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except SyntaxError as error:
        raise ValueError("must be an expression of columns, as `ours <= printed`") from error
    # The function of a call is a name node too, so allowed node types alone would let any call pass.
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    abs_names = {id(call.func) for call in calls if isinstance(call.func, ast.Name) and call.func.id == "abs"}
    if len(abs_names) < len(calls) or not all(isinstance(node, (*_ALLOWED, ast.Call)) for node in nodes):
        raise ValueError("must be made of columns, numbers, texts, comparisons and abs(…) only")
    return text


def evaluate(expression: str, values: Mapping[str, object]) -> object:
    """Evaluate an expression that was validated as `Columns`, with names bound to the given values."""
    # No builtins but abs, and `_of_columns` admits no attribute or subscript: nothing else is reachable.
    return eval(expression, {"__builtins__": {"abs": abs}}, dict(values))


Columns = Annotated[str, AfterValidator(_of_columns)]
"""Expression of columns with arithmetic and comparisons, in the syntax of pandas' `DataFrame.eval`."""


class PublishedClaim(DerivedNoun, ClaimTexts):
    """Claim of a publication: the published figure, our figure, and the condition for the claim to hold.

    Texts are templates. `{ours:times}` inserts a column of the rows, an aggregate, or a printed value, in a
    format of `phaze.pages.words`.
    """

    where: Columns | None = None
    """Filter of the rows; default: all."""
    by: tuple[str, ...] = ()
    """Columns to group by, with one claim per group; default: one claim for all rows."""
    printed: Number | str | dict[str, Number] | tuple[Number | str | Row, ...] | None = None
    """Published figure or figures, in one of five forms.

    A number; numbers by value of the last column of `by`; rows of column values including `printed`; a list;
    or the name of another field of the publication.
    """
    find: str | dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Aggregates by name, each a column and an aggregation; or the name of one of the page's functions."""
    every: Columns | None = None
    """Condition on every row; rows that violate it are listed."""
    named: str = ""
    """Column with the names of the rows that violate `every`."""
    holds: Columns | None = None
    """Condition for the claim to hold, on aggregates and published figures."""

    @model_validator(mode="after")
    def _check_comparison(self) -> Self:
        if isinstance(self.printed, dict) and not self.by:
            raise ValueError("printed: numbers by the values of a column need that column last in by")
        if self.every and not self.named:
            raise ValueError("every: needs named, a column that names the rows of which it does not hold")
        return self


class TableClaims(Noun):
    """Claims about one result table, checked on each of its parts."""

    table: str
    """Name of a table of the page."""
    each: tuple[str, ...] = ()
    """Columns that split the table into parts; default: one part."""
    claims: tuple[PublishedClaim, ...] = Field(min_length=1)
    """Claims in the order of the page."""


class Publication(Noun):
    """Results of a publication, used only for comparison: no result is computed from or tuned to them."""

    title: str
    """Title of the publication."""
    citation: str
    """Authors, venue, year."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Place in the publication of figures without a claim, by kind of figure."""
    claims: tuple[TableClaims, ...] = ()
    """Claims by result table."""
    missing: tuple[str, ...] = ()
    """Published results that are not compared, as sentences that give the reason."""
    notes: tuple[str, ...] = ()
    """Remarks on the published figures, as sentences."""


class PublishedArchitecture(Architecture):
    """Published accelerator: cores, buffers and memory."""

    name: Chip = "printed"
    """Placeholder: published accelerators have no name of their own."""
    pe_vc: PositiveInt
    """Lanes of a vector core."""
    hbm_gib: Positive
    """HBM capacity."""


class PublishedPlacement(Noun):
    """Published placement: widths, microbatch and recomputation."""

    pipeline: PositiveInt
    """Pipeline depth p."""
    data: PositiveInt
    """Data parallel width d."""
    tensor: PositiveInt
    """Tensor model parallel width t."""
    microbatch: PositiveInt
    """Samples in a microbatch."""
    recompute: bool
    """True if activations are recomputed."""

    @property
    def widths(self) -> str:
        """Widths in the paper's notation, {p, d, t}."""
        return f"{{{self.pipeline}, {self.data}, {self.tensor}}}"


class PublishedWorkload(Noun):
    """Published results of one workload."""

    label: str
    """Name of the workload in the publication."""
    architecture: PublishedArchitecture | None = None
    """Best accelerator for this workload."""
    placement: PublishedPlacement | None = None
    """Placement on the best accelerator."""
    mfu: dict[Design, Share] = Field(default_factory=dict)
    """Model FLOPs utilisation by design, as a fraction."""
    complexity: (
        Annotated[dict[Size, PositiveInt | Positive], Field(min_length=len(get_args(Size)))] | None
    ) = None
    """Published sizes of the model."""


class Published(Publication):
    """Published results of Phaze, or of another paper about training accelerators."""

    families: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Families of named accelerators: the accelerator designed for each workload, by workload."""
    workloads: dict[str, PublishedWorkload] = Field(default_factory=dict)
    """Published results by workload."""
    baseline: str | None = None
    """Named architecture to which published speed-ups and utilisations refer; default: any.

    They are not compared with a study that has another baseline.
    """
    common: PublishedArchitecture | None = None
    """Common accelerator: one design for all workloads."""
    headline: dict[Mean, Positive] = Field(default_factory=dict)
    """Geometric means of the speed-ups over the workloads."""
    compared_family: str = ""
    """Family of named accelerators that `common_over_family` compares with."""
    walks: dict[str, dict[Annotated[int, Field(gt=0)], str]] = Field(default_factory=dict)
    """Accelerator chosen by the search by descending area, by workload and hysteresis level."""


def _as_printed(text: str) -> str:
    if not _PRINTED.fullmatch(text):
        raise ValueError("must be a number as printed, or OOM")
    return text


PublishedTime = Annotated[str, AfterValidator(_as_printed)]
"""Published time with its printed digits, or OOM."""


class PublishedPlan(Noun):
    """Row of a published table of plans."""

    devices: PositiveInt
    """Number of devices."""
    memory_gib: Positive
    """Memory of a device, in GiB."""
    piper: PublishedTime
    """Time per sample of Piper's plan."""
    equi: PublishedTime
    """Time per sample of the best plan with equal stages."""


class PublishedPlans(Publication):
    """Published plans of Piper."""

    table: dict[Name, tuple[PublishedPlan, ...]] = Field(default_factory=dict)
    """Published rows, by input (Table 1)."""


class PublishedMaps(Publication):
    """Published results of Parmesan: speed-ups by mapping and partitioning."""

    over_consecutive: dict[Name, dict[str, Positive]] = Field(default_factory=dict)
    """Speed-up over CS map by topology and shape SxR."""
    over_heuristics: dict[Name, dict[str, Positive]] = Field(default_factory=dict)
    """Speed-up over the better of CS map and p2p map by topology and shape SxR."""
    over_first: dict[Name, PublishedPartitions] = Field(default_factory=dict)
    """Speed-up over PipeDream's partition with CS map by graph, partitioner, mapping and shape SxR."""
    over_clusters: dict[Name, dict[str, Positive]] = Field(default_factory=dict)
    """Speed-up by refinement over clusters alone, with the same mapping, by graph and shape SxR."""


class MeasuredRun(Noun):
    """Training run on GPUs, with its measured time per batch."""

    measured_s: Positive
    """Time per batch of the measured run, from its published FLOP/s."""
    run: dict[str, int | str]
    """Settings of the run, as in a table of measured runs."""


class PublishedRun(MeasuredRun):
    """Row of PALM's Table IV, with the measured run behind the reference figure."""

    palm: Positive
    """Sequences per second simulated by PALM's authors."""
    printed: Positive
    """Reference sequences per second in the paper, without attention and vocabulary."""


class RatioReading(Noun):
    """Interpretation of a kind of ratio in PALM's Table I."""

    kind: Literal["sram-to-compute", "hops-to-memory", "links-to-memory"]
    """SRAM per 16-bit peak, largest number of hops to DRAM, or link over DRAM bandwidth."""
    ours: Columns
    """Expression for our ratio, on the system figures named in `phaze.papers.palm.besides`."""
    reading: str
    """Description of numerator and denominator."""


class PublishedRatio(Noun):
    """Ratio in PALM's Table I."""

    system: Name
    """Name of a file in config/systems."""
    of: Name
    """Numerator and denominator, one of `ratio_readings`."""
    published: Positive
    """Published ratio, with digits truncated."""
    inputs: tuple[Positive, Positive] | None = None
    """Numerator and denominator that the paper seems to use; None if no figures fit."""
    explanation: str = ""
    """Reason for the difference from ours; empty if only digits differ."""


class PublishedInference(Noun):
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
    palm: dict[Name, Positive] = Field(default_factory=dict)
    """Samples per second of Table VII simulated by PALM's authors, by model."""
    scaled: dict[Name, Positive] = Field(default_factory=dict)
    """Reference of Table VII, scaled by PALM's authors from GPUs to the wafer, by model."""
    gpus: dict[Name, PublishedRun] = Field(default_factory=dict)
    """Rows of Table IV, by model."""
    other_runs: dict[Name, MeasuredRun] = Field(default_factory=dict)
    """Measured runs of the same source that are not in Table IV; a constant is fitted on them."""
    ratio_readings: dict[Name, RatioReading] = Field(default_factory=dict)
    """Interpretations of Table I."""
    ratios: tuple[PublishedRatio, ...] = ()
    """Ratios of Table I."""
    inference: tuple[PublishedInference, ...] = ()
    """Rows of Table V."""
    program: ProgramRun | None = None
    """Results of the authors' program, which differ from the published ones."""
    best_tensor: dict[Name, PositiveInt] = Field(default_factory=dict)
    """Tensor-parallel ranks of the split with the highest throughput, by model (Figure 10)."""
    least_occupancy: dict[Name, PositiveInt] = Field(default_factory=dict)
    """Tensor-parallel ranks of the split with the lowest link occupancy, by model (Figure 9)."""
    gap: Positive
    """Minimum ratio of best to worst throughput over mappings and splits (Section V.B)."""
    congestion_five: Positive
    """Relative underestimate of a formula for five tasks of 8 MB (Figure 7)."""
    congestion_most: Positive
    """Maximum relative underestimate of a formula (Figure 7)."""
    gains: dict[Literal["ring", "broken ring"], Positive]
    """Speed-up of strategy 1 if groups form rings, and of strategy 2 if they do not (Figure 12)."""

    @model_validator(mode="after")
    def _check_readings(self) -> Self:
        refuse_unknown("ratios.of", (ratio.of for ratio in self.ratios), self.ratio_readings)
        return self


KINDS: dict[str, type[Publication]] = {
    "report": Published, "plans": PublishedPlans, "tiled": PublishedTiled, "maps": PublishedMaps,
}  # fmt: skip
"""Type of publication, by part of a study."""


def load_publications(study: Study, folder: Path = FOLDER) -> dict[str, Plain]:
    """Load a study's publications by part, as plain values; PhazeError if one is missing or invalid."""
    named = {part: getattr(study, part).published for part in KINDS}
    return {
        part: KINDS[part]
        .from_file(named_file("publication", name, folder / "published"))
        .model_dump(mode="json")
        for part, name in named.items()
        if name is not None
    }
