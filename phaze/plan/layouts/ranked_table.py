"""Ranked table of plans: one row per layout, with only the columns that distinguish the layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from textwrap import fill

from phaze.layout import MODEL_WIDTHS, SHARED_OPTIONS, Layout
from phaze.plan.terms.memory import OK, status_of
from phaze.runtimes.layout_string import blocks_of, equal_counts, stages_of
from phaze.spec.system import Device
from phaze.spec.training_plan import ChosenLayout, RankedPlan

COLUMNS = 80
"""Line width of a terminal, in characters."""
FIGURES = ("", "expected", "MFU", "GiB", "bubble", "comm")
PRUDENT = "prudent"
MOST_TWINS = 1
"""Maximum number of twins that a layout's row names; the rest are counted."""
SHORT = {"microbatch": "mbs", "zero": "ZeRO"}
"""Short column names of layout fields."""
USUAL = ("1f1b", "interleaved")
"""Default schedules, which the table omits because they follow from the number of virtual stages."""


def ranked_table(plans: Sequence[RankedPlan], device: Device) -> Iterator[str]:
    """Yield the lines of the table: step time, MFU, peak memory, bubble, exposed communication, layouts.

    A row may fit if the upper end of its memory range does not, and a note says so. Long sets of recomputed
    modules are abbreviated by letters, explained in the last line. Other long notes
    are on lines of their own.
    """
    axes = [name for name in MODEL_WIDTHS if any(getattr(one.layout, name) > 1 for one in plans)]
    prudent = all(one.prudent_s is not None for one in plans)
    head = [*FIGURES[:1], *[PRUDENT] * prudent, *FIGURES[1:], *axes, "dp", "mbs", "ZeRO"]
    rows = [[*_figures(i, one, prudent), *_axes(one, axes)] for i, one in enumerate(plans, start=1)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    yield _line(head, widths) + "  recompute"
    letters: dict[str, str] = {}
    for cells, one in zip(rows, plans, strict=True):
        line = f"{_line(cells, widths)} "
        again = recompute(one.layout, one.recomputed_layers)
        if len(line) + len(again) >= COLUMNS:
            again = letters.setdefault(again, f"[{ascii_lowercase[len(letters)]}]")
        fit = row_status(one, device).partition(":")[0]
        for note in (again, *unusual(one.layout), *[fit] * (fit != OK), *_also(one)):
            if len(line) + len(note) >= COLUMNS:
                yield line.rstrip()
                line = "  "
            line += f" {note}"
        yield line
    if letters:
        spelt = ", ".join(f"{letter} {words}" for words, letter in letters.items())
        yield wrapped(f"Recompute {spelt}.")


def row_status(plan: RankedPlan, device: Device) -> str:
    """`ok` if the upper end of a row's memory in use fits on a device, else may fit or does not fit."""
    used = plan.in_use_gib
    return OK if used is None else status_of(used.low, used.high, device)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _figures(rank: int, one: RankedPlan, prudent: bool) -> list[str]:
    times_s = [one.prudent_s] * prudent + [one.time_s]
    return [
        str(rank),
        *(f"{seconds:.4g} s" for seconds in times_s if seconds is not None),
        f"{one.mfu:.1%}",
        f"{one.used_gib:.1f}",
        f"{one.bubble_share:.1%}",
        f"{one.exposed_communication_share:.1%}",
    ]


def _axes(one: RankedPlan, axes: Sequence[str]) -> list[str]:
    layout = one.layout
    widths = [getattr(layout, name) for name in axes]
    return [f"{width}" for width in (*widths, layout.dp, layout.microbatch, layout.zero)]


def _also(one: RankedPlan) -> Iterator[str]:
    """Yield notes on the layouts that tie with this one, with the fields in which they differ."""
    for twin in one.twins[:MOST_TWINS]:
        yield f"(also {differences(one.layout, twin)})"
    if more := len(one.twins[MOST_TWINS:]):
        yield f"({more} more)"


def differences(one: ChosenLayout, other: ChosenLayout) -> str:
    """Short list of the fields in which another layout differs, without implied fields."""
    own, others = one.model_dump(), other.model_dump()
    told = {
        "sequence_parallel": 1 in (one.tp, other.tp),
        "cp_kind": 1 in (one.cp, other.cp),
        "schedule": one.schedule in USUAL and other.schedule in USUAL,
    }
    named = {name: value for name, value in others.items() if value != own[name] and not told.get(name)}
    if len(named) > 1:
        named.pop("pipeline_layout", None)
    return ", ".join(f"{SHORT.get(name, name.replace('_', ' '))} {value}" for name, value in named.items())


def recompute(layout: ChosenLayout, blocks: int | None) -> str:
    """Short text of a layout's recompute option: `full` for all blocks, `full:k` for k of each virtual stage.

    `blocks` is the number of fully recomputed blocks in all stages, if known. Numbers that differ among
    stages are added up.
    """
    stages = stages_of(layout.pipeline_layout)
    held, mtp = blocks_of(layout.pipeline_layout), sum(stage.count("m") for stage in stages)
    if layout.recompute != "full" or blocks in (None, sum(held)):
        return layout.recompute
    totals = {sum(equal_counts(held, mtp, count)): count for count in range(max(held), 0, -1)}
    return f"full:{totals[blocks]}" if blocks in totals else f"full ({blocks} blocks)"


def unusual(layout: ChosenLayout) -> Iterator[str]:
    """Yield the layout fields that differ from the default and have no column."""
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "no sequence parallelism"
    if layout.cp > 1 and layout.cp_kind != "all_gather":
        yield layout.cp_kind
    if layout.schedule not in USUAL:
        yield layout.schedule
    for name in SHARED_OPTIONS:
        if getattr(layout, name) != getattr(Layout(), name):
            yield f"{name} {getattr(layout, name)}"


def wrapped(sentence: str) -> str:
    """Wrap a sentence to terminal width."""
    return fill(sentence, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
