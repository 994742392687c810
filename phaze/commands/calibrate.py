"""Time kernels, links or layers on this machine, and fit a system or a device to measured runs or kernels."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.base.printed import wrapped
from phaze.base.units import percent
from phaze.commands import completion, options
from phaze.commands.output import refuse_outputs, tell_unread, telling

if TYPE_CHECKING:
    import pandas as pd

    from phaze.formulas.piper.requests import PiperRequest
    from phaze.validate.calibration import Calibrated, FittedConstant
    from phaze.validate.user_runs import UserRuns

CONSTANTS = "Constants before → after, ± one standard deviation, and what their whole range changes of a run:"


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Options of `phaze calibrate`: runs of a system, or kernels of a device, and the file to write."""

    out: Annotated[Path, typer.Option("-o", "--out")]
    """File for the fitted system (YAML). Other commands accept it as --system."""
    runs: Annotated[Path | None, typer.Argument()] = None
    """CSV of at least 3 measured runs, with the columns of simulate --runs and measured_s."""
    system: Annotated[str | None, typer.Option(autocompletion=completion.systems)] = None
    """System that the runs used: a name in config/systems, or a path. It must have network levels."""
    kernels: Path | None = None
    """CSV of measured kernels, such as `phaze measure` writes; fits a device instead of a system."""
    device: str | None = None
    """Device that ran the kernels: a name in config/devices, or a path."""
    as_json: options.JsonOption = False


@options.takes(CalibrateOptions)
def calibrate(request: CalibrateOptions) -> None:
    """Fit a system to measured runs, or a device to kernels.

    Prints the constants that these runs determine, the error before and after, and the error of every run
    with constants fitted to the other runs.
    """
    refuse_outputs(request.out, reads=(request.runs, request.system, request.kernels, request.device))
    # Before slow imports, so that a misspelt name fails at once.
    for file in (request.runs, request.kernels):
        options.readable(file)
    if request.kernels is not None or request.device is not None:
        typer.echo(_fit_kernels(request))
        return
    if request.runs is None or request.system is None:
        raise PhazeError("calibrate: give RUNS.csv with --system, or --kernels with --device")
    from phaze.validate import user_runs
    from phaze.validate.rows import COLUMNS, read_texts

    with telling("calibrate"):
        measured, fit = user_runs.calibrate(request.runs, request.system, request.out)
    tell_unread(request.runs, read_texts(request.runs).columns, COLUMNS)
    shown = _shown(measured, fit, request.system, request.out)
    typer.echo(json.dumps(_plain(measured, fit), indent=2) if request.as_json else shown)


def _fit_kernels(request: CalibrateOptions) -> str:
    """Fit a device to measured kernels, and return the errors before and after as text."""
    kernels, device, out = request.kernels, request.device, request.out
    if kernels is None or device is None or request.runs is not None:
        raise PhazeError("calibrate: --kernels needs --device and the reverse; neither accepts RUNS.csv")
    from phaze.validate.parts.base import columns_in
    from phaze.validate.parts.registry import PARTS
    from phaze.validate.user_runs import fit_device

    with telling("calibrate"):
        fits = fit_device(kernels, device, out)
    # All parts read the same file: a column is unread only if no part reads it.
    tell_unread(kernels, columns_in(kernels), [name for part in PARTS.values() for name in part.columns])
    if request.as_json:
        return json.dumps({fit.part: asdict(fit) for fit in fits}, indent=2)
    lines = [
        f"{fit.part}: {fit.after.rows} rows, median error {percent(fit.before.median)} before the fit, "
        f"{percent(fit.after.median)} after, 90th percentile {percent(fit.after.p90, 0)}"
        for fit in fits
    ]
    return "\n".join([*lines, str(out)])


def _plain(measured: UserRuns, fit: Calibrated) -> dict[str, object]:
    return {
        "rows": len(measured.rows),
        "fitted_rows": fit.rows,
        "unused": dict(measured.unused),
        "error_before": fit.error_before,
        "error": fit.error,
        "error_left_out": fit.error_left_out,
        "covered": fit.covered,
        "layouts": [asdict(errors) for errors in fit.layouts],
        "constants": [_constant(constant) for constant in fit.constants],
        "alike": [dict(zip(("one", "other", "correlation"), pair, strict=True)) for pair in fit.alike],
    }


def _constant(fitted: FittedConstant) -> dict[str, object]:
    # A constant that changes no run has no meaningful uncertainty; JSON has null for it.
    uncertainty = fitted.uncertainty if fitted.identifiable else None
    return {
        "name": fitted.constant.name,
        **{key: value for key, value in asdict(fitted).items() if key != "constant"},
        "uncertainty": uncertainty,
        "identifiable": fitted.identifiable,
        "at_end": fitted.at_end,
    }


def _shown(measured: UserRuns, fit: Calibrated, system: str, out: Path) -> str:
    """Text of a fit in three groups: constants, errors, and notes on the runs, then the file."""
    from phaze.validate.user_runs import in_words

    part = "" if fit.rows == len(measured.rows) else f", fitted to {fit.rows} of them"
    errors = [
        f"{percent(fit.error_before)} before the fit, {percent(fit.error)} after",
        f"{percent(fit.error_left_out)} for runs left out of the fit",
        f"{percent(fit.covered, 0)} of the runs are in the 80 % interval that the other runs give them",
    ]
    if len(fit.layouts) > 1:
        errors += [
            f"{layout.parallelism:<24}{layout.runs} runs left out: {percent(layout.error)}, bias "
            f"{100 * layout.bias:+.1f} %"
            for layout in fit.layouts
        ]
    notes = [*in_words(measured.unused)]
    if measured.named:
        notes.append(
            f"some rows name their own system, which overrides --system; remove that column to use {system}"
        )
    groups = {
        CONSTANTS: _constant_lines(fit),
        f"Mean absolute error of {len(measured.rows)} runs{part}:": [f"  {line}" for line in errors],
        "Runs:": [f"  {line}" for line in notes],
    }
    lines = [wrapped(line) for title, group in groups.items() if group for line in (title, *group)]
    return "\n".join([*lines, wrapped(f"{out}: {verdict(fit, system)}")])


def verdict(fit: Calibrated, system: str) -> str:
    """Sentence on whether to plan with the fit."""
    # A fit may merely follow its own runs, so only errors of runs left out of it show an improvement.
    errors = f"{percent(fit.error_left_out)} against {percent(fit.error_before)} on runs left out of the fit"
    if fit.error_left_out >= fit.error_before:
        return f"no improvement shown ({errors}): keep {system}."
    doubtful = [
        fitted.constant.name
        for fitted in fit.constants
        if fitted.identifiable and (fitted.at_end or fitted.implausible is not None)
    ]
    if doubtful:
        names = ", ".join(doubtful)
        return (
            f"better than {system} ({errors}), but check the columns of the runs first: {names} ended at a "
            "limit or beyond what device files have."
        )
    return f"better than {system} ({errors}): plan with it."


def _constant_lines(fit: Calibrated) -> list[str]:
    """Lines on the constants that the runs determine, on implausible ones, and on all others together."""
    listed = [c for c in fit.constants if c.growth or (c.identifiable and (c.uncertainty < 1 or c.at_end))]
    lines = [_line(constant) for constant in listed]
    for fitted in listed:
        if (usual := fitted.implausible) is not None:
            low, high = usual
            lines.append(
                f"  {fitted.constant.name} {fitted.after:.3g} is implausible: device files have {low:.3g} to "
                f"{high:.3g}. A column of the runs may be wrong or missing, such as recompute, "
                "load or the unit of measured_s (seconds), or the runs have another device or stack."
            )
    if fit.alike:
        pairs = ", ".join(f"{name} and {other} ({cosine:+.2f})" for name, other, cosine in fit.alike)
        lines.append(f"  change these runs alike, so only their combined effect is known: {pairs}")
    others = [constant for constant in fit.constants if constant not in listed]
    weak = ", ".join(f"{c.constant.name} → {c.after:.4g}" for c in others if c.identifiable)
    unchanged = ", ".join(c.constant.name for c in others if not c.identifiable)
    lines += [f"  undetermined by these runs: {weak}"] * bool(weak)
    reason = "they change no run by more than 0.5 %"
    lines += [f"  unchanged: not identifiable, {reason}: {unchanged}"] * bool(unchanged)
    return lines


def _line(fitted: FittedConstant) -> str:
    name = f"  {fitted.constant.name:<24}{fitted.before:<10.4g}"
    if fitted.growth:
        return (
            f"{name}unchanged: measured memory misses its prediction by a share, {percent(fitted.growth, 0)} "
            "more of each GiB, which no constant explains; see fragments of the stack"
        )
    from phaze.validate.constants import RESERVED

    uncertainty = f"± {percent(fitted.uncertainty, 0)}" if fitted.uncertainty < 1 else "undetermined"
    effect = f"up to {percent(fitted.effect, 0)}"
    if fitted.constant == RESERVED:
        effect = f"memory is off by up to {percent(fitted.effect, 0)}"
    if fitted.at_end:
        effect = "at the end of its range"
    return f"{name}→ {fitted.after:<10.4g}{uncertainty:<14}{effect}"


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """Options of `phaze measure`: the output, and links or layers instead of kernels."""

    out: Annotated[Path, typer.Option("-o", "--out")]
    """CSV for the times, for `phaze calibrate --kernels`; with --links a topology; with --layers timings for
    `phaze plan --planners --layers`."""
    links: bool = False
    """Time messages between all processes of torchrun instead, and fit the latency and bandwidth of every
    link, for `phaze map` and `phaze partition`."""
    layers: Annotated[str | None, typer.Option(metavar="MODEL")] = None
    """Time the layers of this transformer instead, in every configuration that Piper's planner may choose on
    the cluster of --gpus: a name in config/models, or a path. Without a GPU they run on the CPU."""
    gpus: options.GpusOption = None
    sequence: options.SequenceOption = None
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", "--gbs", parser=options.count, metavar="N")
    ] = None
    """Samples in a batch. Default: 4096."""


@options.takes(MeasureOptions)
def measure(request: MeasureOptions) -> None:
    """Time GEMMs, attention and collectives on this machine, or links of a cluster, or layers of a model.

    Collectives are timed if there are several GPUs. Needs PyTorch, which the extra torch of phaze
    installs, and takes a few minutes.
    """
    out = request.out
    refuse_outputs(out, reads=(request.layers,))
    _refuse_mixed(request)
    from phaze.validate.table import write_table

    try:
        from phaze.validate import measuring, measuring_layers, measuring_links
    except ImportError as error:
        raise PhazeError(
            "measure: PyTorch is not installed", "run pip install '.[torch]' in the folder of phaze"
        ) from error
    if request.links:
        table = measuring_links.measured_links()
        # Only the first process of torchrun has the table, so that one writes it.
        if table is not None:
            write_table(table, out)
            typer.echo(_links_in_words(table, out))
        return
    if request.layers is not None:
        from phaze.base.files import write_text
        from phaze.formulas.piper.timings import timings_text
        from phaze.partition.measured import default_device, device_name

        piper = _piper_request(request, request.layers)
        with telling("measure"):
            timings = [*measuring_layers.measured_timings(piper)]
        write_text(out, timings_text(timings))
        typer.echo(f"{len(timings)} configurations of layers timed on {device_name(default_device())}: {out}")
        return
    with telling("measure"):
        kernels = measuring.measured()
    write_table(kernels, out)
    typer.echo(f"{len(kernels)} kernels timed on {kernels['device'].iloc[0]}: {out}")


def _refuse_mixed(request: MeasureOptions) -> None:
    """Raise PhazeError for options that exclude each other, or that need one that is missing."""
    if request.links and request.out.suffix != ".csv":
        raise PhazeError(f"measure: -o {request.out}: must end in .csv, as tables of links do")
    if request.links and request.layers is not None:
        raise PhazeError("measure: --layers and --links exclude each other", "leave one of them out")
    others = {"--gpus": request.gpus, "--sequence": request.sequence, "--global-batch": request.global_batch}
    passed = [name for name, option in others.items() if option is not None]
    if request.layers is None and passed:
        raise PhazeError(f"measure: {passed[0]} needs --layers", "pass --layers MODEL, or leave it out")
    if request.layers is not None and request.gpus is None:
        raise PhazeError(
            "measure: --layers needs --gpus, the cluster to plan for", "such as --gpus 64xH100, as for plan"
        )


def _piper_request(request: MeasureOptions, model: str) -> PiperRequest:
    """Input of Piper's planner with the cost model's layers, as `phaze plan` makes it."""
    from phaze.commands.plan import prepared
    from phaze.commands.plan_options import PlanOptions
    from phaze.formulas.piper.requests import PiperRequest
    from phaze.plan.answer.answer import question_of

    planned = PlanOptions(
        model=model, gpus=request.gpus, sequence=request.sequence, global_batch=request.global_batch,
        planners=True,
    )  # fmt: skip
    phases = prepared(planned)
    if len(phases) > 1:
        raise PhazeError("measure: --layers accepts one number of devices; --gpus has several")
    return PiperRequest(question_of(phases[0].question))


def _links_in_words(links: pd.DataFrame, out: Path) -> str:
    """Ranges of the latencies and bandwidths of all links, and the link that fits the postal model worst."""
    microseconds, gigabytes = links["latency_s"] * 1e6, links["bandwidth_bytes_per_s"] / 1e9
    worst = links.sort_values("residual").iloc[-1]
    return (
        f"{len(links)} links: latency {microseconds.min():.3g} to {microseconds.max():.3g} us, bandwidth "
        f"{gigabytes.min():.3g} to {gigabytes.max():.3g} GB/s; residual at most "
        f"{percent(worst['residual'])}, from {worst['source']:.0f} to {worst['target']:.0f}: {out}"
    )
