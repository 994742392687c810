"""Plan the training of a model on a cluster: the fastest layout of a runtime, with a proof."""

from __future__ import annotations

import json
from functools import partial
from math import gcd, prod
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from phaze.base.errors import PhazeError
from phaze.base.extras import needs
from phaze.base.printed import PIPED, wrapped
from phaze.base.progress import counted
from phaze.commands import options
from phaze.commands.fields import layout_fields, set_fields
from phaze.commands.options import RuntimeOption
from phaze.commands.output import INTERRUPTED, ended_at_once, refuse_outputs, telling
from phaze.commands.plan_options import PANELS, PlanOptions
from phaze.commands.plan_phases import PlanPhases
from phaze.commands.terminal import tell
from phaze.spec.names import PRECISION, RANK
from phaze.spec.questions import FAILURE_DEFAULTS, RunFields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from phaze.report.near_best import Settings
    from phaze.spec.architecture import Architecture
    from phaze.spec.training_plan import (
        AskedPlan,
        AskedRun,
        FewestNodes,
        StoredMachine,
        TrainingPlan,
        UnfitPlan,
    )

NOTHING_FITS = 3
"""Exit status if there is no plan."""
BATCH_TOKENS, DEVICE_TOKENS = 2**22, 2**10
MOST_DEVICES = 2**24


@options.takes(PlanOptions, PANELS)
def plan(request: PlanOptions) -> None:
    """Plan the training of a model on a cluster.

    The answer has the fastest layouts that the runtime can run, with a proven lower bound. If nothing fits,
    or nothing ends within --days, the closest plan is printed and the exit status is 3.
    """
    answer_request(request)


def answer_request(request: PlanOptions) -> None:
    """Plan, print the answers and write the files; exit status 3 if there is no plan."""
    with ended_at_once():
        phases = prepared(request)
        answers = answers_of(phases)
        if request.as_json:
            typer.echo(json_of(answers), nl=False)
        else:
            typer.echo(_in_words(phases, answers))
        failures = () if request.mtbf_hours is None else (request.checkpoint_s, request.restart_s)
        if not request.as_json and None in (request.sequence, request.global_batch, *failures):
            questions = [phase.question for phase in phases]
            typer.echo(wrapped(_defaults(questions, request), PIPED))
        if all(answer.format == "phaze-no-plan" for answer in answers):
            for out in filter(None, (request.page, request.out, request.write_input)):
                typer.echo(f"plan: {out} was not written: there is no plan", err=True)
        elif request.page is not None:
            _write_page(answers, request.page, request.runtime)
    if any(phase.interrupted for phase in phases):
        raise typer.Exit(INTERRUPTED)
    plans = [answer for answer in answers if answer.format == "phaze-plan"]
    if all(plan.run is not None and plan.run.in_time is False for plan in plans):
        raise typer.Exit(NOTHING_FITS)


def prepared(request: PlanOptions, *, tells: bool = True) -> list[PlanPhases]:
    """Planning requests of the options, one per number of devices, checked and ready to be answered.

    With `tells` a message names a system that is assumed to grow. Raises PhazeError for invalid options.
    """
    named, number = options.cluster("plan", request.gpus, request.system, request.devices, request.nodes)
    options.refuse_unless_positive("plan", seconds=request.seconds)
    outs = (request.out, request.page, request.write_layers, request.write_input)
    refuse_outputs(*outs, reads=(request.model, named, request.stack, request.layers))
    if request.page is not None and request.page.suffix.lower() not in (".html", ".htm"):
        raise PhazeError(f"plan: --page {request.page}: must end in .html")
    if request.page is not None:
        needs("altair", "pandas")
    run = _training_run(request)
    unlike = _fixable("--explain", request.explain)
    questions = questions_of(request, named, number, tells=tells)
    # A file has one plan, and the fewest nodes are one number.
    for option, is_used in (("-o", request.out is not None), ("--fewest", request.fewest)):
        if is_used and len(questions) > 1:
            raise PhazeError(f"plan: {option} accepts one number of devices; --devices has several")
    request.check(request.out, len(questions))
    least = _fewest(questions[0]) if request.fewest else None
    if least is not None:
        questions = [questions[0].model_copy(update={"devices": least.devices})]
    labels = [
        f"plan: {question.devices:,} devices" if len(questions) > 1 else "plan" for question in questions
    ]
    return [
        PlanPhases(question, request, run, unlike, least, label)
        for question, label in zip(questions, labels, strict=True)
    ]


def _training_run(request: RunFields) -> AskedRun | None:
    """Training run to plan for, from the options; None without --tokens."""
    flags = options.flags(RunFields)
    fields = {name: getattr(request, name) for name in flags}
    options.refuse_unless_positive("plan", **{flags[name][2:]: value for name, value in fields.items()})
    passed = [flags[name] for name, value in fields.items() if value is not None]
    if request.tokens is None:
        if passed:
            raise PhazeError(
                f"plan: {passed[0]} needs --tokens, the tokens of the whole training run",
                "pass --tokens, such as --tokens 15T",
            )
        return None
    without_failures = [option for option in ("--checkpoint", "--restart") if option in passed]
    if without_failures and request.mtbf_hours is None:
        raise PhazeError(
            f"plan: {without_failures[0]} needs --mtbf, the device-hours between failures",
            "pass --mtbf, such as --mtbf 50000",
        )
    from phaze.spec.training_plan import AskedRun

    if request.mtbf_hours is not None:
        defaults = {f"{option}_s": seconds for option, (seconds, _) in FAILURE_DEFAULTS.items()}
        fields = {name: defaults.get(name) if value is None else value for name, value in fields.items()}
    currency = getattr(request.price, "currency", "") or None
    return AskedRun.parse({**fields, "currency": currency}, "plan")


def _samples(sequence: int, devices: int) -> int:
    """Default batch in samples, with about as many tokens as Llama 3's: 4 Mi, and 16 Mi on 16,384 devices.

    Source: Dubey et al. 2024, Section 3.4.1 and Table 4.
    """
    from phaze.spec.training_plan import nearest_batch

    return nearest_batch(max(BATCH_TOKENS, DEVICE_TOKENS * devices) / sequence, devices)


def _defaults(questions: Sequence[AskedPlan], request: PlanOptions) -> str:
    """Line that lists the defaults used, written as options; all questions have one batch."""
    question, devices = questions[0], max(question.devices for question in questions)
    defaults = [] if request.sequence is not None else [f"--sequence {question.sequence}"]
    if request.global_batch is None:
        tokens, tokens_asked = question.global_batch * question.sequence, request.batch_tokens
        size = f"{tokens / 2**20:.3g} Mi tokens"
        size = size if tokens_asked is None else f"{tokens:,} of {tokens_asked:,} tokens"
        # An odd number of samples is the nearest one that the devices can share.
        if tokens_asked is not None or tokens % 2**20:
            size += f", which up to {gcd(question.global_batch, devices):,} replicas share equally"
        defaults.append(f"--global-batch {question.global_batch} ({size})")
    if question.precision == PRECISION:
        defaults.append(f"--precision {question.precision}")
    for option, (seconds, reason) in FAILURE_DEFAULTS.items() if request.mtbf_hours is not None else ():
        if getattr(request, f"{option}_s") is None:
            defaults.append(f"--{option} {seconds:g} ({reason})")
    return f"Defaults used: {', '.join(defaults)}"


def _fixable(option: str, text: str | None) -> dict[str, int | str]:
    """Parse layout fields such as tp=8,pp=16; PhazeError for an unknown field."""
    from phaze.runtimes.grid import FIXABLE

    return layout_fields(f"plan: {option}", text, FIXABLE)


def _numbers(devices: str) -> list[int]:
    parts = [part.strip() for part in devices.split(",")]
    numbers = all(part.isdecimal() and 0 < int(part) <= MOST_DEVICES for part in parts)
    if not numbers or len({*map(int, parts)}) < len(parts):
        raise PhazeError(
            f"plan: --devices: must be distinct whole numbers from 1 to {MOST_DEVICES}, got {devices}",
            "such as --devices 64,128 or --gpus 64,128xH100",
        )
    return [int(part) for part in parts]


def questions_of(
    request: PlanOptions,
    system: str,
    devices: str | None,
    on_chips: tuple[StoredMachine, tuple[Architecture, ...] | None] | None = None,
    *,
    tells: bool = False,
) -> list[AskedPlan]:
    """One planning request per number of devices; PhazeError for invalid options, before slow work.

    `on_chips` is a machine with chips, and those to choose from; default: those of --architecture. With
    `tells` a message names a system that is assumed to grow.
    """
    fixed = _fixable("--fix", request.fix)
    # Imported after the checks, so that misspelt options fail fast.
    from phaze.spec.models import load_transformer
    from phaze.spec.systems import load_cluster, runtime_for, sized, stack_for
    from phaze.spec.training_plan import AskedPlan

    spec = load_transformer(request.model, "plan", user_fields=set_fields(request.set_values))
    if request.load is not None and spec.experts is None:
        raise PhazeError(f"plan: --load: {spec.name} has no experts")
    if request.lora is not None:
        fields = spec.model_dump(exclude_none=True) | {"lora": request.lora}
        spec = type(spec).parse(fields, f"plan: --lora: {request.model}")
    if on_chips is None and request.architecture is not None:
        on_chips = _chips(request.architecture, system)
    machine, chips = on_chips or (None, None)
    cluster = load_cluster(system)[0] if machine is None else machine.cluster
    if chips is not None:
        _refuse_on_several(request, len(chips))
    for option, value in (("--runtime", request.runtime), ("--stack", request.stack)):
        if machine is not None and value is not None:
            raise PhazeError(
                f"plan: {option} {value}: an architecture has no runtime and no other stack than chip",
                f"leave out {option}, or --architecture {request.architecture}",
            )
    # Megatron-Bridge trains with Megatron-Core, so its layouts are those of Megatron.
    requested = "megatron" if request.runtime == "bridge" else request.runtime
    trained = runtime_for(system, requested=requested) if machine is None else "chip"
    stack = request.stack or stack_for(cluster, trained)
    tokens = spec.usual_sequence if request.sequence is None else request.sequence
    spec.check_sequence(tokens, "plan")
    numbers = [cluster.devices] if devices is None else _numbers(devices)
    for number in numbers:
        sized(cluster, number, f"plan: --devices: {system}")
    if tells and (most := max(numbers)) > cluster.devices:
        tell(
            f"plan: {system} has {cluster.devices:,} devices; for {most:,} its outermost level is assumed to "
            "grow, with the same bandwidth per device. If the network differs, change `devices` of its levels"
        )
    # All numbers of devices train with the same batch, so that their answers compare.
    batch = options.batch_samples("plan", request.global_batch, request.batch_tokens, tokens, max(numbers))
    shared = {
        "model": spec, "system": system, "stack": stack, "sequence": tokens, "runtime": trained,
        "precision": request.precision, "load": request.load,
        "rank": RANK if request.rank == "robust" else request.rank, "robust": request.rank == "robust",
        "machine": machine, "chips": chips, "fixed": dict(fixed),
        "global_batch": batch or _samples(tokens, max(numbers)),
    }  # fmt: skip
    for number in numbers:
        _check_widths(fixed, number)
    return [AskedPlan.parse({**shared, "devices": number}, "plan") for number in numbers]


def _chips(architecture: str, system: str) -> tuple[StoredMachine, tuple[Architecture, ...] | None]:
    """Machine of a system with chips instead of its devices, and the chips to choose from; None for one."""
    # Imported for architectures only: other plans start faster without it.
    from phaze.plan.chips import load_chips

    return load_chips(architecture, system)


def _refuse_on_several(request: PlanOptions, chips: int) -> None:
    """Raise PhazeError for options that plan on a single chip."""
    used = {
        "--planners": request.planners,
        "--fewest": request.fewest,
        "--rank robust": request.rank == "robust",
    }
    for option in (name for name, is_used in used.items() if is_used):
        raise PhazeError(
            f"plan: {option}: plans on one chip, and --architecture {request.architecture} has {chips}",
            f"leave out {option}, or pass one architecture",
        )


def _check_widths(fixed: Mapping[str, int | str], devices: int) -> None:
    """Raise PhazeError if the product of the fixed widths does not divide the number of devices."""
    from phaze.layout import DEVICE_AXES

    widths = {name: int(fixed[name]) for name in DEVICE_AXES if isinstance(fixed.get(name), int)}
    product = prod(widths.values())
    # A width of 0 cannot divide, and has a message of its own when the planner checks the fields.
    if all(0 < width <= MOST_DEVICES for width in widths.values()) and devices % product:
        shape = ",".join(f"{name}={width}" for name, width in widths.items())
        factors = f"{' x '.join(map(str, widths.values()))} = {product}" if len(widths) > 1 else f"{product}"
        raise PhazeError(f"plan: --fix: {shape}: {factors} must divide the number of devices, {devices}")


def answers_of(phases: list[PlanPhases]) -> list[TrainingPlan | UnfitPlan]:
    """Answers to all planning requests; with a training run, the best answer is marked.

    After an interruption there are no answers to later requests.
    """
    answers = []
    several = counted(phases, "size", lambda: f"{phase.question.devices:,} devices")
    with telling("plan"):
        for phase in several if len(phases) > 1 else phases:
            answers.append(phase.answer())
            if phase.interrupted:
                break
    if phases[0].run is None or len(answers) == 1:
        return answers
    from phaze.plan.answer.training_run import ranked_runs

    return ranked_runs(answers)


def _fewest(question: AskedPlan) -> FewestNodes:
    """Smallest number of nodes on which the model fits."""
    from phaze.plan.answer.answer import fewest

    with telling("plan"):
        return fewest(question)


def _in_words(phases: Sequence[PlanPhases], answers: Sequence[TrainingPlan | UnfitPlan]) -> str:
    """The answer as text; a table for several numbers of devices."""
    from phaze.plan.answer.words import sizes_in_words

    return sizes_in_words(answers) if len(phases) > 1 else phases[0].in_words(answers[0])


def json_of(answers: Sequence[TrainingPlan | UnfitPlan]) -> str:
    """The answer as JSON: a plan file, or a list with one object per number of devices."""
    from phaze.spec.documents import text_of

    if len(answers) == 1:
        return text_of(answers[0])
    rows = [answer.model_dump(mode="json", exclude_none=True) for answer in answers]
    return json.dumps(rows, indent=1) + "\n"


def _write_page(answers: list[TrainingPlan | UnfitPlan], page: Path, runtime: RuntimeOption | None) -> None:
    """Write the HTML page of the answers."""
    from phaze.base.files import write_text
    from phaze.report.plan_page import plan_page

    settings = partial(settings_for, runtime=runtime)
    with telling("plan"):
        text = plan_page(answers, settings).page
    write_text(page, text)


def settings_for(plan: TrainingPlan, runtime: RuntimeOption | None) -> Settings:
    """Configuration files for the runtime that will train, or the reason why they cannot be written."""
    from phaze.commands.emit import emitted, refuse_unwritten
    from phaze.runtimes.recipe import Recipe

    try:
        refuse_unwritten(plan, "settings")
        output = emitted(Recipe.of(plan), runtime or plan.question.runtime, plan.question)
    except PhazeError as error:
        return {}, [str(error)]
    return output.files, output.notes
