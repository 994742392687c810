"""Ranked table of plans: one row per layout, with only the columns that distinguish the layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from phaze.base.printed import COLUMNS, wrapped
from phaze.base.units import percent
from phaze.layout import MODEL_WIDTHS, SHARED_OPTIONS, Layout, named_widths
from phaze.plan.terms.memory import OK, status_of
from phaze.runtimes.layout_string import blocks_of, equal_counts, stages_of
from phaze.spec.system import Device
from phaze.spec.training_plan import ChosenLayout, RankedPlan

FIGURES = ("", "expected", "MFU", "GiB", "bubble", "comm")
NEGLIGIBLE = 1e-3
"""Share of the step time below which a part is not listed."""
PRUDENT = "prudent"
MOST_TWINS = 1
"""Maximum number of twins that a layout's row names; the rest are counted."""
SHORT = {"microbatch": "mbs", "zero": "ZeRO"}
"""Short column names of layout fields."""
USUAL = ("1f1b", "interleaved")
"""Default schedules, which the table omits because they follow from the number of virtual stages."""


def shape(layout: ChosenLayout, blocks: int | None) -> str:
    """Short text form of a layout, see `fields_in_words`."""
    return " ".join(fields_in_words(layout, blocks))


def fields_in_words(layout: ChosenLayout, blocks: int | None) -> Iterator[str]:
    """Yield layout fields in common notation, without widths of 1; `blocks` counts recomputed blocks."""
    yield from named_widths(layout)
    yield from (f"dp {layout.dp}", f"mbs {layout.microbatch}", f"ZeRO-{layout.zero}")
    if layout.recompute != "none":
        yield f"recompute {recompute(layout, blocks)}"
    yield from unusual(layout)


def ranked_table(plans: Sequence[RankedPlan], device: Device) -> Iterator[str]:
    """Yield the lines of the table: step time, MFU, peak memory, bubble, exposed communication, layouts.

    A row may fit if the upper end of its memory range does not, and a note says so. Long sets of recomputed
    modules are abbreviated by letters, explained in the last line. Other long notes
    are on lines of their own.
    """
    axes = [name for name in MODEL_WIDTHS if any(getattr(plan.layout, name) > 1 for plan in plans)]
    prudent = all(plan.prudent_s is not None for plan in plans)
    head = [*FIGURES[:1], *[PRUDENT] * prudent, *FIGURES[1:], *axes, "dp", "mbs", "ZeRO"]
    rows = [_cells(i, plan, prudent, axes) for i, plan in enumerate(plans, start=1)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    yield _line(head, widths) + "  recompute"
    letters: dict[str, str] = {}
    for cells, plan in zip(rows, plans, strict=True):
        line = f"{_line(cells, widths)} "
        recompute_text = recompute(plan.layout, plan.recomputed_layers)
        if len(line) + len(recompute_text) >= COLUMNS:
            recompute_text = letters.setdefault(recompute_text, f"[{ascii_lowercase[len(letters)]}]")
        fit = row_status(plan, device).partition(":")[0]
        for note in (recompute_text, *unusual(plan.layout), *[fit] * (fit != OK), *_twin_notes(plan)):
            if len(line) + len(note) >= COLUMNS:
                yield line.rstrip()
                line = "  "
            line += f" {note}"
        yield line
    if letters:
        explained = ", ".join(f"{letter} {option}" for option, letter in letters.items())
        yield wrapped(f"Recompute {explained}.")


def row_status(plan: RankedPlan, device: Device) -> str:
    """`ok` if the upper end of a row's memory in use fits on a device, else may fit or does not fit."""
    used = plan.in_use_gib
    return OK if used is None else status_of(used.low, used.high, device)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _cells(rank: int, plan: RankedPlan, prudent: bool, axes: Sequence[str]) -> list[str]:
    times_s = [plan.prudent_s] * prudent + [plan.time_s]
    return [
        str(rank),
        *(f"{seconds:.4g} s" for seconds in times_s if seconds is not None),
        percent(plan.mfu),
        f"{plan.used_gib:.1f}",
        percent(plan.bubble_share),
        percent(plan.exposed_communication_share),
        *(str(getattr(plan.layout, name)) for name in (*axes, "dp", "microbatch", "zero")),
    ]


def _twin_notes(plan: RankedPlan) -> Iterator[str]:
    """Yield notes on the layouts that tie with this one, with the fields in which they differ."""
    for twin in plan.twins[:MOST_TWINS]:
        yield f"(also {differences(plan.layout, twin)})"
    if unnamed := len(plan.twins[MOST_TWINS:]):
        yield f"({unnamed} more)"


def differences(layout: ChosenLayout, other: ChosenLayout) -> str:
    """Short list of the fields in which another layout differs, without implied fields."""
    fields, other_fields = layout.model_dump(), other.model_dump()
    implied = {
        "sequence_parallel": 1 in (layout.tp, other.tp),
        "cp_kind": 1 in (layout.cp, other.cp),
        "schedule": layout.schedule in USUAL and other.schedule in USUAL,
    }
    names = [name for name, value in fields.items() if value != other_fields[name] and not implied.get(name)]
    # The pipeline layout follows from the other fields unless it is the only difference.
    if len(names) > 1 and "pipeline_layout" in names:
        names.remove("pipeline_layout")
    return ", ".join(f"{SHORT.get(name, name.replace('_', ' '))} {other_fields[name]}" for name in names)


def recompute(layout: ChosenLayout, blocks: int | None) -> str:
    """Short text of a layout's recompute option: `full` for all blocks, `full:k` for k of each virtual stage.

    `blocks` is the number of fully recomputed blocks in all stages, if known. Numbers that differ among
    stages are added up.
    """
    stages = stages_of(layout.pipeline_layout)
    blocks_by_stage, mtp = blocks_of(layout.pipeline_layout), sum(stage.count("m") for stage in stages)
    if layout.recompute != "full" or blocks in (None, sum(blocks_by_stage)):
        return layout.recompute
    counts = range(max(blocks_by_stage), 0, -1)
    totals = {sum(equal_counts(blocks_by_stage, mtp, count)): count for count in counts}
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
