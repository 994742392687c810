"""Text of the answer to which chip to build: the choice first, then a table of chips and plans."""

from __future__ import annotations

from collections.abc import Iterator

from phaze.base.printed import wrapped
from phaze.base.units import digits, percent, signed
from phaze.plan.answer.ranked_table import shape
from phaze.spec.architecture import GRID_SIZES
from phaze.spec.chip_choice import ChipChoice, ChipForModels, ChipQuestion, ChipRegret, PlanOnChip
from phaze.spec.names import ChipObjective

REFERENCES = {
    "built": "For comparison, as built",
    "template": "For comparison, the design of the space nearest to an H100",
}
"""Titles of chips beside the answer, by role."""
BETTER: dict[ChipObjective, tuple[str, str]] = {
    "time": ("is more than {} faster", "more than {} slower than"),
    "area": ("needs more than {} less area per token/s", "more than {} above the area per token/s of"),
    "energy": ("takes more than {} less energy per token", "more than {} above the energy per token of"),
    "cost": ("costs more than {} less per token/s", "more than {} above the cost per token/s of"),
}
"""What another chip could gain, and what a model loses against its own best chip, by objective."""
UNITS: dict[ChipObjective, str] = {
    "time": "seconds of a step",
    "area": "mm² per token per second",
    "energy": "joules of a token",
    "cost": "price of the chips per token per second",
}
"""What a score is, by objective."""
MOST_TURNS = 3
"""Maximum number of assumptions that are named as turning the choice."""


def choice_in_words(choice: ChipChoice) -> str:
    """The answer for a terminal of 80 columns."""
    first, recommendation, trust, *details = sentences(choice)
    text = [wrapped(line) for line in (first, trust, recommendation, *details)]
    for row in (choice.chosen, *choice.others):
        title = f"{title_of(row)}: {named(row, choice.question)}"
        text += ["", wrapped(title), *_plans(row, choice.question)]
    return "\n".join(text)


def sentences(choice: ChipChoice) -> tuple[str, ...]:
    """The question, the recommendation with its proof, how far to trust it, and further sentences."""
    question, chosen = choice.question, choice.chosen
    models = ", ".join(model.model for model in question.models)
    limit = question.space.area_limit_mm2
    area = f"{limit:g} mm2" if isinstance(limit, float) else f"the area of {limit}"
    memories = ", ".join(f"{capacity:g}" for capacity in question.hbm_gib)
    clock = f"{digits((chosen.chip.clock_hz or 0.0) / 1e9)} GHz"
    rate = f"{digits((chosen.chip.hbm_bandwidth_bytes_per_s or 0.0) / 1e12)} TB/s"
    chips = f"{question.devices:,} chips of at most {area} ({question.space.technology}), {clock}"
    details = [*robust_in_words(choice), *_at_the_edge(choice)]
    if question.objective == "energy":
        details.insert(0, "Energy is that of the fastest plan on each chip; the proof holds for all layouts.")
    if choice.stopped:
        details.append(f"The search ended early: {choice.stopped}.")
    return (
        f"{models} on {chips}, with {memories} GiB of HBM at {rate}: {choice.designs:,} designs",
        f"Build {named(chosen, question)}. {proof_in_words(choice)}",
        choice.trust,
        *details,
    )


def named(row: ChipForModels, question: ChipQuestion) -> str:
    """Name of a chip with its sizes, area and price."""
    chip = row.chip
    area = "" if chip.area_mm2 is None else f", {digits(chip.area_mm2)} mm2"
    ends = f"{digits(row.area_low_mm2)} to {digits(row.area_high_mm2)}"
    area += f" ({ends})" * (row.area_high_mm2 > row.area_low_mm2)
    if row.price is not None and question.prices is not None:
        area += f", {digits(row.price)} {question.prices.currency or 'for a chip'}"
    cores = f"{chip.num_tc} tensor cores of {chip.pe_x} x {chip.pe_y}, {chip.num_vc} vector cores"
    memory = f"{chip.glb_mib:g} MiB of buffer, {chip.hbm_gib:g} GiB of HBM"
    return f"{chip.name}: {cores} of {chip.lanes} lanes, {memory}{area}"


def title_of(row: ChipForModels) -> str:
    """Title of a chip beside the answer, or of the answer."""
    if row.role == "all":
        return "For all models" if len(row.plans) > 1 else "The best chip"
    if row.role in REFERENCES:
        return REFERENCES[row.role]
    return f"With {row.role}" if "=" in row.role else f"Best for {row.role}"


def proof_in_words(choice: ChipChoice) -> str:
    """Sentence on what any other design could gain, and on what a model loses by the common chip."""
    several = len(choice.bounds) > 1
    whole = " in the geometric mean" * several
    gains, loses = BETTER[choice.question.objective]
    worse = max(0.0, max(plan.times_best or 1.0 for plan in choice.chosen.plans) - 1.0)
    loss = f" No model is {loses.format(percent(worse))} its own best chip." * several
    gain = f"{gains.format(percent(choice.gap))}{whole} in this cost model (proven)"
    return f"No other design, with any layout, {gain}.{loss}"


def robust_in_words(choice: ChipChoice) -> Iterator[str]:
    """Yield sentences on the largest regret of a robust choice, and on what turns it."""
    if choice.robust is None:
        return
    first, *others = choice.robust.compared
    cases = choice.robust.cases
    if first.regret is None:
        yield f"{first.model} fits on no compared chip if {first.assumption}."
        return
    worst = f" ({first.model} if {first.assumption})" * (first.regret > 0)
    yield (
        f"Of {len(others) + 1} compared chips it has the smallest largest regret over {len(cases)} cases, "
        f"{percent(first.regret)}{worst}. In none of them is another chip more than "
        f"{percent(choice.robust.gap)} better than the best compared one (proven)."
    )
    turns = sorted((case for case in cases if case.regret), key=lambda case: -(case.regret or 0.0))
    if not turns:
        yield "It is the best one in all of them."
    for case in turns[:MOST_TURNS]:
        yield _turn_in_words(case)


def _turn_in_words(case: ChipRegret) -> str:
    return (
        f"For {case.model}, if {case.assumption}, {case.chip} with {case.hbm_gib:g} GiB is better by "
        f"{percent(case.regret or 0.0)}."
    )


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


def head_of(question: ChipQuestion) -> tuple[str, ...]:
    """Headings of a table of plans on a chip."""
    price = () if question.prices is None else (f"tok/s/{question.prices.currency or 'price'}",)
    return ("model", "step", "to best", "MFU", "tok/s/mm2", "tok/J", *price, "bound by")


def _plans(row: ChipForModels, question: ChipQuestion) -> Iterator[str]:
    """Yield the lines of a table with a chip's plans, each followed by its layout."""
    rows = [head_of(question), *(cells_of(on_chip, question) for on_chip in row.plans)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells, on_chip in zip(rows, (None, *row.plans), strict=True):
        first, *others = zip(cells, widths, strict=True)
        yield "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()
        if on_chip is not None and on_chip.plan is not None:
            layout = shape(on_chip.plan.layout, on_chip.plan.recomputed_layers)
            yield wrapped(f"  {layout}; {on_chip.plan.used_gib:.1f} GiB")


def cells_of(on_chip: PlanOnChip, question: ChipQuestion) -> tuple[str, ...]:
    """Row of a table of plans on a chip."""
    plan, number = on_chip.plan, len(head_of(question))
    if plan is None:
        return (on_chip.model, "no time" if on_chip.stopped else "unfit", *[""] * (number - 2))
    rates = [on_chip.tokens_per_s_mm2, on_chip.tokens_per_j]
    rates += [] if question.prices is None else [on_chip.tokens_per_s_price]
    return (
        on_chip.model,
        f"{digits(plan.by(question.rank), 4)} s",
        signed((on_chip.times_best or 1.0) - 1.0),
        percent(plan.mfu),
        *("" if rate is None else digits(rate) for rate in rates),
        plan.bound_by,
    )
