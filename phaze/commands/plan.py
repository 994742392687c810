"""Plan the training of a model on a cluster: the fastest layout of a runtime, with a proof."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import gcd, prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion, options
from phaze.commands.options import RuntimeOption
from phaze.commands.output import INTERRUPTED, ended_at_once, refuse_outputs, telling
from phaze.commands.plan_phases import PlanPhases
from phaze.spec.names import GAP, PRECISION, RANK, Rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phaze.report.plan_page import Settings
    from phaze.spec.training_plan import AskedPlan, AskedRun, FewestNodes, TrainingPlan, UnfitPlan

NOTHING_FITS = 3
"""Exit status if there is no plan."""
BATCH_TOKENS, DEVICE_TOKENS = 2**22, 2**10
MOST_DEVICES = 2**24


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """Options for the size of the training job: batch, devices and sequence."""

    global_batch: Annotated[
        int | None,
        typer.Option(
            help="Samples in a global batch. Default: 4 Mi tokens, or 1,024 tokens per device if that "
            "is more.",
            parser=options.count,
            metavar="N",
        ),
    ] = None
    batch_tokens: options.BatchTokensOption = None
    devices: Annotated[
        str | None,
        typer.Option(help="Number of devices, or several separated by commas. Default: the system's."),
    ] = None
    sequence: options.SequenceOption = None


@dataclass(frozen=True, kw_only=True)
class LayoutSearchOptions:
    """Options for precision and runtime, and for the layouts to search."""

    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            "--compute",
            help="Precision of GEMMs with the blocks' weights: bf16, fp8, fp8-cs, fp8-block, mxfp8 or nvfp4.",
            parser=options.compute,
            metavar="NAME",
        ),
    ] = PRECISION
    load: Annotated[
        str | None,
        typer.Option(
            help="Tokens dispatched to the experts of the busiest rank: balanced, a factor over "
            "balanced, power_law_x or max_vio_x. Default: the software stack's.",
            parser=options.load,
            metavar="LOAD",
        ),
    ] = None
    lora: Annotated[
        int | None,
        typer.Option(help="Train only LoRA adapters of this rank. Default: train all weights.", min=1),
    ] = None
    top: Annotated[int, typer.Option(help="Number of rows of the ranked table.", min=1, max=1000)] = 5
    rank: Annotated[
        Rank,
        typer.Option(help="Time that ranks layouts: prudent (credits only measured overlap) or expected."),
    ] = RANK
    runtime: Annotated[
        RuntimeOption | None,
        typer.Option(help="Runtime that will train. Default: megatron, or maxtext on TPUs."),
    ] = None
    fix: Annotated[str | None, typer.Option(help="Fix fields of the layout, such as tp=8,pp=16.")] = None
    explain: Annotated[
        str | None,
        typer.Option(
            help="Explain other values of fields, such as tp=4: the time that they lose, or why no such "
            "plan fits."
        ),
    ] = None
    gap: Annotated[
        float,
        typer.Option(
            help="Stop when the plan is proven within this share of the fastest step; 0 proves optimality.",
            min=0,
            max=0.5,
        ),
    ] = GAP
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Time limit of the search: answer with the best plan so far and its gap, as after Ctrl-C. "
            "Default: until the gap is closed.",
            metavar="N",
        ),
    ] = None
    stack: Annotated[
        str | None,
        typer.Option(
            help="Software stack: a name in config/stacks, or a path. Default: the system's for this "
            "runtime.",
            callback=options.known_stack,
            autocompletion=completion.stacks,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for the whole training run: tokens, price, deadline and failures."""

    tokens: Annotated[
        float | None,
        typer.Option(
            help="Tokens of the whole training run, such as 15T; adds its duration.",
            parser=options.amount,
            metavar="N",
        ),
    ] = None
    price: Annotated[
        float | None, typer.Option(help="Price of a device-hour; adds the cost. Needs --tokens.")
    ] = None
    days: Annotated[
        float | None,
        typer.Option(
            help="Deadline in days; finds the cheapest number of devices that meets it. Needs --tokens."
        ),
    ] = None
    mtbf: Annotated[
        float | None,
        typer.Option(
            help="Device-hours between failures; adds the goodput. Needs --checkpoint and --restart."
        ),
    ] = None
    checkpoint: Annotated[float | None, typer.Option(help="Seconds to write a checkpoint.")] = None
    restart: Annotated[
        float | None, typer.Option(help="Seconds from a failure until training continues.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options for the parts of the answer and the output files."""

    planners: Annotated[
        bool,
        typer.Option(
            "--planners",
            help="Add the plans of Phaze's and Piper's planners. Takes minutes for 1,000 devices.",
        ),
    ] = False
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Add the measured runs that are most similar to the plan.")
    ] = False
    fewest: Annotated[
        bool, typer.Option("--fewest", help="Plan on the fewest whole nodes on which the model fits.")
    ] = False
    why: Annotated[
        bool,
        typer.Option("--why", help="Add time and memory by part, the exclusions and the assumptions."),
    ] = False
    given: options.SetOption = None
    as_json: options.JsonOption = False
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the plan (JSON).")] = None
    page: Annotated[
        Path | None, typer.Option(help="Page of the answer (.html): layouts, charts and flags, in one file.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SizeOptions, LayoutSearchOptions, RunOptions, AnswerOptions):
    """Options of `phaze plan`: model, cluster, search and output."""

    model: options.ModelArgument
    gpus: options.GpusOption = None
    system: options.LevelsOption = None


@options.takes(PlanOptions)
def plan(asked: PlanOptions) -> None:
    """Plan the training of a model on a cluster.

    The answer has the fastest layouts that the runtime can run, with a proven lower bound. If nothing fits,
    or nothing ends within --days, the closest plan is printed and the exit status is 3.
    """
    named, number = options.cluster("plan", asked.gpus, asked.system, asked.devices)
    refuse_outputs(asked.out, asked.page, reads=(asked.model, named, asked.stack))
    if asked.page is not None and asked.page.suffix.lower() not in (".html", ".htm"):
        raise PhazeError(f"plan: --page {asked.page}: must end in .html")
    options.refuse_unless_positive("plan", seconds=asked.seconds)
    run = _run(asked)
    unlike = _fixable("--explain", asked.explain)
    questions = _questions(asked, named, number)
    for option, given in (("-o", asked.out is not None), ("--fewest", asked.fewest)):
        if given and len(questions) > 1:
            raise PhazeError(f"plan: {option} accepts one number of devices; --devices has several")
    alone = len(questions) == 1 and not asked.as_json
    with ended_at_once():
        least = _fewest(questions[0]) if asked.fewest else None
        if least is not None:
            questions = [questions[0].model_copy(update={"devices": least.devices})]
        phases = [PlanPhases(one, asked, run, unlike, least, prints=alone) for one in questions]
        found = _answers(phases)
        if not alone:
            _print(found, as_json=asked.as_json)
        if not asked.as_json and None in (asked.sequence, asked.global_batch):
            typer.echo(_defaults(questions[0], asked))
        _write_page(found, asked.page, asked.runtime)
    if asked.out is not None and found[0].format == "phaze-no-plan":
        typer.echo(f"plan: {asked.out} was not written: there is no plan", err=True)
    if any(one.interrupted for one in phases):
        raise typer.Exit(INTERRUPTED)
    if not any(
        one.format == "phaze-plan" and (one.run is None or one.run.in_time is not False) for one in found
    ):
        raise typer.Exit(NOTHING_FITS)


def _run(asked: RunOptions) -> AskedRun | None:
    """Training run to plan for, from the options; None without --tokens."""
    names = ("price", "days", "mtbf", "checkpoint", "restart")
    rest = {name: getattr(asked, name) for name in names}
    options.refuse_unless_positive("plan", tokens=asked.tokens, **rest)
    given = [f"--{name}" for name, value in rest.items() if value is not None]
    if asked.tokens is None:
        if given:
            raise PhazeError(f"plan: {given[0]} needs --tokens, the tokens of the whole training run")
        return None
    failures = ("--mtbf", "--checkpoint", "--restart")
    lacking = [name for name in failures if name not in given]
    if lacking and len(lacking) < len(failures):
        raise PhazeError(f"plan: {', '.join(failures)} must be given together; {lacking[0]} is missing")
    from phaze.spec.training_plan import AskedRun

    units = {"mtbf": "mtbf_hours", "checkpoint": "checkpoint_s", "restart": "restart_s"}
    named = {units.get(name, name): value for name, value in rest.items()}
    return AskedRun.parse({"tokens": asked.tokens, **named}, "plan")


def _samples(sequence: int, devices: int) -> int:
    """Default batch in samples, with about as many tokens as Llama 3's: 4 Mi, and 16 Mi on 16,384 devices.

    Source: Dubey et al. 2024, Section 3.4.1 and Table 4.
    """
    from phaze.spec.training_plan import nearest_batch

    return nearest_batch(max(BATCH_TOKENS, DEVICE_TOKENS * devices) / sequence, devices)


def _defaults(question: AskedPlan, asked: PlanOptions) -> str:
    """Line that lists the defaults used, written as options."""
    said = [] if asked.sequence is not None else [f"--sequence {question.sequence}"]
    if asked.global_batch is None:
        tokens, given = question.global_batch * question.sequence, asked.batch_tokens
        of = f"{tokens / 2**20:.3g} Mi tokens"
        if given is not None:
            replicas = gcd(question.global_batch, question.devices)
            of = f"{tokens:,} of {given:,} tokens, which up to {replicas:,} replicas share equally"
        said.append(f"--global-batch {question.global_batch} ({of})")
    return f"Defaults used: {', '.join([*said, f'--precision {question.precision}'])}"


def _fixable(option: str, text: str | None) -> dict[str, int | str]:
    """Parse layout fields such as tp=8,pp=16; PhazeError for an unknown field."""
    from phaze.runtimes.grid import FIXABLE

    return options.layout_fields(f"plan: {option}", text, FIXABLE)


def _numbers(devices: str) -> list[int]:
    parts = [part.strip() for part in devices.split(",")]
    numbers = all(part.isdecimal() and 0 < int(part) <= MOST_DEVICES for part in parts)
    if not numbers or len({*parts}) < len(parts):
        raise PhazeError(
            f"plan: --devices: must be distinct whole numbers from 1 to {MOST_DEVICES}, got {devices}"
        )
    return [int(part) for part in parts]


def _questions(asked: PlanOptions, system: str, devices: str | None) -> list[AskedPlan]:
    """One planning request per number of devices; PhazeError for invalid options, before slow work."""
    fixed = _fixable("--fix", asked.fix)
    from phaze.spec.models import (
        load_transformer,
    )  # imported after the checks, so that misspelt options fail fast
    from phaze.spec.systems import load_cluster, runtime_for, sized, stack_for
    from phaze.spec.training_plan import AskedPlan

    spec = load_transformer(asked.model, "plan", user_fields=options.set_fields(asked.given))
    if asked.load is not None and spec.experts is None:
        raise PhazeError(f"plan: --load: {spec.name} has no experts")
    if asked.lora is not None:
        spec = type(spec).parse(
            {**spec.model_dump(exclude_none=True), "lora": asked.lora}, f"plan: --lora: {asked.model}"
        )
    cluster = load_cluster(system)[0]
    trained = runtime_for(system, requested="megatron" if asked.runtime == "bridge" else asked.runtime)
    stack = asked.stack or stack_for(cluster, trained)
    tokens = spec.usual_sequence if asked.sequence is None else asked.sequence
    spec.check_sequence(tokens, "plan")
    numbers = [cluster.devices] if devices is None else _numbers(devices)
    for number in numbers:
        sized(cluster, number, f"plan: --devices: {system}")
    batch = options.batch_samples("plan", asked.global_batch, asked.batch_tokens, tokens, max(numbers))
    shared = {
        "model": spec, "system": system, "stack": stack, "sequence": tokens, "runtime": trained,
        "precision": asked.precision, "load": asked.load, "rank": asked.rank,
        "fixed": dict(fixed), "global_batch": batch or _samples(tokens, max(numbers)),
    }  # fmt: skip
    for number in numbers:
        _check_widths(fixed, number)
    return [AskedPlan.parse({**shared, "devices": number}, "plan") for number in numbers]


def _check_widths(fixed: Mapping[str, int | str], devices: int) -> None:
    """Raise PhazeError if the product of the fixed widths does not divide the number of devices."""
    from phaze.layout import DEVICE_AXES

    widths = {name: int(fixed[name]) for name in DEVICE_AXES if isinstance(fixed.get(name), int)}
    product = prod(widths.values())
    if all(0 < width <= MOST_DEVICES for width in widths.values()) and devices % product:
        said = ",".join(f"{name}={width}" for name, width in widths.items())
        of = f"{' x '.join(map(str, widths.values()))} = {product}" if len(widths) > 1 else f"{product}"
        raise PhazeError(f"plan: --fix: {said}: {of} must divide the number of devices, {devices}")


def _answers(phases: list[PlanPhases]) -> list[TrainingPlan | UnfitPlan]:
    """Answers to all planning requests; with a training run, the best answer is marked.

    After an interruption there are no answers to later requests.
    """
    found = []
    for one in phases:
        found.append(one.answer())
        if one.interrupted:
            break
    if phases[0].run is None or len(found) == 1:
        return found
    from phaze.plan.layouts.training_run import ranked_runs

    return ranked_runs(found)


def _fewest(asked: AskedPlan) -> FewestNodes:
    """Smallest number of nodes on which the model fits."""
    from phaze.plan.layouts.answer import fewest

    with telling("plan"):
        return fewest(asked)


def _print(found: list[TrainingPlan | UnfitPlan], *, as_json: bool) -> None:
    from phaze.plan.layouts.words import sizes_in_words
    from phaze.spec.documents import text_of

    if as_json and len(found) == 1:
        typer.echo(text_of(found[0]), nl=False)
    elif as_json:
        typer.echo(json.dumps([one.model_dump(mode="json", exclude_none=True) for one in found], indent=1))
    else:
        typer.echo(sizes_in_words(found))


def _write_page(
    found: list[TrainingPlan | UnfitPlan], page: Path | None, runtime: RuntimeOption | None
) -> None:
    """Write the HTML page of the answers, unless there is no plan."""
    if page is None:
        return
    if all(one.format == "phaze-no-plan" for one in found):
        typer.echo(f"plan: {page} was not written: there is no plan", err=True)
        return
    from phaze.base.files import write_text
    from phaze.report.plan_page import plan_page

    with telling("plan"):
        text = plan_page(found, lambda plan: settings_for(plan, runtime)).page
    write_text(page, text)


def settings_for(plan: TrainingPlan, runtime: RuntimeOption | None) -> Settings:
    """Configuration files for the runtime that will train, or the reason why they cannot be written."""
    from phaze.commands.emit import emitted
    from phaze.runtimes.maxtext import axes_of
    from phaze.runtimes.recipe import Recipe

    told = runtime or plan.question.runtime
    if told == "maxtext":
        return {}, [f"phaze does not write MaxText configurations. This plan needs {axes_of(plan.layout)}."]
    try:
        found = emitted(Recipe.of(plan), told, plan.question)
    except PhazeError as error:
        return {}, [str(error)]
    return found.files, found.notes
