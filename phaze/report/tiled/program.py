"""The authors' program beside what they print: what it does not give either, and what no run can."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, isfinite, nan

import pandas as pd

from phaze.report.document import Items, Section, Sheet
from phaze.report.tiled.inputs import TiledInputs
from phaze.report.words import change, digits, join, times
from phaze.spec.published_tiled import ProgramRun, PublishedTiled

SAME = 0.01
"""A program gives a printed figure if it comes so near, relatively."""
SHARE = 16
"""GPUs over which the published column of Table VII is that of Table IV."""


def program_section(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the authors' program as run beside print and ours, where both are published."""
    published = inputs.published
    if published is None or published.program is None or not published.wafer:
        return
    program = published.program
    never = "Not reproduced by the authors' program either, in any version run"
    sentences = (
        *(f"{never}: {figure}." for figure in irreproducible(published)),
        f"A figure counts as reproduced where a version comes within {100 * SAME:g} % of it.",
        *_bounds(inputs, published),
    )
    blocks = _throughputs(inputs, published, program), _splits(published, program), Items(sentences)
    about = f"What {program.source}, gives; it runs {program.microbatches} microbatches."
    yield Section("program", "The authors' program as run", about, blocks)


def _throughputs(inputs: TiledInputs, published: PublishedTiled, program: ProgramRun) -> Sheet:
    """Return Table VII: print, program, ours, and where its published column comes from."""
    best = _first_reading(inputs)
    cells = []
    for model, row in published.wafer.items():
        found = (*(ours[model] for ours in program.wafer.values()), best.get(model, nan))
        beside = (
            f"{digits(ours, 4)} ({change(ours / row.palm)})" if isfinite(ours) else "–" for ours in found
        )
        cells.append(
            (model, digits(row.palm, 5), *beside, digits(row.printed, 5), *_scaled(published, model))
        )
    header = (
        "model", "PALM prints", *(f"its program, {version}" for version in program.wafer),
        "ours, first reading", "published column", "Table IV over GPUs/16", "the same, numerator cut",
    )  # fmt: skip
    return Sheet("Table VII: samples per second as printed, as run, and here", header, tuple(cells), 1)


def _first_reading(inputs: TiledInputs) -> dict[str, float]:
    """Return the samples per second by model of the system and the microbatches that are listed first."""
    for name, case in inputs.of("table"):
        rows = inputs.rows(name)
        rows = rows[(rows["system"] == case.systems[0]) & (rows["microbatches"] == case.microbatches[0])]
        return {
            str(model): float(best) for model, best in rows.groupby("model")["samples_per_s"].max().items()
        }
    return {}


def _scaled(published: PublishedTiled, model: str) -> tuple[str, str]:
    """Return Table IV's published figure over a sixteenth of the GPUs, whole and with its numerator cut."""
    if model not in published.gpus:
        return "–", "–"
    parts, figure = published.wafer[model].gpus / SHARE, published.gpus[model].printed
    return digits(figure / parts, 5), digits(floor(figure) / parts, 5)


def _splits(published: PublishedTiled, program: ProgramRun) -> Sheet:
    """Return the fastest splits and the gaps, as printed and as run."""
    gap = f"at least {published.gap:g}×"
    cells = tuple(
        (model, str(tensor), str(program.best_tensor[model]), gap, times(program.gaps[model]))
        for model, tensor in published.best_tensor.items()
    )
    header = ("model", "fastest TP printed", "its program", "gap printed", "its program")
    return Sheet("Figure 10: fastest split, and best over worst split and mapping", header, cells, 1)


def irreproducible(published: PublishedTiled) -> list[str]:
    """Return in words which printed figures no version of the authors' program gives."""
    program = published.program
    if program is None:
        return []
    found = []
    off = [
        model
        for model, row in published.wafer.items()
        if all(abs(ours[model] / row.palm - 1) > SAME for ours in program.wafer.values())
    ]
    if off:
        found.append(f"the samples/s of {join(off)} in Table VII")
    other = [model for model, tensor in published.best_tensor.items() if program.best_tensor[model] != tensor]
    if other:
        found.append(f"the fastest TP of {join(other)} in Figure 10")
    if min(program.gaps.values()) < published.gap:
        found.append(f"a gap of {published.gap:g}× between best and worst mapping")
    return found


def _bounds(inputs: TiledInputs, published: PublishedTiled) -> Iterator[str]:
    """Yield how many microbatches the printed throughputs need at least, from the time of work alone."""
    for name, case in inputs.of("table"):
        runs = {str(row["model"]): row for _, row in inputs.rows(name).iterrows()}
        models = [model for model in case.batches if model in published.wafer]
        fewest = {model: fewest_microbatches(runs[model], published.wafer[model].palm) for model in models}
        needs = [
            f"{digits(published.wafer[model].palm, 5)} samples/s of {model} "
            + ("can never be reached" if least is None else f"need at least {least}")
            for model, least in fewest.items()
        ]
        if needs:
            yield (
                f"Microbatches: {join(needs)}, even if tiles work at their peak and neither send nor fetch "
                "anything; the forward pass is done again, as in the program."
            )


def fewest_microbatches(run: pd.Series, samples_per_s: float) -> int | None:
    """Return the fewest microbatches m with which work and bubbles alone allow a throughput; None if none do.

    Equal stages work w (m + p − 1)/m seconds a sample (PALM, Equation 1): w follows from a run, of which the
    time without anything sent, fetched or stored is known.
    """
    others = int(run["stages"]) - 1
    work_s = float(run["alone_s"] / run["batch"] * run["microbatches"] / (run["microbatches"] + others))
    slack_s = 1 / samples_per_s - work_s
    return max(1, ceil(others * work_s / slack_s)) if slack_s > 0 else None
