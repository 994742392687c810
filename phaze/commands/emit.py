"""Write a plan as flags or configuration of a runtime, read a run from flags, compare a run with a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phaze.base.errors import PhazeError
from phaze.base.units import percent
from phaze.commands import options
from phaze.commands.fields import layout_fields
from phaze.commands.output import refuse_outputs, tell_unread, telling, write_or_print
from phaze.spec.names import WrittenRuntime

if TYPE_CHECKING:
    from phaze.layout import Load
    from phaze.plan.answer.comparison import Comparison
    from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
    from phaze.plan.plan import Machine
    from phaze.runtimes.flags import Emitted
    from phaze.runtimes.megatron_software import Software
    from phaze.runtimes.recipe import Recipe
    from phaze.runtimes.run_file import RunFile
    from phaze.spec.training_plan import AskedPlan, RankedPlan, TrainingPlan
    from phaze.validate.rows import RunRow


LayoutOption = Annotated[
    str | None,
    typer.Option(
        help="What the training script sets, for DeepSpeed, whose JSON does not: such as "
        "sequence=4096,tp=4,pp=2,recompute=full."
    ),
]


@dataclass(frozen=True, kw_only=True)
class EmitOptions:
    """Options of `phaze emit`: the plan, the runtime that will train, and the file to write."""

    planned: Annotated[Path, typer.Argument(metavar="PLAN|STAGES", callback=options.readable)]
    """Plan written by `phaze plan -o PLAN.json`; for torch the stages of `phaze partition -o`."""
    runtime: Annotated[options.EmitOption, typer.Option("--for")]
    """Runtime that will train."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File to write. Default: standard output. Further files go into the same folder."""
    planner: Literal["phaze", "piper"] | None = None
    """Write the stages of this planner's plan, from a plan with --planners, for torchtitan."""
    map_file: Annotated[Path | None, typer.Option("--map", callback=options.readable)] = None
    """Mapping of the stages, written by `phaze map -o`; for torch."""


@options.takes(EmitOptions)
def emit(request: EmitOptions) -> None:
    """Write a plan as flags or configuration of a runtime, or stages as a program.

    Standard error lists what the runtime will do differently, and what must be set elsewhere. For torch the
    output is a program that trains the module of `phaze profile` in these stages; start it with torchrun.
    """
    planned, runtime, out = request.planned, request.runtime, request.out
    refuse_outputs(out, reads=(planned, request.map_file))
    if runtime == "torch" or request.map_file is not None:
        if request.planner is not None:
            raise PhazeError("emit: --planner applies to plans, not to stages for torch")
        _emit_program(planned, runtime, request.map_file, out)
        return
    from phaze.spec.documents import read_as
    from phaze.spec.training_plan import TrainingPlan

    plan = read_as(TrainingPlan, planned)  # before slow imports
    from phaze.plan.answer.replay import ReplayedPlan
    from phaze.runtimes.recipe import Recipe

    refuse_unwritten(plan, f"{planned}: --for {runtime}")
    if request.planner is not None:
        _emit_planner(plan, planned, request.planner, runtime, out)
        return
    with telling("emit"):
        replayed = ReplayedPlan.of(plan, str(planned))
    if not replayed.same:
        typer.echo(f"emit: {planned}: {replayed.figures}", err=True)
    output = emitted(Recipe.of(plan), runtime, plan.question)
    # The first file goes to --out or standard output, further files next to it under their own names.
    written = list[str]()
    for number, (name, text) in enumerate(output.files.items()):
        path = out if out is None or not number else out.with_name(name)
        if number and out is not None:
            refuse_outputs(path, reads=(planned, out))
        write_or_print(text, path)
        written += [str(path)] * (path is not None)
    if written:
        question = plan.question
        typer.echo(
            f"{', '.join(written)}: {question.model.name} on {question.devices:,} devices for {runtime}"
        )
    for sentence in output.notes:
        typer.echo(sentence, err=True)


def _emit_planner(plan: TrainingPlan, planned: Path, planner: str, runtime: str, out: Path | None) -> None:
    """Write a planner's stages for torchtitan, with one message on parts that no runtime can run."""
    from phaze.runtimes.torchtitan_split import emit_split

    where = f"{planned}: --planner {planner}"
    row = next((row for row in plan.planners if row.planner == planner), None)
    if row is None:
        raise PhazeError(f"{where}: the plan has no such planner", "write it with phaze plan --planners -o")
    if runtime != "torchtitan":
        raise PhazeError(
            f"{where}: must be --for torchtitan, which alone lists modules by stage, got {runtime}"
        )
    try:
        output = emit_split(row, plan.question)
    except PhazeError as error:
        raise error.under(str(planned)) from error
    write_or_print("".join(output.files.values()), out)
    if output.differences:
        typer.echo(f"emit: {where}: {'; '.join(output.differences)}", err=True)


def _emit_program(stages: Path, runtime: str, map_file: Path | None, out: Path | None) -> None:
    """Write the program of mapped stages; PhazeError unless both stages and mapping are given for torch."""
    if runtime != "torch" or map_file is None:
        raise PhazeError(
            "emit: --for torch needs --map, and --map goes with --for torch only",
            "map the stages: phaze map STAGES.json --topology FILE -o MAP.json",
        )
    from phaze.runtimes.torch_pipeline import pipeline_program
    from phaze.spec.documents import read_as
    from phaze.spec.mapping import StoredMapping
    from phaze.spec.stages import StoredStages

    read, mapping = read_as(StoredStages, stages), read_as(StoredMapping, map_file)
    write_or_print(pipeline_program(read, mapping, stages, map_file), out)
    if out is not None:
        number, replicas = len(read.stages), read.replicas
        start = f"torchrun --nproc-per-node {number * replicas} {out} --steps 20 --check"
        typer.echo(
            f"{out}: {number} stages × {replicas} replica{'s' * (replicas > 1)}; start it with {start}"
        )


def refuse_unwritten(plan: TrainingPlan, where: str) -> None:
    """Raise PhazeError if phaze cannot write settings of the plan's runtime: MaxText, or none on a chip."""
    from phaze.runtimes.maxtext import axes_of

    if plan.question.runtime == "chip":
        raise PhazeError(
            f"{where}: is a plan for an architecture, on which no runtime trains",
            "plan without --architecture",
        )
    if plan.question.runtime == "maxtext":
        axes = axes_of(plan.layout)
        raise PhazeError(f"{where}: plans for maxtext cannot be written; its configuration needs {axes}")


def emitted(recipe: Recipe, runtime: str, question: AskedPlan) -> Emitted:
    """Flags or configuration files that make a runtime follow a recipe."""
    from phaze.plan.answer.answer import question_of
    from phaze.plan.machines import device_of
    from phaze.runtimes.bridge import emit_bridge
    from phaze.runtimes.deepspeed_config import emit_deepspeed
    from phaze.runtimes.megatron_flags import emit_megatron
    from phaze.runtimes.torchtitan_config import emit_torchtitan

    lowered_question = question_of(question)
    # The overlap that the layout's hardware queues allow, not all that the stack is capable of.
    stack = lowered_question.lowering(recipe.layout).layers(recipe.layout).stack
    if runtime in ("megatron", "bridge"):
        emit = emit_megatron if runtime == "megatron" else emit_bridge
        return emit(recipe, stack, blackwell=device_of(lowered_question.machine).is_blackwell)
    try:
        return {"torchtitan": emit_torchtitan, "deepspeed": emit_deepspeed}[runtime](recipe, stack)
    except PhazeError as error:
        if error.fix or runtime == question.runtime:
            raise
        fix = f"plan with --runtime {runtime}; this plan is for {question.runtime}"
        raise PhazeError(error.wrong, fix) from error


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of `phaze read`: the run's flags or configuration, its runtime and its cluster."""

    flags: Annotated[Path, typer.Argument(metavar="FLAGS", callback=options.readable)]
    """Flags, script, YAML or log of Megatron-LM; configuration or job file of torchtitan; DeepSpeed's JSON.
    """
    runtime: Annotated[WrittenRuntime, typer.Option("--for")]
    """Runtime of the run."""
    gpus: options.GpusOption = None
    system: options.LevelsOption = None
    devices: Annotated[int | None, typer.Option(min=1)] = None
    """Number of devices. Default: the number in torchrun's arguments."""
    nodes: options.NodesOption = None
    model: Annotated[str | None, typer.Option("--model", "-m")] = None
    """Model, for torchtitan and DeepSpeed, whose files do not name it."""
    layout: LayoutOption = None
    stack: Annotated[str | None, typer.Option(callback=options.known_stack)] = None
    """Software stack: a name in config/stacks, or a path. Default: the system's."""
    vocab: Annotated[int | None, typer.Option(min=1, max=2**31)] = None
    """Vocabulary size, if Megatron-LM's flags have no --vocab-size."""
    as_json: options.JsonOption = False
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """CSV for the run as one row, for `phaze compare`. Its model is written next to it."""


@options.takes(ReadOptions)
def read(request: ReadOptions) -> None:
    """Predict the step time and memory of a run from its flags or configuration.

    Prints the step time, the memory of every rank, and the bottleneck.
    """
    run = predicted_run(request)
    for sentence in run.remarks:
        typer.echo(f"read: {sentence}", err=True)
    typer.echo(run.to_json() if request.as_json else run.in_words())


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictedRun:
    """A run that was read from its flags, with its predicted step time and memory."""

    run: RunFile
    software: Software
    """What the flags overlap and fuse."""
    priced: PricedLayout
    interval: MeasuredInterval
    row: RankedPlan
    system: str
    stack: str
    machine: Machine

    @property
    def remarks(self) -> list[str]:
        """Sentences on flags that are not priced."""
        return [*self.run.remarks(self.software)]

    def as_row(self) -> dict[str, object]:
        """Predicted step time and memory, the layout, and the flags that are not priced."""
        unread = {"unmodelled": self.software.unmodelled, "not_priced": self.run.unread}
        return self.row.model_dump(mode="json") | unread

    def to_json(self) -> str:
        """The same as JSON, as `phaze read --json` prints it."""
        return json.dumps(self.as_row(), indent=1)

    def in_words(self) -> str:
        """Step time, memory of every rank, and the bottleneck."""
        from phaze.plan.answer.assumptions import uncalibrated
        from phaze.plan.answer.ranked_table import shape
        from phaze.plan.answer.words import predicted, used
        from phaze.plan.machines import device_of
        from phaze.plan.terms.memory import OK

        recipe, row = self.run.recipe, self.row
        gpus = recipe.layout.devices
        fit = None if self.machine.system is None else self.machine.system.calibrated
        unfit = "" if self.priced.status == OK else f"; {self.priced.status}"
        return (
            f"{recipe.model.name} on {gpus:,} device{'s' * (gpus != 1)} of {self.system}, "
            f"{recipe.global_batch:,} samples of {recipe.sequence:,} tokens: "
            f"{shape(row.layout, row.recomputed_layers)}\n"
            f"{predicted(row, fit)}, with stack {self.stack}; "
            f"{row.tokens_per_s_per_device:,.0f} tokens/s/device, "
            f"MFU {percent(row.mfu)}, bound by {row.bound_by}\n"
            + ("" if self.interval.ends_s else f"{uncalibrated(self.machine, self.interval)}\n")
            + f"GiB of tensors by pipeline rank: {', '.join(f'{gib:.3g}' for gib in row.memory_gib)}; in use "
            f"{used(row)} of {device_of(self.machine).hbm_gib:g}{unfit}\n"
            f"{self.software.in_words(recipe)}"
        )


def predicted_run(request: ReadOptions) -> PredictedRun:
    """Read a run from its flags and predict it; writes the run's row if the request names a file."""
    devices = None if request.devices is None else str(request.devices)
    system, count = options.cluster("read", request.gpus, request.system, devices, request.nodes)
    _refuse_table(request.out, reads=(request.flags, system, request.model, request.stack))
    from phaze.runtimes.registry import RUNTIMES
    from phaze.spec.systems import load_cluster, load_stack_of, runtime_for, stack_for

    with telling("read"):
        runtime, cluster = runtime_for(system, requested=request.runtime), load_cluster(system)[0]
        stack = request.stack or stack_for(cluster, runtime)
        routed = load_stack_of(cluster, name=stack).load.expected
    run = _read_run(request, system, options.one_number("read", count), routed)
    from phaze.plan.answer.priced import PricedLayout
    from phaze.plan.machines import load_machine
    from phaze.plan.question import PlanQuestion
    from phaze.validate.intervals import interval

    recipe = run.recipe
    with telling("read"):
        machine = load_machine(system, stack=stack, devices=recipe.layout.devices)
        software = run.software(machine.stack)
        # The run's flags decide what its software overlaps and fuses, not the defaults of the stack.
        machine = replace(machine, stack=software.stack)
        question = PlanQuestion(recipe.task, machine, RUNTIMES[runtime], flash=software.flash)
        priced = PricedLayout.of_recipe(question, recipe)
        measured = interval(priced)
        row = priced.row(measured)
    if request.out is not None:
        from phaze.validate.rows import write_run

        write_run(recipe, system, stack, software, request.out)
    return PredictedRun(
        run=run, software=software, priced=priced, interval=measured, row=row, system=system, stack=stack,
        machine=machine,
    )  # fmt: skip


def _refuse_table(out: Path | None, reads: tuple[Path | str | None, ...]) -> None:
    """Raise PhazeError if the run's file, or its model's file next to it, cannot be written."""
    if out is None:
        return
    from phaze.validate.rows import model_file

    if out.suffix != ".csv":
        raise PhazeError(
            f"read: -o {out}: must end in .csv: `phaze compare` tells rows from flags by the suffix"
        )
    refuse_outputs(out, model_file(out), reads=reads)


def _read_run(request: ReadOptions, system: str, devices: int | None, routed: Load) -> RunFile:
    """Read the run from a file of flags or a configuration; `routed` is its expert load if it names none."""
    from phaze.runtimes.run_file import RunFile
    from phaze.spec.models import load_transformer
    from phaze.spec.systems import load_cluster

    file, model = request.flags, request.model
    if request.runtime == "megatron":
        if model is not None:
            raise PhazeError(
                "read: --model is for torchtitan and deepspeed; Megatron-LM's flags define the model"
            )
        _script_options("read", request.layout, request.runtime)
        with telling("read"):
            blackwell = load_cluster(system)[1].is_blackwell
        return RunFile.of_megatron(file, devices, request.vocab, blackwell=blackwell, routed=routed)
    if request.vocab is not None:
        raise PhazeError(
            f"read: --vocab is for Megatron-LM; for {request.runtime} the vocabulary is that of --model"
        )
    if model is None or devices is None:
        raise PhazeError(
            f"read: {request.runtime} configurations do not name the model or the number of devices",
            "pass both, such as --model llama-3.1-70b --gpus 256xH100",
        )
    script = _script_options("read", request.layout, request.runtime)
    trained = load_transformer(model, "read")
    if request.runtime == "torchtitan":
        return RunFile.of_torchtitan(file, trained, devices, routed)
    return RunFile.of_deepspeed(file, trained, devices, script, routed)


def _script_options(verb: str, layout: str | None, runtime: str) -> dict[str, int | str]:
    """Settings of the training script from --layout; PhazeError if the runtime has them in its files."""
    if layout is not None and runtime != "deepspeed":
        raise PhazeError(f"{verb}: --layout is for deepspeed; files of {runtime} have the layout")
    from phaze.runtimes.deepspeed_config import OPTIONS

    return layout_fields(f"{verb}: --layout", layout, OPTIONS)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `phaze compare`: the run, the plan, and which run of a file it is."""

    run: Annotated[Path, typer.Argument(metavar="RUN", callback=options.readable)]
    """CSV of runs, as for simulate --runs, or a file of flags or settings of the plan's runtime."""
    planned: options.PlanArgument
    row: int | None = None
    """Number of the run's row in the CSV, from 1; needed if there are several."""
    layout: LayoutOption = None
    as_json: options.JsonOption = False


@options.takes(CompareOptions)
def compare(request: CompareOptions) -> None:
    """Show how much faster a run would be with a plan.

    Run and plan have the same model, batch and devices. Changes are made one at a time, the most valuable
    first.
    """
    from phaze.spec.documents import read_as
    from phaze.spec.training_plan import TrainingPlan

    comparison = compared(request.run, read_as(TrainingPlan, request.planned), request.row, request.layout)
    with telling("compare"):
        text = json.dumps(comparison.as_row(), indent=1) if request.as_json else comparison.in_words()
    typer.echo(text)


def compared(run: Path, plan: TrainingPlan, row: int | None = None, layout: str | None = None) -> Comparison:
    """Comparison of a run with a plan; PhazeError if their models, batches or devices differ."""
    if row is not None and run.suffix != ".csv":
        raise PhazeError(f"compare: --row selects a row of a CSV; {run} is not a CSV")
    with telling("compare"):
        is_row = run.suffix == ".csv"
        comparison = _compare_row(run, row, plan) if is_row else _compare_flags(run, plan, layout)
        comparison.check(str(run))
        for sentence in comparison.remarks:
            typer.echo(f"compare: {sentence}", err=True)
    return comparison


def _compare_flags(file: Path, plan: TrainingPlan, layout: str | None) -> Comparison:
    """Compare the plan with a run that is described by flags or a configuration.

    The plan has what files of torchtitan and DeepSpeed lack, the model and the sequence.
    """
    from phaze.plan.answer.comparison import Comparison
    from phaze.runtimes.megatron_flags import NAMES
    from phaze.runtimes.run_file import RunFile

    question, machine = plan.question, plan.question.stored_machine()
    if question.runtime == "maxtext":
        raise PhazeError("compare: cannot read flags of maxtext", "give the run as a row of a CSV")
    refuse_unwritten(plan, "compare")
    script, routed = _script_options("compare", layout, question.runtime), machine.stack.load.expected
    if question.runtime == "torchtitan":
        run = RunFile.of_torchtitan(file, question.model, question.devices, routed)
    elif question.runtime == "deepspeed":
        script = {"sequence": question.sequence, **script}
        run = RunFile.of_deepspeed(file, question.model, question.devices, script, routed)
    else:
        blackwell = machine.device.is_blackwell
        run = RunFile.of_megatron(
            file, question.devices, question.model.vocabulary, blackwell=blackwell, routed=routed
        )
    software = run.software(machine.stack)
    for sentence in run.remarks(software):
        typer.echo(f"compare: {sentence}", err=True)
    # Only Megatron-LM's changes are named by its flags; others by fields of the layout.
    names = NAMES if question.runtime == "megatron" else {}
    return Comparison(run.recipe, plan, software.stack, flash=software.flash, names=names)


def _compare_row(file: Path, row: int | None, plan: TrainingPlan) -> Comparison:
    """Compare the plan with the run in a table row; unspecified fields use the fastest choice that fits."""
    from phaze.plan.answer.comparison import Comparison, recipe_of_run
    from phaze.plan.machines import planned_machine
    from phaze.spec.systems import load_stack_of
    from phaze.validate.table import settled_row

    question = plan.question
    run_row = _row(file, row)
    if run_row.system not in ("", question.system):
        raise PhazeError(f"{file}: system must be {question.system}, as in the plan, got {run_row.system}")
    machine = planned_machine(question)
    if run_row.stack:
        machine = replace(machine, stack=load_stack_of(question.stored_machine().cluster, name=run_row.stack))
    runs = run_row.runs
    if len(runs) > 1:
        # Fields that the row omits have several candidates; the fastest that fits stands for the run.
        runs = settled_row(run_row, machine).runs
    if not runs:
        raise PhazeError(f"{file}: {run_row.problem or 'no microbatch or number of chunks fits'}")
    chosen = runs[0]
    recipe = recipe_of_run(chosen, question.model)
    return Comparison(recipe, plan, chosen.stack_of(machine), flash=chosen.flash_on(machine))


def _row(file: Path, row: int | None) -> RunRow:
    """Row selected by --row; PhazeError if it does not exist, or if --row is needed but missing."""
    from phaze.validate.rows import COLUMNS, read_texts

    texts = read_texts(file)
    tell_unread(file, texts.columns, COLUMNS)
    rows = texts.rows
    # A file with one row needs no --row.
    if not 1 <= (row or len(rows)) <= len(rows) or (row is None and len(rows) > 1):
        raise PhazeError(f"{file}: --row: must be a number from 1 to {len(rows)}, got {row or 'none'}")
    return rows[(row or 1) - 1]
