"""Time kernels on this machine's GPUs, and fit a system or a device to measured runs or kernels."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion, options
from phaze.commands.output import refuse_outputs, tell_unread, telling

if TYPE_CHECKING:
    from phaze.validate.calibration import Calibrated, FittedConstant
    from phaze.validate.own_runs import OwnRuns


def calibrate(
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", help="File for the fitted system (YAML). Other commands accept it as --system."
        ),
    ],
    runs: Annotated[
        Path | None,
        typer.Argument(
            help="CSV of at least 3 measured runs, with the columns of simulate --runs and measured_s."
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            help="System that the runs used: a name in config/systems, or a path. It must have network "
            "levels.",
            autocompletion=completion.systems,
        ),
    ] = None,
    kernels: Annotated[
        Path | None,
        typer.Option(
            help="CSV of measured kernels, such as `phaze measure` writes; fits a device instead of a system."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device that ran the kernels: a name in config/devices, or a path."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Fit a system to measured runs, or a device to kernels.

    Prints the constants that these runs determine, the error before and after, and the error of every run
    with constants fitted to the other runs.
    """
    refuse_outputs(out, reads=(runs, system, kernels, device))
    for file in (runs, kernels):
        options.readable(file)
    if kernels is not None or device is not None:
        typer.echo(_fit_kernels(kernels, device, out, runs, as_json=as_json))
        return
    if runs is None or system is None:
        raise PhazeError("calibrate: give RUNS.csv with --system, or --kernels with --device")
    from phaze.validate import own_runs
    from phaze.validate.rows import COLUMNS, read_texts

    with telling("calibrate"):
        known, found = own_runs.calibrate(runs, system, out)
    tell_unread(runs, read_texts(runs), COLUMNS)
    typer.echo(json.dumps(_plain(known, found), indent=2) if as_json else _shown(known, found, system, out))


def _fit_kernels(
    kernels: Path | None, device: str | None, out: Path, runs: Path | None, *, as_json: bool
) -> str:
    """Fit a device to measured kernels, and return the errors before and after as text."""
    if kernels is None or device is None or runs is not None:
        raise PhazeError("calibrate: --kernels needs --device and the reverse; neither accepts RUNS.csv")
    from phaze.validate.own_runs import fit_device
    from phaze.validate.parts.base import columns_in
    from phaze.validate.parts.registry import PARTS

    with telling("calibrate"):
        found = fit_device(kernels, device, out)
    tell_unread(kernels, columns_in(kernels), [name for part in PARTS.values() for name in part.columns])
    if as_json:
        return json.dumps({one.part: asdict(one) for one in found}, indent=2)
    lines = [
        f"{one.part}: {one.after.rows} rows, median error {one.before.median:.1%} before the fit, "
        f"{one.after.median:.1%} after, 90th percentile {one.after.p90:.0%}"
        for one in found
    ]
    return "\n".join([*lines, str(out)])


def _plain(known: OwnRuns, found: Calibrated) -> dict[str, object]:
    return {
        "rows": len(known.rows),
        "fitted_rows": found.rows,
        "unused": dict(known.unused),
        "error_before": found.error_before,
        "error": found.error,
        "error_left_out": found.error_left_out,
        "constants": [_constant(one) for one in found.constants],
        "alike": [dict(zip(("one", "other", "correlation"), pair, strict=True)) for pair in found.alike],
    }


def _constant(one: FittedConstant) -> dict[str, object]:
    known = one.uncertainty if one.identifiable else None
    return {
        "name": one.constant.name,
        **{key: value for key, value in asdict(one).items() if key != "constant"},
        "uncertainty": known,
        "identifiable": one.identifiable,
        "at_end": one.at_end,
    }


def _shown(known: OwnRuns, found: Calibrated, system: str, out: Path) -> str:
    from phaze.validate.own_runs import in_words

    lines = [_line(one) for one in found.constants]
    lines += [
        f"{one} and {other} change these runs alike ({cosine:+.2f}): only their combined effect is known"
        for one, other, cosine in found.alike
    ]
    part = "" if found.rows == len(known.rows) else f", fitted to {found.rows} of them"
    lines.append(
        f"{len(known.rows)} runs{part}: mean absolute error {found.error_before:.1%} before the "
        f"fit, {found.error:.1%} after, {found.error_left_out:.1%} for runs left out of the fit"
    )
    lines += in_words(known.unused)
    if found.error_left_out >= found.error_before:
        lines.append(
            f"no improvement shown: {out} does not predict runs left out of the fit better than {system}"
        )
    if known.named:
        lines.append(
            "some rows name their own system, which overrides --system; remove that column to use {system}"
        )
    return "\n".join([*lines, str(out)])


def _line(one: FittedConstant) -> str:
    name = f"{one.constant.name:<24}{one.before:<10.4g}"
    if not one.identifiable:
        return f"{name}unchanged: not identifiable, it changes no run by more than 0.5 %"
    known = f"± {one.uncertainty:.0%}" if one.uncertainty < 1 else "undetermined"
    after, end = (
        f"{name}→ {one.after:<10.4g}{known:<14}",
        "at the end of its range; check the software stack",
    )
    return after + (end if one.at_end else f"changes runs by up to {one.effect:.0%} over its range")


def measure(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="CSV for the times, for `phaze calibrate --kernels`.")
    ],
) -> None:
    """Time GEMMs, attention and collectives on this machine.

    Collectives are timed if there are several GPUs. Needs PyTorch, which the extra torch of phaze
    installs, and takes a few minutes.
    """
    refuse_outputs(out)
    from phaze.validate.table import write_table

    try:
        from phaze.validate import measuring
    except ImportError as error:
        raise PhazeError(
            "measure: PyTorch is not installed", "run pip install '.[torch]' in the folder of phaze"
        ) from error
    with telling("measure"):
        found = measuring.measured()
    write_table(found, out)
    typer.echo(f"{len(found)} kernels timed on {found['device'].iloc[0]}: {out}")
