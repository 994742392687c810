"""Text and tables for the answer to a planning request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf

from phaze.base.printed import PIPED, wrapped
from phaze.base.units import digits, percent, signed
from phaze.plan.answer.assumptions import OPTIMISTIC
from phaze.plan.answer.ranked_table import (
    NEGLIGIBLE,
    differences,
    fields_in_words,
    ranked_table,
    row_status,
    shape,
)
from phaze.plan.terms.memory import OK
from phaze.plan.time_limit import INTERRUPTED, TIME_LIMIT
from phaze.spec.names import Rank
from phaze.spec.planner_rows import PlannerRow
from phaze.spec.system import Calibration, Device
from phaze.spec.training_plan import (
    TIE,
    AskedPlan,
    ChipOutcome,
    Explained,
    FewestNodes,
    NearRun,
    PlanCertificate,
    RankedPlan,
    RankMemory,
    StageShare,
    TrainingPlan,
    TrainingRun,
    UnfitPlan,
)

SIZES = ("devices", "step", "MFU", "GiB", "bubble", "comm", "gap", "layout")
"""Column names of the table over device counts."""
PRUDENT = "Prudent: overlap as measured, and room for all memory except gaps of the allocator."
"""Explanation of prudent time, by which plans are ranked by default."""
TOKENS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
"""Units of numbers of tokens."""
ASK = "Ask further: --why, --explain tp=8, --evidence, --fewest, -o PLAN.json"
PARTS = 3
"""Maximum number of parts of a step that a comparison lists."""
WIDE = 0.1
"""Width of an 80 % interval, over the step time, from which its reason is stated: twice the least spread."""
FASTER = 0.95
"""Ratio to the fastest recipe's step time below which measured evidence is listed."""
NEAREST = 2
"""Number of similar measured runs that are named."""
OUTCOMES = {
    "best": "the best",
    "slower": "no layout is faster",
    "excluded": "excluded by its bound",
    "unfit": "no layout fits",
    "undecided": "undecided",
}
"""Outcome of a chip as text."""
SHOWN_CHIPS = 20
"""Maximum number of chips in a table."""
LEAST_SHOWN_GIB = 0.001
"""Memory in GiB below which a shortfall or a part is not reported."""


def in_words(plan: TrainingPlan, device: Device, *, why: bool = False) -> str:
    """Summary of a plan on one screen: recommendation with its proof, ranked table, and why plan 1 is first.

    With `why` also the details and assumptions of the answer.
    """
    parts = first_in_words(plan, device), others_in_words(plan, device), last_in_words(plan, device, why=why)
    return "\n".join(line for part in parts for line in part)


def first_in_words(plan: TrainingPlan, device: Device) -> Iterator[str]:
    """Yield the lines of the recommendation and its proof."""
    proof = proof_in_words(plan.certificate, plan.question.rank, len(plan.chips or ()))
    yield from map(wrapped, [*recommendation(plan, device.hbm_gib), *proof])
    if plan.chips is not None:
        yield from chips_in_words(plan.chips)


def chips_in_words(chips: Sequence[ChipOutcome]) -> Iterator[str]:
    """Yield a table of chips by increasing bound, and a sentence on those that are not listed."""
    yield from table(chips_table(chips[:SHOWN_CHIPS]))
    if len(chips) > SHOWN_CHIPS:
        bounds_s = [inf if chip.bound_s is None else chip.bound_s for chip in chips[SHOWN_CHIPS:]]
        yield wrapped(f"{len(bounds_s):,} further chips take at least {min(bounds_s):.4g} s a step.")


def chips_table(chips: Sequence[ChipOutcome]) -> list[list[str]]:
    """Table header and one row per chip, with its area, step time, bound and outcome."""
    rows = [
        [
            chip.chip,
            "" if chip.area_mm2 is None else f"{chip.area_mm2:.4g} mm²",
            "" if chip.time_s is None else f"{chip.time_s:.4g} s",
            "" if chip.bound_s is None else f"{chip.bound_s:.4g} s",
            OUTCOMES[chip.outcome],
        ]
        for chip in chips
    ]
    return [["chip", "area", "step", "bound", "outcome"], *rows]


def others_in_words(plan: TrainingPlan, device: Device) -> Iterator[str]:
    """Yield the lines of the ranked table, and of comparisons with recipes and other plans."""
    yield from ranked_table(plan.alternatives, device)
    sentences = [
        *recipes_in_words(plan, device),
        *why_first(plan),
        *([PRUDENT] if plan.question.rank == "prudent" else []),
        *plan.rests_on,
        *([] if plan.fewest is None else [fewest_in_words(plan.fewest)]),
        *rows_in_words(plan.certificate, len(plan.alternatives)),
        *([] if plan.run is None else run_in_words(plan.run)),
    ]
    yield from map(wrapped, sentences)


def last_in_words(plan: TrainingPlan, device: Device, *, why: bool) -> Iterator[str]:
    """Yield the lines that need further searches, and with `why` the details and assumptions."""
    sentences = [
        plan.may_fit,
        plan.prudence,
        plan.other_batch,
        *(_planner_row(row, plan) for row in plan.planners),
        *plan.measure_first,
    ]
    sentences += [] if plan.explained is None else explained(plan.explained, plan)
    sentences += _details(plan, device.hbm_gib) if why else [ASK]
    yield from map(wrapped, filter(None, sentences))


def fewest_in_words(fewest: FewestNodes) -> str:
    """Sentence on the fewest nodes on which a model fits, and why fewer do not suffice."""
    sentence = f"Fewest: {fewest.nodes} node{'s' * (fewest.nodes != 1)} ({fewest.devices} devices)"
    if fewest.smaller is None:
        return f"{sentence}; fewer have less memory than the weights." if fewest.nodes > 1 else f"{sentence}."
    smaller = f"{fewest.smaller} node{'s' * (fewest.smaller != 1)}"
    if fewest.undecided:
        undecided = f"where {fewest.undecided:,} layouts are undecided"
        return f"{sentence}; no plan was found for {smaller}, {undecided}."
    if fewest.lacking_gib is None:
        return f"{sentence}; the runtime can run no layout on {smaller}."
    return f"{sentence}; on {smaller} every layout lacks {digits(fewest.lacking_gib)} GiB a device or more."


def recipes_in_words(plan: TrainingPlan, device: Device) -> Iterator[str]:
    """Yield a line for each published recipe, and evidence for a plan that is faster than all of them."""
    rank = plan.question.rank
    for recipe in plan.recipes:
        label = f"Recipe {recipe.source} {recipe.release} ({recipe.shape})"
        if recipe.plan is None or recipe.over_plan is None:
            yield f"{label}: {recipe.reason}"
            continue
        status = row_status(recipe.plan, device)
        if recipe.lacking_gib is None:
            status = status.partition(":")[0]
        unfit = "" if status == OK else f"; {status}"
        yield f"{label}: {rank} {recipe.plan.by(rank):.4g} s, {recipe.over_plan:.2f} × plan 1{unfit}"
    # Recipes that do not fit are no evidence that the plan is faster.
    over = [recipe.over_plan for recipe in plan.recipes if recipe.over_plan and recipe.lacking_gib is None]
    if over and min(over) * FASTER > 1:
        near = [
            f"{recipe.source} {recipe.label} ({signed(recipe.error)})" for recipe in plan.evidence[:NEAREST]
        ]
        yield (
            f"Faster than every recipe by prediction. Measured runs like it, with the errors of their "
            f"predictions: {', '.join(near) or 'none'}."
        )


def _details(plan: TrainingPlan, hbm_gib: float) -> Iterator[str]:
    """Yield time and memory by part, counts of layouts, effects of more resources, and assumptions."""
    parts = sorted(plan.times_s.items(), key=lambda part: -part[1])
    spent = ", ".join(f"{name} {s:.3g} s" for name, s in parts if s >= NEGLIGIBLE * plan.time_s)
    yield f"Time: {spent}."
    if len(plan.stages) > 1:
        yield f"Pipeline split, layers of the stages in order: {_runs_of_stages(plan.stages)}."
    yield from (f"Memory: {line}, of {hbm_gib:g} GiB." for line in _fullest(plan.memory))
    yield from counts_in_words(plan.certificate)
    yield from undecided_in_words(plan.certificate)
    yield from _what_if(plan)
    yield f"Assumes {'; '.join(plan.assumptions)}."


def _planner_row(row: PlannerRow, plan: TrainingPlan) -> str:
    """Sentence on a planner's plan from the literature: its claim, its price, and the time of plan 1."""
    if None in (row.time_s, row.planned_s, row.tokens_per_s_per_device, row.fullest_gib):
        return f"{row.planner}: {row.reason}"
    time_s, claimed_s = row.time_s or 0.0, row.planned_s or 0.0
    runs = "" if row.runs is None else f", best of {row.runs} runs (g, b')"
    shapes = [f"tp={stage.tp} dp={stage.dp}" for stage in row.stages]
    stages = ", ".join(f"{len([*same])} x {shape}" for shape, same in groupby(shapes))
    notes = [] if row.fits else ["does not fit"]
    notes += [] if row.reason is None else [row.reason]
    sentence = (
        f"{row.planner} claims {claimed_s:.4g} s, the optimum of its formula{runs}. Priced {time_s:.4g} s: "
        f"{signed(time_s / claimed_s - 1)} by what the formula leaves out, "
        f"{signed(time_s / plan.time_s - 1)} against plan 1 (certified, expected {plan.time_s:.4g} s); "
        f"{row.tokens_per_s_per_device:,.0f} tokens/s/device, {row.fullest_gib:.1f} GiB of tensors with "
        f"{stages} b={row.microbatch} {row.schedule}"
    )
    return "; ".join([sentence, *notes])


def sizes_in_words(plans: Sequence[TrainingPlan | UnfitPlan]) -> str:
    """Table over device counts; sentences on the best counts, on intervals and on plans that may not fit."""
    fitting = [plan for plan in plans if isinstance(plan, TrainingPlan)]
    sentences = [*best_runs(runs_by_devices(plans)), *intervals_in_words(fitting)]
    sentences += [f"{plan.question.devices:,} devices: {plan.may_fit}" for plan in fitting if plan.may_fit]
    return "\n".join([*table(sizes_table(plans)), *map(wrapped, sentences)])


def intervals_in_words(plans: Sequence[TrainingPlan]) -> Iterator[str]:
    """Yield a sentence on the 80 % interval of every device count, and why the widest one is wide."""
    ends = {
        plan.question.devices: (plan.time_s_low / plan.time_s - 1, plan.time_s_high / plan.time_s - 1)
        for plan in plans
        if plan.time_s_low is not None and plan.time_s_high is not None
    }
    if ends:
        ranges = (
            f"{devices:,} devices {signed(low)} to {signed(high)}" for devices, (low, high) in ends.items()
        )
        runs = _runs_of_interval(plans[0].question.calibrated)
        yield f"80 % interval of the step time, from {runs}: {', '.join(ranges)}."
    widest = max((low_high[1] - low_high[0] for low_high in ends.values()), default=0.0)
    for plan in plans:
        low, high = ends.get(plan.question.devices, (0.0, 0.0))
        if plan.uncalibrated is not None:
            yield f"{plan.question.devices:,} devices: {plan.uncalibrated}"
        elif high - low == widest >= WIDE and plan.evidence:
            yield f"{plan.question.devices:,} devices have the widest one: {_why_wide(plan.evidence)}."


def _why_wide(evidence: Sequence[NearRun]) -> str:
    """Clause on how the nearest measured run differs, and on the errors of the nearest predictions."""
    nearest, errors = evidence[0], [run.error for run in evidence]
    differs = ", ".join(nearest.differs) or "other size and utilisation"
    return (
        f"the nearest measured run is {nearest.source} {nearest.label} ({differs}), and predictions of the "
        f"nearest {len(errors)} are off by {signed(min(errors))} to {signed(max(errors))}"
    )


def sizes_table(plans: Sequence[TrainingPlan | UnfitPlan]) -> list[list[str]]:
    """Table header and one row per device count; a row without a plan gives the reason instead."""
    run = next(iter(runs_by_devices(plans).values()), None)
    head = [*SIZES[:-1], *(() if run is None else _run_cells(run)), SIZES[-1]]
    return [head, *map(_size_row, plans)]


def runs_by_devices(plans: Sequence[TrainingPlan | UnfitPlan]) -> dict[int, TrainingRun]:
    """Complete training runs by device count."""
    return {plan.question.devices: plan.run for plan in plans if isinstance(plan, TrainingPlan) and plan.run}


def _size_row(plan: TrainingPlan | UnfitPlan) -> list[str]:
    devices = f"{plan.question.devices:,}"
    if isinstance(plan, UnfitPlan):
        return [devices, plan.reason]
    run = () if plan.run is None else _run_cells(plan.run).values()
    exposed, gap = percent(plan.exposed_communication_share), percent(plan.certificate.gap, 2)
    figures = [f"{plan.time_s:.4g} s", percent(plan.mfu), f"{plan.used_gib:.1f}"]
    figures += [percent(plan.bubble_share), exposed, gap]
    layout, device = shape(plan.layout, plan.recomputed_layers), plan.question.stored_machine().device
    fit = row_status(plan, device).partition(":")[0]
    layout += f" {fit}" * (fit != OK)
    if plan.chips is not None:
        layout += f" on {device.name}"
    return [devices, *figures, *run, layout]


def _run_cells(run: TrainingRun) -> dict[str, str]:
    """Table cells of a complete training run, by column."""
    cells = {"days": f"{run.days:.4g}"}
    if run.goodput is not None:
        cells["goodput"] = percent(run.goodput.share)
    if run.cost is not None:
        cells["cost"] = f"{run.cost:,.0f}"
    return cells


def best_runs(runs: Mapping[int, TrainingRun]) -> Iterator[str]:
    """Yield a sentence on each device count that is the cheapest, fastest, or closest to the target."""
    for devices, run in runs.items():
        if run.is_the == ("closest",):
            target = f"None ends within {run.asked.days:g} days"
            yield f"{target}; {devices:,} devices come closest: {_length(run)}"
        elif run.is_the:
            within = "" if run.asked.days is None else f" within {run.asked.days:g} days"
            yield f"The {' and the '.join(run.is_the)}{within}: {devices:,} devices, {_length(run)}"


def _money(cost: float, run: TrainingRun) -> str:
    """Total price with its currency, if the user named one."""
    return f"{cost:,.0f}{f' {run.asked.currency}' if run.asked.currency else ''}"


def _length(run: TrainingRun) -> str:
    """Days, device-hours and cost of a complete training run, as text."""
    paid = "" if run.cost is None else f", {_money(run.cost, run)} at {run.asked.price:g} each"
    ends = (run.days_low, run.days_high)
    others = [] if None in ends else [" to ".join(f"{end:.4g}" for end in ends)]
    others += [] if run.days_prudent is None else [f"{run.days_prudent:.4g} at the prudent one"]
    within = f" ({'; '.join(others)})" if others else ""
    days = f"{run.days:.4g} days at the expected step time{within}"
    return f"{days}, {run.device_hours:,.0f} device-hours{paid}"


def _tokens(count: float) -> str:
    """Format a number of tokens as the option takes it, for example 15T or 1.5B."""
    scale, letter = next((unit for unit in TOKENS if count >= unit[0]), (1.0, ""))
    return f"{count / scale:.4g}{letter}"


def run_in_words(run: TrainingRun) -> Iterator[str]:
    """Yield sentences on the days, cost and goodput of a complete training run."""
    target = "" if run.in_time is None else f"; {'' if run.in_time else 'not '}within {run.asked.days:g} days"
    yield f"{_tokens(run.asked.tokens)} tokens take {_length(run)}{target}"
    if run.goodput is not None:
        failure_h, interval_min = run.goodput.failure_s / 3600, run.goodput.interval_s / 60
        yield (
            f"goodput {percent(run.goodput.share)}: a failure every {failure_h:.3g} h, a checkpoint after "
            f"every {interval_min:.3g} min of training, the interval of Young (1974) and Daly (2006) for "
            f"{run.asked.checkpoint_s:g} s a checkpoint and {run.asked.restart_s:g} s a restart"
        )


def unfit_in_words(plan: UnfitPlan) -> str:
    """Reason why there is no plan, and the memory that the closest layout needs."""
    sentences = [plan.reason]
    if plan.layout is not None:
        sentences += [f"closest, with equal stages: {shape(plan.layout, None)}", *_fullest(plan.memory)]
    return "\n".join(map(wrapped, [*sentences, *counts_in_words(plan.certificate)]))


def better_line(time_s: float, layout: str, seconds: float, rank: Rank, which: str) -> str:
    """Progress line for the first, a better or the best plan of a search, with the time used for ranking."""
    then = {"first": "; looking for better ones", "best": "; looking for the next best ones"}.get(which, "")
    return f"{which} plan after {seconds:.1f} s: {rank} {time_s:.4g} s a step with {layout}{then}"


def gap_line(gap: float, seconds: float) -> str:
    """Progress line for the first proof of a search: how far the best plan may be from the fastest one."""
    return f"within {percent(gap)} of optimal after {seconds:.1f} s"


def cluster_in_words(request: AskedPlan) -> str:
    """Cluster of a planning request: its system, or chips of an architecture on the system's network."""
    if request.runtime == "chip":
        return f"{request.stored_machine().device.name} on the network of {request.system}"
    return request.system


def recommendation(plan: TrainingPlan, hbm_gib: float) -> Iterator[str]:
    """Yield the planning request, and the recommended layout with its predicted step time."""
    request = plan.question
    lora = f", adapters of rank {request.model.lora} alone trained" if request.model.lora else ""
    load = f", expert load {request.load}" if request.model.experts and request.load else ""
    yield (
        f"{request.model.name}{lora} on {request.devices:,} {cluster_in_words(request)}: "
        f"{request.global_batch:,} samples of {request.sequence:,} tokens, {request.runtime}, "
        f"{request.precision}{load}"
    )
    if plan.uncalibrated is not None:
        yield plan.uncalibrated
    layout = ", ".join(fields_in_words(plan.layout, plan.recomputed_layers))
    yield (
        f"Train with {layout}; {split_in_words(plan.stages)}. {predicted(plan, request.calibrated)}; "
        f"{percent(plan.mfu)} MFU, {used(plan)} of {hbm_gib:g}, bound by {plan.bound_by}."
    )
    if plan.above_measured is not None:
        yield plan.above_measured


def split_in_words(stages: Sequence[StageShare]) -> str:
    """Pipeline split as text: number of stages and layers per stage."""
    layers = [stage.layers for stage in stages]
    if len(stages) == 1:
        return f"{layers[0]} layers on one stage"
    layer_range = f"{min(layers)}" if min(layers) == max(layers) else f"{min(layers)} to {max(layers)}"
    return f"{len(stages)} stages of {layer_range} layers"


def _runs_of_stages(stages: Sequence[StageShare]) -> str:
    """Format the layers per stage, with runs of identical stages combined."""
    alike = [(layers, len([*same])) for layers, same in groupby(stage.layers for stage in stages)]
    return ", ".join(f"{times} x {layers}" if times > 1 else f"{layers}" for layers, times in alike)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns; the last cell of a row may be several lines."""
    widths = [max(len(row[i]) for row in rows if len(row) > i + 1) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        indent = sum(len(cell) + 2 for cell in cells)
        yield wrapped("  ".join([*cells, row[-1]]), PIPED, indent).rstrip()


def evidence_in_words(plan: TrainingPlan) -> Iterator[str]:
    """Yield a table of the measured runs most similar to a plan, one line each."""
    if not plan.evidence:
        yield "no measured run is similar to this plan"
        return
    yield "measured runs most like it, with how far their predictions are off, and what differs:"
    rows = [
        [run.source, run.label, f"{run.distance:.2f}", signed(run.error), ", ".join(run.differs) or "–"]
        for run in plan.evidence
    ]
    yield from table([["source", "row", "distance", "error", "what differs"], *rows])


def predicted(plan: RankedPlan, fit: Calibration | None) -> str:
    """Format the predicted step time, with its interval if there is one; `fit` is that of its system."""
    optimistic = isinstance(plan, TrainingPlan) and (plan.uncalibrated or "").startswith(OPTIMISTIC)
    time = f"{'At least' if optimistic else 'Predicted'} {plan.time_s:.4g} s a step"
    if plan.time_s_low is None or plan.time_s_high is None:
        return time
    interval = f"{plan.time_s_low:.4g} to {plan.time_s_high:.4g} s"
    return f"{time}; 80 % interval {interval}, from {_runs_of_interval(fit)}"


def _runs_of_interval(fit: Calibration | None) -> str:
    """Measured runs whose errors give the intervals: published ones, or those of a calibrated system."""
    return "similar measured runs" if fit is None else f"your own runs ({fit.rows} of {fit.runs})"


def why_first(plan: TrainingPlan) -> Iterator[str]:
    """Yield a sentence on how much longer the second-best plan takes, and in which parts of a step."""
    if len(plan.alternatives) < 2:
        return
    other = plan.alternatives[1]
    rank = plan.question.rank
    share = other.by(rank) / plan.by(rank) - 1
    if abs(share) < TIE:
        ahead = "; the simpler one is ahead" * (share < 0)
        yield f"Next best: plan 2 ({plan_differences(plan, other)}) takes as long{ahead}."
    elif share < 0:  # plans are in the order of their worst regret
        changes = plan_differences(plan, other)
        less = percent(-share, 2)
        yield f"Plan 2 ({changes}) takes {less} less {rank} time, but may lose more than plan 1."
    else:
        longer, parts = percent(share, 2), _parts(plan.next_longer_s)
        name = "Plan 2" if plan.question.robust else "Next best: plan 2"
        yield f"{name} ({plan_differences(plan, other)}) takes {longer} longer: {parts}."


def plan_differences(plan: RankedPlan, other: RankedPlan) -> str:
    """List the fields in which another plan differs."""
    labels = [differences(plan.layout, other.layout)]
    if plan.recomputed_layers != other.recomputed_layers:
        labels.append(f"recomputed blocks {other.recomputed_layers}")
    return ", ".join(labels)


def _parts(longer_s: Mapping[str, float]) -> str:
    """List the parts of a step that are longer or shorter, largest difference first."""
    labels = [f"{name} {part_s:+.3g} s" for name, part_s in list(longer_s.items())[:PARTS]]
    if len(longer_s) > PARTS:
        labels.append(f"other parts {sum(list(longer_s.values())[PARTS:]):+.3g} s")
    return ", ".join(labels) or "no part by as much as a thousandth of the step"


def proof_in_words(proof: PlanCertificate, rank: Rank, chips: int = 0) -> Iterator[str]:
    """Yield a sentence on the proven lower bound, with the reason if the search ended early.

    It holds for all chips if the search chose among several.
    """
    where = f" on any of the {chips:,} chips" if chips else ""
    layout = f"layout{where}"
    if proof.bound_s is not None:
        gap, checked = percent(proof.gap, 2), f"({proof.legal:,} checked, proven)"
        model = f"in this cost model {checked}"
        if not proof.bound_s:
            sentence = f"Nothing is proven of the other {proof.legal - 1:,} layouts{where}."
        elif gap == percent(0.0, 2):
            sentence = f"No other {layout} beats {proof.bound_s:.5g} s of {rank} time {model}."
        else:
            sentence = (
                f"Any other {layout} is at most {gap} faster {model}: none beats {proof.bound_s:.5g} s of "
                f"{rank} time."
            )
        early = "" if proof.stopped is None else f" The search ended early: {proof.stopped}. {remedy(proof)}"
        yield f"{sentence}{early}".rstrip()
    if proof.schedule_gap is not None:
        low = "are proven shortest"
        if proof.schedule_gap:
            low = f"are at most {percent(proof.schedule_gap, 2)} longer than their lower bounds"
        yield f"The schedules that give the time of layers {low}."


def remedy(proof: PlanCertificate) -> str:
    """Sentence on what an early end means for the reader, and how to narrow the gap; empty after Ctrl-C."""
    if INTERRUPTED in (proof.stopped or ""):
        return ""
    faster = f"layouts up to {percent(proof.gap, 2)} faster are" if proof.bound_s else "no other layout is"
    meaning = f"The plan is valid, but {faster}{' not' if proof.bound_s else ''} excluded."
    if TIME_LIMIT in (proof.stopped or ""):
        return f"{meaning} More --seconds may exclude some."
    return f"{meaning} More time would not help: fix a field, such as --fix pp=4, to search fewer layouts."


def rows_in_words(proof: PlanCertificate, rows: int) -> Iterator[str]:
    """Yield a sentence on the rows of a table that are not proven, if any."""
    if proof.rows is None or proof.rows >= rows:
        return
    if not proof.rows:
        yield "The order of the rows is not proven."
        return
    proven = "Row 1 is proven" if proof.rows == 1 else f"Rows 1–{proof.rows} are proven in order"
    first = proof.rows + 1
    unproven = f"row {first}" if first == rows else f"rows {first}–{rows}"
    yield f"{proven}; {unproven} may not be next."


def counts_in_words(proof: PlanCertificate) -> Iterator[str]:
    """Yield a sentence on the number of layouts by outcome."""
    illegal = sum(proof.illegal.values())
    rules = ", ".join(f"{name} {count:,}" for name, count in proof.illegal.items())
    is_known = proof.lacking_gib is not None and proof.lacking_gib >= LEAST_SHOWN_GIB
    lacking = f" (by {digits(proof.lacking_gib or 0.0)} GiB or more)" if is_known else ""
    yield (
        f"Of {proof.layouts:,} layouts {illegal:,} are invalid for the runtime"
        f"{f' ({rules})' if rules else ''}, {proof.same:,} are duplicates, "
        f"{proof.unfit:,} do not fit{lacking}, {sum(proof.bounded.values()):,} are excluded by bounds, "
        f"{proof.simulated:,} were simulated with {proof.divisions:,} pipeline splits."
    )


def undecided_in_words(proof: PlanCertificate) -> Iterator[str]:
    """Yield a sentence on the undecided layouts that may beat the plan, with their largest gains."""
    if not proof.undecided:
        return
    usual = {"zero": 0, "recompute": "none", "cp_kind": "all_gather", "sequence_parallel": 0}
    labels = [
        " ".join(f"{name}={value}" for name, value in undecided.fields.items() if value != usual.get(name, 1))
        + f" by at most {percent(undecided.gain)}"
        for undecided in proof.undecided
    ]
    yield f"Undecided, {proof.undecided_layouts:,} layouts that may be faster: {'; '.join(labels)}."


def _what_if(plan: TrainingPlan) -> Iterator[str]:
    if plan.what_if:
        own_s = plan.by(plan.question.rank)
        changes = [
            f"{change.change} {percent(1 - change.time_s / own_s)}{' (re-planned)' * change.replanned}"
            for change in plan.what_if
        ]
        yield f"{plan.question.rank.capitalize()} time saved by more of one thing: {', '.join(changes)}."


def explained(explanation: Explained, plan: TrainingPlan) -> Iterator[str]:
    """Yield the cost of fixing some layout fields, or the reason why that is impossible."""
    fixed = " ".join(f"{name}={value}" for name, value in explanation.fixed.items())
    if explanation.best is not None:
        rank = plan.question.rank
        share = explanation.best.by(rank) / plan.by(rank) - 1
        expected = "" if rank == "expected" else f", expected {explanation.best.time_s:.4g} s,"
        layout = shape(explanation.best.layout, explanation.best.recomputed_layers)
        time = f"{rank} {explanation.best.by(rank):.4g} s ({signed(share)}){expected}"
        yield f"{fixed}: {time} with {layout}: {_parts(explanation.longer_s)}"
        if share < -TIE and plan.certificate.stopped:
            yield f"{fixed}: faster than plan 1, whose search ended early: plan with --fix of these fields"
        elif TIME_LIMIT in (plan.certificate.stopped or ""):
            yield f"{fixed}: a faster plan with these fields may exist, as the time was over"
    elif explanation.closest is not None:
        lacking = digits(explanation.lacking_gib or 0.0)
        yield f"{fixed}: does not fit, the rank with peak memory lacks {lacking} GiB"
        yield f"closest, with equal stages: {shape(explanation.closest, None)}"
        yield from _fullest(explanation.memory)
    else:
        yield f"{fixed}: {explanation.reason}"


def used(plan: RankedPlan) -> str:
    """Format the peak memory of a device: expected, with its range if the file has one."""
    in_use = plan.in_use_gib
    if in_use is None:
        return f"{plan.fullest_gib:.1f} GiB"
    return f"{in_use.expected:.1f} GiB ({in_use.low:.1f} to {in_use.high:.1f})"


def _fullest(memory: Sequence[RankMemory]) -> Iterator[str]:
    """Yield the memory of the rank with peak memory, by part."""
    rank, most = max(enumerate(memory), key=lambda item: item[1].peak_gib)
    total_gib = most.peak_gib if most.in_use_gib is None else most.in_use_gib.expected
    yield (
        f"rank {rank} of {len(memory)}: {total_gib:.4g} GiB in use, of which weights and "
        f"gradients {most.weights_gib:.4g}, optimizer {most.optimizer_gib:.4g}, activations "
        f"{most.activations_gib:.4g} ({most.work_gib:.4g} of them for the microbatch at work)"
        + "".join(f", {name} {gib:.2g}" for name, gib in most.parts_gib.items() if gib >= LEAST_SHOWN_GIB)
    )
