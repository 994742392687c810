"""Compare predicted with measured training runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.base.printed import PIPED, wrapped
from phaze.commands import completion, options
from phaze.commands.output import refuse_outputs, tell_unread, telling

if TYPE_CHECKING:
    import pandas as pd

SHOWN = {
    "rows": "{:.0f}", "answered": "{:.0f}", "mean_error": "{:.1%}", "median_error": "{:.1%}",
    "bias": "{:+.1%}", "p90_error": "{:.1%}", "worst_error": "{:.1%}", "within_10": "{:.0%}",
    "within_15": "{:.0%}", "intervals": "{:.0f}", "covered": "{:.0%}", "within_prudent": "{:.0%}",
    "prudent_over_expected": "{:.2f}", "within_high": "{:.0%}", "high_over_expected": "{:.2f}",
    "memory_error": "{:.1%}", "memory_covered": "{:.0%}", "verdicts": "{:.0%}",
    "rank_correlation": "{:.3f}",
    "groups": "{:.0f}", "group_correlation": "{:.2f}", "regret": "{:.1%}", "worst_regret": "{:.1%}",
    "prudent_regret": "{:.1%}", "release_groups": "{:.0f}", "release_regret": "{:.1%}",
    "worst_release_regret": "{:.1%}",
}  # fmt: skip
"""Columns of the printed table of sources with --all, with their formats."""
MAIN = ("rows", "answered", "mean_error", "bias", "within_15", "covered", "memory_error")
"""Columns that are printed without --all, which fit on a terminal."""
MOST_FITTED = 45
"""Maximum width of the column with what a part is fitted to."""
PART_SHOWN = {"rows": "{:.0f}", "answered": "{:.0f}", "median": "{:.1%}", "p90": "{:.1%}", "bias": "{:+.1%}"}
"""Columns of the printed table of kernel errors, with their formats."""
LEFT_OUT_SHOWN = {
    "rows": "{:.0f}", "median_error": "{:.1%}", "mean_error": "{:.1%}", "left_out_median": "{:.1%}",
    "left_out_mean": "{:.1%}",
}  # fmt: skip
"""Columns of the printed table of held-out sources, with their formats."""
REPEATS_SHOWN = {"runs": "{:.0f}", "groups": "{:.0f}", "deviation": "{:.1%}"}
"""Columns of the printed table of repeated runs, with their formats."""


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """Options of `phaze validate`: measured runs or kernels, the comparison to show, and output files."""

    files: Annotated[list[Path] | None, typer.Argument()] = None
    """CSV of measured runs, as for simulate --runs. Default: the published runs of config/measured."""
    system: Annotated[str | None, typer.Option(autocompletion=completion.systems)] = None
    """System of runs that do not name one: a name in config/systems, or a path."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """CSV for all runs, with predictions next to measurements."""
    errors: Path | None = None
    """CSV for the ratios of measured and predicted times, from which intervals are computed
    (config/errors.csv)."""
    part: str | None = None
    """Compare predicted with measured kernel times: products, experts, attention or collectives. FILES are
    then tables of kernels; see config/formats.md."""
    leave_out: str | None = None
    """Source of published runs, or all: show its errors with constants fitted to the other sources."""
    support: bool = False
    """Show on which measured runs predictions of every device and model family rest. Other options than
    --json have no effect."""
    repeats: bool = False
    """Show how far apart the measured times of equal runs are, by source: no prediction of single runs can be
    closer. Other options than --json have no effect."""
    all_columns: Annotated[bool, typer.Option("--all")] = False
    """Print all columns of the table of sources."""
    as_json: options.JsonOption = False


@options.takes(ValidateOptions)
def validate(request: ValidateOptions) -> None:
    """Compare predicted with measured training runs.

    Prints by source the errors of time and memory, and the cost of choosing the layout predicted as the
    fastest.
    """
    _refuse_ineffective(request)
    if request.support:
        typer.echo(_support(as_json=request.as_json))
        return
    if request.repeats:
        typer.echo(_repeats(request.files, as_json=request.as_json))
        return
    refuse_outputs(request.out, request.errors, reads=(*(request.files or ()), request.system))
    if request.leave_out is not None:
        typer.echo(_left_out(request.leave_out, as_json=request.as_json))
        return
    if request.part is not None:
        typer.echo(_part(request.part, request.files, request.system, request.out, as_json=request.as_json))
        return
    typer.echo(_compared(request))


def _refuse_ineffective(request: ValidateOptions) -> None:
    """Raise PhazeError for --all without a table of sources, and for --system with published runs."""
    if request.system is not None and not request.files:
        raise PhazeError(
            f"validate: --system {request.system}: is for files of yours whose runs name no system; "
            "published runs name theirs",
            "pass such a CSV, or --support for the published runs of every device",
        )
    others = {
        "--support": request.support,
        "--repeats": request.repeats,
        "--leave-out": request.leave_out is not None,
        "--part": request.part is not None,
    }
    for option in (name for name, is_used in others.items() if is_used and request.all_columns):
        raise PhazeError(
            f"validate: --all: {option} prints no table of sources, whose columns it adds", "leave out --all"
        )


def _support(*, as_json: bool) -> str:
    """Support matrix, as tables or JSON."""
    from phaze.validate.support import Support

    matrix = Support.load()
    return json.dumps(matrix.as_rows(), indent=1) if as_json else matrix.in_words()


def _repeats(files: list[Path] | None, *, as_json: bool) -> str:
    """Deviations of repeated runs by source, as a table or JSON; PhazeError if no run is repeated."""
    import pandas as pd

    from phaze.spec.measured import PublishedRuns
    from phaze.validate.repeats import repeats
    from phaze.validate.scoreboard import measured_files

    simulated = PublishedRuns.load().simulated
    paths = files or [path for path in measured_files() if path.stem not in simulated]
    lines = [asdict(line) for line in repeats(paths)]
    if not lines:
        raise PhazeError("validate: --repeats: no run was measured twice with the same software and system")
    if as_json:
        return json.dumps(lines, indent=2)
    return _formatted(pd.DataFrame(lines), ("source",), REPEATS_SHOWN)


def _compared(request: ValidateOptions) -> str:
    """Errors of runs, by source and over all, as tables or JSON; writes the files that are asked for."""
    from phaze.spec.measured import PublishedRuns
    from phaze.validate.intervals import error_table
    from phaze.validate.rows import COLUMNS, read_texts
    from phaze.validate.scoreboard import runs_with_intervals, scoreboard
    from phaze.validate.table import write_table

    files, out, errors = request.files, request.out, request.errors
    runs = predicted_runs(files, request.system)
    for file in files or ():
        tell_unread(file, read_texts(file).columns, COLUMNS)
    if errors is not None:
        write_table(error_table(runs), errors)
    runs = runs_with_intervals(runs)
    scores = scoreboard(runs, PublishedRuns.load().simulated)
    if out is not None:
        write_table(runs, out)
    if request.as_json:
        return scores_as_json(scores, runs)
    shown = _shown(scores, SHOWN if request.all_columns else {name: SHOWN[name] for name in MAIN})
    return shown if files else f"{shown}\n{_parts_shown()}"


def predicted_runs(files: list[Path] | None, system: str | None) -> pd.DataFrame:
    """Measured runs of files, by default the published ones, with predictions; PhazeError if none has any."""
    from phaze.plan.machines import load_machine
    from phaze.validate.scoreboard import measured_files, predict_files

    with telling("validate"):
        # Rows that name a system of their own ignore this one.
        machine = None if system is None else load_machine(system)
        runs = predict_files(files or measured_files(), machine)
    if runs["predicted_s"].isna().all():
        reasons = "; ".join(runs["status"].str.removeprefix("invalid: ").unique()[:3])
        raise PhazeError(f"validate: of {len(runs)} runs none can be predicted: {reasons}")
    return runs


def _parts_shown() -> str:
    """Errors of every part of the cost model on measured kernels, and the sources of each fitted constant."""
    import pandas as pd

    from phaze.spec.measured import PublishedRuns
    from phaze.validate.parts.registry import PARTS, kernel_files
    from phaze.validate.parts.scores import compare

    rows = [
        {
            "part": part.name,
            "fitted to": shorten(part.fitted_to, MOST_FITTED, placeholder="…"),
            **asdict(compare(part, kernel_files(part)).score),
        }
        for part in PARTS.values()
    ]
    constants = [
        wrapped(f"{fit.name}: {', '.join(fit.sources)}" + " (one source)" * (len(fit.sources) == 1), PIPED)
        for fit in PublishedRuns.load().fitted
    ]
    return "\n".join([
        "\nkernel times, predicted and measured (--part shows each by device)",
        _formatted(pd.DataFrame(rows), ("part", "fitted to"), PART_SHOWN),
        "\nconstants fitted to step times",
        *constants,
    ])  # fmt: skip


def _left_out(source: str, *, as_json: bool) -> str:
    """Errors of each held-out source with constants fitted to the other sources, as a table or JSON."""
    from phaze.validate.study import left_out

    with telling("validate"):
        errors = left_out(source)
    if as_json:
        return errors.to_json(orient="records", indent=2, double_precision=15)
    return _formatted(errors, ("source",), LEFT_OUT_SHOWN)


def _part(name: str, files: list[Path] | None, system: str | None, out: Path | None, *, as_json: bool) -> str:
    """Errors of one part of the cost model on measured kernels, as a table or JSON."""
    import pandas as pd

    from phaze.validate.parts.base import columns_in
    from phaze.validate.parts.registry import kernel_files, part_named
    from phaze.validate.parts.scores import compare
    from phaze.validate.table import write_table

    part = part_named(name)
    with telling("validate"):
        comparison = compare(part, files or kernel_files(part), system)
    for file in files or ():
        tell_unread(file, columns_in(file), part.columns)
    if out is not None:
        write_table(comparison.table, out)
    if as_json:
        return json.dumps(comparison.plain(), indent=2)
    groups = [*comparison.by("device", "precision", "kind"), {"device": "all", **asdict(comparison.score)}]
    table = pd.DataFrame(groups).fillna({"precision": "", "kind": ""})
    return _formatted(table, ("device", "precision", "kind"), PART_SHOWN)


def scores_as_json(scores: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Scores of every source as JSON, with the regret in each of its groups of layouts."""
    from phaze.spec.measured import PublishedRuns
    from phaze.validate.scoreboard import groups_of, rows_of

    groups, simulated = groups_of(runs), PublishedRuns.load().simulated
    rows = json.loads(scores.to_json(orient="records", double_precision=15))
    for row in rows:
        # The regret of choosing the predicted layout is known only inside a group of comparable runs.
        source_groups = rows_of(row["source"], groups, simulated)
        row["by_group"] = json.loads(source_groups.to_json(orient="records", double_precision=15))
    return json.dumps(rows, indent=2)


def _shown(scores: pd.DataFrame, columns: dict[str, str]) -> str:
    refused = [
        wrapped(f"{source!s}: refused {reason!s}", PIPED)
        for source, reason in zip(scores["source"], scores["refused"], strict=True)
        if reason
    ]
    return "\n".join([_formatted(scores, ("source",), columns), *refused])


def _formatted(table: pd.DataFrame, names: tuple[str, ...], shown: dict[str, str]) -> str:
    """Table as text, with formatted numbers and unchanged name columns."""
    columns = {
        name.replace("_", " "): [
            "–" if isnan(value) else form.format(value).replace("%", " %") for value in table[name]
        ]
        for name, form in shown.items()
    }
    return table[list(names)].assign(**columns).to_string(index=False)
