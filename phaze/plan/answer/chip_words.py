"""Text of the answer to which chip to build: the choice first, then a table of chips and plans."""

from __future__ import annotations

from collections.abc import Iterator

from phaze.base.printed import wrapped
from phaze.base.units import digits, percent, signed
from phaze.plan.answer.ranked_table import shape
from phaze.spec.architecture import GRID_SIZES
from phaze.spec.chip_choice import ChipChoice, ChipForModels, PlanOnChip
from phaze.spec.names import Rank

REFERENCES = {"built": "For comparison, as built", "template": "For comparison, nearest to an H100"}
"""Titles of chips beside the answer, by role."""
HEAD = ("model", "step", "to best", "MFU", "tok/s/mm2", "tok/J", "bound by")


def choice_in_words(choice: ChipChoice) -> str:
    """The answer for a terminal of 80 columns."""
    question, chosen = choice.question, choice.chosen
    models = ", ".join(model.model for model in question.models)
    limit = question.space.area_limit_mm2
    area = f"{limit:g} mm2" if isinstance(limit, float) else f"the area of {limit}"
    memories = ", ".join(f"{capacity:g}" for capacity in question.hbm_gib)
    clock = f"{digits((chosen.chip.clock_hz or 0.0) / 1e9)} GHz"
    rate = f"{digits((chosen.chip.hbm_bandwidth_bytes_per_s or 0.0) / 1e12)} TB/s"
    chips = f"{question.devices:,} chips of at most {area} ({question.space.technology}), {clock}"
    lines = [
        f"{models} on {chips}, with {memories} GiB of HBM at {rate}: {choice.designs:,} designs",
        choice.trust,
        f"Build {_named(chosen)}. {_proof(choice)}",
    ]
    lines += _at_the_edge(choice)
    if choice.stopped:
        lines.append(f"The search ended early: {choice.stopped}.")
    text = [wrapped(line) for line in lines]
    for row in (chosen, *choice.others):
        text += ["", wrapped(f"{_title(row)}: {_named(row)}"), *_plans(row, question.rank)]
    return "\n".join(text)


def _named(row: ChipForModels) -> str:
    chip = row.chip
    area = "" if chip.area_mm2 is None else f", {digits(chip.area_mm2)} mm2"
    ends = f"{digits(row.area_low_mm2)} to {digits(row.area_high_mm2)}"
    area += f" ({ends})" * (row.area_high_mm2 > row.area_low_mm2)
    cores = f"{chip.num_tc} tensor cores of {chip.pe_x} x {chip.pe_y}, {chip.num_vc} vector cores"
    memory = f"{chip.glb_mib:g} MiB of buffer, {chip.hbm_gib:g} GiB of HBM"
    return f"{chip.name}: {cores} of {chip.lanes} lanes, {memory}{area}"


def _title(row: ChipForModels) -> str:
    if row.role == "all":
        return "For all models" if len(row.plans) > 1 else "The best chip"
    if row.role in REFERENCES:
        return REFERENCES[row.role]
    return f"With {row.role}" if "=" in row.role else f"Best for {row.role}"


def _proof(choice: ChipChoice) -> str:
    """Sentence on what any other design could gain."""
    several = len(choice.bounds) > 1
    whole = " in the geometric mean" * several
    slower = max(0.0, max(plan.times_best or 1.0 for plan in choice.chosen.plans) - 1.0)
    loss = f" No model is more than {percent(slower)} slower than on its own best chip." * several
    gain = f"more than {percent(choice.gap)} faster{whole} in this cost model (proven)"
    return f"No other design, with any layout, is {gain}.{loss}"


def _at_the_edge(choice: ChipChoice) -> Iterator[str]:
    """Yield a sentence on the sizes in which the choice is an end of the grid."""
    grid, chip = choice.question.space.grid, choice.chosen.chip
    if grid is None:
        return
    sizes = {name: getattr(grid, name) for name in GRID_SIZES}
    ends = [
        f"{name} {value:g} is the {'largest' if value == max(values) else 'smallest'}"
        for name, values in sizes.items()
        if len(values) > 1 and (value := getattr(chip, name)) in (min(values), max(values))
    ]
    if ends:
        yield f"At the edge of the grid: {', '.join(ends)}. A wider --sweep may find a better chip."


def _plans(row: ChipForModels, rank: Rank) -> Iterator[str]:
    """Yield the lines of a table with a chip's plans, each followed by its layout."""
    rows = [HEAD, *(_cells(on_chip, rank) for on_chip in row.plans)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells, on_chip in zip(rows, (None, *row.plans), strict=True):
        first, *others = zip(cells, widths, strict=True)
        yield "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()
        if on_chip is not None and on_chip.plan is not None:
            layout = shape(on_chip.plan.layout, on_chip.plan.recomputed_layers)
            yield wrapped(f"  {layout}; {on_chip.plan.used_gib:.1f} GiB")


def _cells(on_chip: PlanOnChip, rank: Rank) -> tuple[str, ...]:
    plan = on_chip.plan
    if plan is None:
        return (on_chip.model, "no time" if on_chip.stopped else "unfit", *[""] * (len(HEAD) - 2))
    return (
        on_chip.model,
        f"{digits(plan.by(rank), 4)} s",
        signed((on_chip.times_best or 1.0) - 1.0),
        percent(plan.mfu),
        "" if on_chip.tokens_per_s_mm2 is None else digits(on_chip.tokens_per_s_mm2),
        "" if on_chip.tokens_per_j is None else digits(on_chip.tokens_per_j),
        plan.bound_by,
    )
