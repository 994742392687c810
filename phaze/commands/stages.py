"""Show the search space, and a model's operators, estimates and schedules; export any table of a study."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean
from phaze.base.units import percent
from phaze.commands import options
from phaze.commands.output import (
    print_records,
    refuse_outputs,
    tell_sequence,
    telling,
    with_widths,
    write_or_print,
)
from phaze.commands.tables import UNKNOWN, Titled, counts, number, print_rows, rows_of, scaled
from phaze.commands.terminal import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from phaze.search.cosearch import Subject
    from phaze.spec.settings import ScheduleSettings

Format = Literal["csv", "json"]
"""Formats of exported tables."""
WIDTHS = (counts("tensor", "t"), counts("microbatch", "mbs"))
_LAYER = (Titled("layer", "layer"), Titled("direction", "pass"))
_OPERATOR = Titled("name", "operator", lambda value: str(value).replace("+", " + "), wraps=True)
"""Column of the name of a fused operator, which can wrap at each +."""
ESTIMATE = (
    *_LAYER, _OPERATOR, Titled("core", "core"), scaled("latency_s", "core us", 1e-6),
    scaled("latency_all_s", "us", 1e-6), Titled("limit_all", "bound by"), scaled("energy_all_j", "mJ", 1e-3),
    scaled("flops", "GFLOP", 1e9), scaled("hbm_all_bytes", "MB", 1e6), Titled("roofline", "roofline"),
)  # fmt: skip
SCHEDULE = (
    *_LAYER, counts("operator", "#"), _OPERATOR, Titled("resource", "type"),
    Titled("core", "core", lambda core: "all" if core == -1 else number(core), right=True),
    scaled("start_s", "start us", 1e-6), scaled("end_s", "end us", 1e-6),
)  # fmt: skip
TOTALS = (
    *_LAYER, counts("layers", "layers"), scaled("latency_all_s", "ms", 1e-3),
    scaled("energy_all_j", "mJ", 1e-3), scaled("flops", "GFLOP", 1e9), scaled("hbm_all_bytes", "MB", 1e6),
)  # fmt: skip
SOLVES = (
    *_LAYER, Titled("status", "status"), scaled("objective_s", "us", 1e-6),
    scaled("bound_s", "bound us", 1e-6),
    Titled("gap", "gap", lambda value: percent(float(str(value)), 2), right=True), Titled("method", "method"),
    Titled("solver", "solver"), counts("operators", "operators"),
    scaled("all_cores_s", "all cores us", 1e-6), scaled("hbm_bytes", "MB", 1e6),
)  # fmt: skip


@options.takes(options.WorkloadOptions)
def extract(request: options.WorkloadOptions) -> None:
    """Print the operators of a model's distinct layers.

    Operators are those of both passes, after fusion.
    """
    import pandas as pd

    from phaze.commands.answers import read_workloads

    tell_sequence(request.model, request.sequence)
    widths, microbatches = request.tensor or [1], request.microbatch or [1]
    points = read_workloads(request.model, request.sequence, widths, microbatches, request.backward)
    operators = with_widths(pd.concat([point.tables["operators"] for point in points], ignore_index=True))
    if request.as_json:
        print_records(operators)
    else:
        typer.echo(operators.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


@dataclass(frozen=True, kw_only=True)
class OnArchitecture(options.WorkloadOptions, options.ArchitectureOptions):
    """Options that select a model and the architecture that runs it."""


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(OnArchitecture):
    """Options of `phaze estimate`: a model on an architecture, and the sort column."""

    sort: Annotated[str | None, typer.Option(metavar="COLUMN")] = None
    """Sort by a column of the table or a key of --json: largest numbers first, text from A to Z."""


@options.takes(EstimateOptions)
def estimate(request: EstimateOptions) -> None:
    """Print the time, energy and roofline of every operator, and their totals.

    Times are on one core and on all cores, with the bottleneck on all. The roofline shows whether the peak
    of the cores (compute) or of HBM (memory) is the higher roof, and the reached share of it. Totals count
    every layer of the model, whose operators run one after another on all cores.
    """
    from phaze.commands.answers import estimate_subject
    from phaze.commands.roofline import totals

    options.refuse_unless_positive("estimate", flat_bandwidth=request.flat_bandwidth)
    subject = _read(request)
    with telling("estimate"):
        estimates = estimate_subject(subject, request.architecture, request.system, request.flat_bandwidth)
    shown = with_widths(estimates)
    if request.sort is not None:
        shown = _sorted(shown, request.sort)
    if request.as_json:
        print_records(shown)
        return
    _tell_subject("estimate", request)
    _print_frame(shown.assign(roofline=_rooflines(shown)), ESTIMATE)
    typer.echo()
    _print_frame(with_widths(totals(estimates)), TOTALS)


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(OnArchitecture):
    """Options of `phaze schedule`: a model on an architecture, and the table to print."""

    operators: Annotated[bool, typer.Option("--operators/--no-operators")] = False
    """Print every operator instead of layers."""
    formulation: Literal["sparse", "paper"] = "sparse"
    """Integer program: reduced, where bounds leave a gap, or the Phaze paper's, always."""
    solver: Literal["glpk", "highs"] | None = None
    """Solver of integer programs. Default: GLPK, then HiGHS where GLPK finds no proof in time."""

    def settings(self) -> ScheduleSettings:
        """Settings of the scheduling stage; PhazeError if the solver is not installed."""
        from phaze.solver import VERSIONS
        from phaze.spec.settings import ScheduleSettings

        if self.solver is not None and VERSIONS[self.solver]() is None:
            program, package = {"glpk": ("glpsol", "glpk-utils"), "highs": ("highspy", "highspy")}[
                self.solver
            ]
            raise PhazeError(
                f"schedule: --solver {self.solver}: {program} is not installed",
                f"install the package {package} (GLPK: apt-get install {package}), or leave --solver out",
            )
        solvers = ("glpk", "highs") if self.solver is None else (self.solver,)
        # The bounds alone prove most layers, so that the paper's program would not be seen.
        programs = "all" if self.formulation == "paper" else "open"
        return ScheduleSettings.parse(
            {"solver": solvers, "formulation": self.formulation, "programs": programs}, "schedule"
        )


@options.takes(ScheduleOptions)
def schedule(request: ScheduleOptions) -> None:
    """Print the latency of every layer, or the times of its operators.

    Each layer has its lower bound and the solver that proved it. --json has all figures.
    """
    from phaze.commands.answers import schedule_subject

    options.refuse_unless_positive("schedule", flat_bandwidth=request.flat_bandwidth)
    settings = request.settings()
    subject = _read(request)
    with telling("schedule"):
        tables = schedule_subject(
            subject, request.architecture, request.system, request.flat_bandwidth, settings
        )
    solves, schedules = tables
    table = with_widths(schedules if request.operators else solves)
    if request.as_json:
        print_records(table)
    else:
        _tell_subject("schedule", request)
        _print_frame(table, SCHEDULE if request.operators else SOLVES)


def _tell_subject(verb: str, request: OnArchitecture) -> None:
    """Print the names of the model, its chip, and the system that provides the links."""
    tell(
        f"{verb}: {request.model} on {request.architecture}; links, and what the chip does not state, are "
        f"those of {request.system} unless options say otherwise"
    )


def _sorted(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows sorted by a column, named by its title or its key; PhazeError if it is unknown."""
    keys = {**{key: key for key in frame.columns}, **{titled.title: titled.key for titled in ESTIMATE}}
    # The column of roofs is text; its share is what is worth sorting.
    keys["roofline"] = "roof_share"
    if column not in keys:
        where = "the table and --json"
        raise PhazeError(f"estimate: --sort: {column}: is not a column", did_you_mean(column, [*keys], where))
    key = keys[column]
    # Large numbers are of interest, and text is looked up from A to Z.
    falls = frame[key].dtype.kind in "if"
    return frame.sort_values(key, ascending=not falls, kind="stable", ignore_index=True)


def _rooflines(frame: pd.DataFrame) -> list[str]:
    """Binding roof of each operator and the share reached, such as memory 97%; a dash without a roof."""
    return [
        f"{roof} {percent(share, 0)}" if roof else UNKNOWN
        for roof, share in zip(frame["roof"], frame["roof_share"], strict=True)
    ]


def _print_frame(frame: pd.DataFrame, columns: Sequence[Titled]) -> None:
    """Print a table, with columns for TMP width and microbatch only if their values differ."""
    several = {key for key in ("tensor", "microbatch") if frame[key].nunique() > 1}
    widths = [column for column in WIDTHS if column.key in several]
    print_rows(rows_of(frame), [*widths, *columns])


def _read(request: options.WorkloadOptions) -> Subject:
    """Operators of the model for all requested TMP widths and microbatches."""
    from phaze.commands.answers import read_subject

    tell_sequence(request.model, request.sequence)
    widths, microbatches = request.tensor or [1], request.microbatch or [1]
    return read_subject(request.model, request.sequence, widths, microbatches, request.backward)


@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    """Options of `phaze space`: the limits of the search space."""

    area_limit_mm2: Annotated[float | None, typer.Option(min=0)] = None
    """Largest area of a chip in mm2. Default: the area of TPUv4."""
    minimum_share: Annotated[bool, typer.Option("--minimum-share/--no-minimum-share")] = True
    """Leave out architectures below 30 % of the area limit, as the Phaze paper does."""
    as_json: options.JsonOption = False


@options.takes(SpaceOptions)
def space(request: SpaceOptions) -> None:
    """Print the size of the search space of architectures.

    Also prints the smallest and the largest architecture.
    """
    from phaze.commands.answers import describe_space

    described = describe_space(request.area_limit_mm2, minimum_share=request.minimum_share)
    if request.as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    number, area_mm2 = described["architectures"], described["area_limit_mm2"]
    typer.echo(f"{number:,} architectures of at most {area_mm2:.5f} mm2")
    for which in ("smallest", "largest"):
        architecture = described[which]
        if isinstance(architecture, dict):
            typer.echo(f"{which}: {architecture['architecture']}, {architecture['area_mm2']:.5f} mm2")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `phaze export`: the table, its format, and the file to write."""

    table: Annotated[Path, typer.Argument()]
    """Parquet table of a study."""
    form: Annotated[Format, typer.Option("--format")] = "csv"
    """Output format."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File to write. Default: standard output."""


@options.takes(ExportOptions)
def export(request: ExportOptions) -> None:
    """Write any table of a study as CSV or JSON."""
    refuse_outputs(request.out, reads=(request.table,))
    write_or_print(export_table(request.table, request.form), request.out)


def export_table(path: Path, form: Format) -> str:
    """Convert a table to CSV (infinity becomes `inf`) or JSON (a list of rows; infinity becomes null)."""
    from phaze.tables.layouts import read_any

    frame = read_any(path)
    if form == "csv":
        return frame.to_csv(index=False, lineterminator="\n")
    return frame.to_json(orient="records", indent=1, double_precision=15) + "\n"
