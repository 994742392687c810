"""Python API of phaze: the questions of the command line as functions, with results for notebooks.

Every function takes the options of its command by name (`--global-batch` is `global_batch`), with the same
defaults, checks and messages (`PhazeError`), and shows its progress on standard error. Values may be written
as on the command line, such as `tokens="15T"`. Ctrl-C ends a search with its best plan so far.

>>> import phaze
>>> answer = phaze.plan("llama-3.1-8b", gpus="64xH100")  # doctest: +SKIP
>>> answer.table()  # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, get_args, get_type_hints

from phaze.base.errors import PhazeError
from phaze.base.extras import needs
from phaze.spec.names import PRECISION, ChipObjective, Rank, TrainingRuntime, WrittenRuntime

if TYPE_CHECKING:
    import pandas as pd

    from phaze.commands.chip import ChosenChip
    from phaze.commands.emit import PredictedRun
    from phaze.commands.plan_options import PlanOptions
    from phaze.plan.answer.comparison import Comparison
    from phaze.spec.chip_choice import ChipChoice
    from phaze.spec.training_plan import TrainingPlan, UnfitPlan

__all__ = [
    "ChipAnswer", "ComparedRun", "PhazeError", "PlanAnswer", "ReadRun", "Validation", "chip", "compare",
    "place", "plan", "read", "schema", "simulate", "validate",
]  # fmt: skip
Number = float | str
"""Number, or its text with a suffix, such as 4M or 15T."""
Counts = int | str | Sequence[int]
"""Whole number, several, or their text, such as 64,128."""
File = Path | str


class ClusterFields(TypedDict, total=False):
    """Cluster in place of `gpus`: a system, with its number of devices or nodes."""

    system: str
    devices: Counts
    nodes: Counts


class PlaceFields(ClusterFields, total=False):
    """Options of `place` for models, as those of `phaze place -h`; absent ones have its defaults."""

    global_batch: int | str
    batch_tokens: int | str
    sequence: int | str
    precision: str
    load: str
    lora: int
    set_values: str
    architecture: str | Sequence[str]
    fix: str
    explain: str
    gap: float
    seconds: float
    top: int
    rank: Rank | Literal["robust"]
    fewest: bool
    tokens: Number
    price: Number
    days: float
    mtbf_hours: float
    checkpoint_s: float
    restart_s: float
    measure_first: bool
    why: bool


class PlanFields(PlaceFields, total=False):
    """Options of `plan`, as those of `phaze plan -h`; absent ones have the command's defaults."""

    runtime: TrainingRuntime | Literal["bridge"]
    stack: str


class ReadFields(ClusterFields, total=False):
    """Options of `read`, as those of `phaze read -h`."""

    model: str
    layout: str
    stack: str
    vocab: int


class ChipFields(TypedDict, total=False):
    """Options of `chip`, as those of `phaze chip -h`."""

    devices: int
    network: str | Sequence[str]
    system: str
    area_limit: str
    technology: str
    hbm: str | Sequence[float]
    sweep: Sequence[str]
    explain: Sequence[str]
    sequence: int | str
    global_batch: int | str
    fix: str
    rank: Rank
    objective: ChipObjective
    price_mm2: Number
    price_gib: Number
    robust: bool
    gap: float
    seconds: float


class _Shown:
    """Base of results: rows as a table, as HTML in notebooks, and as JSON like that of the command."""

    def _rows(self) -> list[dict[str, object]]:
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the answer as JSON, as the command prints it with `--json`."""
        raise NotImplementedError

    def table(self) -> pd.DataFrame:
        """Return the rows of the answer as a DataFrame; needs the extra `studies`."""
        needs("pandas")
        import pandas as pd

        return pd.DataFrame(self._rows())

    def _repr_html_(self) -> str:
        rows = self._rows()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_cell(row.get(name)))}</td>' for name in columns)}</tr>"
            for row in rows
        )
        summary = escape(str(self))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><pre>{summary}</pre>"


def _cell(value: object) -> str:
    """Text of a cell; numbers have four digits."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, eq=False)
class PlanAnswer(_Shown):
    """Answer of `plan`: the ranked layouts with a proof, for one or several numbers of devices."""

    answers: tuple[TrainingPlan | UnfitPlan, ...]
    """A plan, or the reason why there is none, for each number of devices."""
    interrupted: bool = False
    """True if Ctrl-C ended the search."""
    runtime: TrainingRuntime | Literal["bridge"] | None = None
    """Runtime that was asked for; None: that of the plan."""

    @property
    def best(self) -> TrainingPlan:
        """The plan; of several numbers of devices the cheapest, else the fastest. PhazeError without one."""
        plans = [answer for answer in self.answers if answer.format == "phaze-plan"]
        if not plans:
            raise PhazeError("plan: there is no plan", "print the answer for the reason")
        for mark in ("cheapest", "closest"):
            for candidate in plans:
                if candidate.run is not None and mark in candidate.run.is_the:
                    return candidate
        return min(plans, key=lambda candidate: candidate.time_s)

    def _rows(self) -> list[dict[str, object]]:
        alone = len(self.answers) == 1
        plans = [answer for answer in self.answers if answer.format == "phaze-plan"]
        ranked = [(p, row) for p in plans for row in ((p.alternatives or (p,)) if alone else (p,))]
        rows = []
        for answer, row in ranked:
            fields = {
                "devices": answer.question.devices, "time_s": row.time_s, "time_s_low": row.time_s_low,
                "time_s_high": row.time_s_high, "prudent_s": row.prudent_s, "mfu": row.mfu,
                "tokens_per_s_per_device": row.tokens_per_s_per_device, "memory_gib": max(row.memory_gib),
                "bubble_share": row.bubble_share,
                "exposed_communication_share": row.exposed_communication_share, "bound_by": row.bound_by,
                **row.layout.model_dump(mode="json"),
            }  # fmt: skip
            if answer.run is not None and row.layout == answer.layout:
                fields |= {"days": answer.run.days, "cost": answer.run.cost, "in_time": answer.run.in_time}
            rows.append(fields)
        return rows

    def flags(self, runtime: WrittenRuntime | Literal["bridge"] | None = None) -> str:
        """Return flags or configuration of a runtime for the best plan, by default of the plan's runtime."""
        from phaze.commands.emit import emitted, refuse_unwritten
        from phaze.runtimes.recipe import Recipe

        chosen = self.best
        target = runtime or self.runtime or chosen.question.runtime
        refuse_unwritten(chosen, f"plan: --for {target}")
        known = ("bridge", *get_args(WrittenRuntime))
        if target not in known:
            raise PhazeError(f"flags: must be one of {', '.join(known)}, got {target}")
        files = emitted(Recipe.of(chosen), target, chosen.question).files
        if len(files) > 1:
            raise PhazeError(
                f"flags: the configuration of {target} has several files: {', '.join(files)}",
                f"write to_json() to PLAN.json, and run phaze emit PLAN.json --for {target} -o FILE",
            )
        return "".join(files.values())

    def page(self, out: File | None = None) -> str:
        """Return the page of the answer as HTML, and write it to a file if one is named."""
        needs("altair", "pandas")
        from phaze.base.files import write_text
        from phaze.commands.plan import settings_for
        from phaze.report.plan_page import plan_page

        text = plan_page(list(self.answers), lambda plan: settings_for(plan, self.runtime)).page
        if out is not None:
            write_text(Path(out), text)
        return text

    def to_json(self) -> str:
        """Return the answer as JSON, as the command prints it: for one number of devices, a plan file."""
        from phaze.commands.plan import json_of

        return json_of(self.answers)

    def __str__(self) -> str:
        from phaze.plan.answer.words import in_words, sizes_in_words, unfit_in_words

        if len(self.answers) > 1:
            return sizes_in_words(list(self.answers))
        (answer,) = self.answers
        if answer.format == "phaze-no-plan":
            return unfit_in_words(answer)
        return in_words(answer, answer.question.stored_machine().device)


@dataclass(frozen=True, eq=False)
class ChipAnswer(_Shown):
    """Answer of `chip`: the chip to build for some models, and others beside it."""

    chosen: ChosenChip

    @property
    def choice(self) -> ChipChoice:
        """The answer as a document."""
        return self.chosen.choice

    def designs(self) -> pd.DataFrame:
        """Return every design with its area and its bounds, and with step time and score of a plan if any."""
        from phaze.plan.answer.chip_designs import designs_of

        return designs_of(self.chosen.chooser)

    def _rows(self) -> list[dict[str, object]]:
        rows = []
        for chip in (self.choice.chosen, *self.choice.others):
            sizes = chip.chip.model_dump(mode="json", exclude_none=True)
            for on_chip in chip.plans:
                figures = on_chip.model_dump(mode="json", exclude={"plan"})
                step_s = on_chip.plan and on_chip.plan.by(self.choice.question.rank)
                rows.append({"role": chip.role, **sizes, **figures, "step_s": step_s})
        return rows

    def to_json(self) -> str:
        """Return the answer as JSON, as the command prints it."""
        from phaze.spec.documents import text_of

        return text_of(self.choice)

    def page(self, out: File | None = None) -> str:
        """Return the page of the answer as HTML, and write it to a file if one is named."""
        needs("altair", "pandas")
        from phaze.base.files import write_text

        text = self.chosen.page()
        if out is not None:
            write_text(Path(out), text)
        return text

    def __str__(self) -> str:
        from phaze.plan.answer.chip_words import choice_in_words

        return choice_in_words(self.choice)


@dataclass(frozen=True, eq=False)
class ReadRun(_Shown):
    """Answer of `read`: predicted step time and memory of a run."""

    predicted: PredictedRun

    def _rows(self) -> list[dict[str, object]]:
        fields = self.predicted.as_row()
        layout = fields.pop("layout")
        return [fields | (layout if isinstance(layout, dict) else {})]

    def to_json(self) -> str:
        """Return the run as JSON, as the command prints it."""
        return self.predicted.to_json()

    def __str__(self) -> str:
        return self.predicted.in_words()


@dataclass(frozen=True, eq=False)
class ComparedRun(_Shown):
    """Answer of `compare`: changes that turn a run into a plan, with what each gains."""

    comparison: Comparison

    def _rows(self) -> list[dict[str, object]]:
        steps = self.comparison.as_row()["steps"]
        assert isinstance(steps, list)
        return steps

    def to_json(self) -> str:
        """Return the comparison as JSON, as the command prints it."""
        return json.dumps(self.comparison.as_row(), indent=1)

    def __str__(self) -> str:
        return self.comparison.in_words()


@dataclass(frozen=True, eq=False)
class Validation(_Shown):
    """Answer of `validate`: errors of predictions by source of measured runs."""

    scores: pd.DataFrame
    runs: pd.DataFrame
    """All runs, with predictions next to measurements."""

    def _rows(self) -> list[dict[str, object]]:
        return [{str(name): cell for name, cell in row.items()} for row in self.scores.to_dict("records")]

    def table(self) -> pd.DataFrame:
        """Return the errors, one row per source."""
        return self.scores

    def to_json(self) -> str:
        """Return the errors as JSON, as the command prints them."""
        from phaze.commands.validate import scores_as_json

        return scores_as_json(self.scores, self.runs)

    def __str__(self) -> str:
        return self.scores.to_string(index=False)


def plan(model: str, gpus: str | None = None, **options: Unpack[PlanFields]) -> PlanAnswer:
    """Plan the training of a model on a cluster, such as `gpus="64xH100"`, as `phaze plan` does."""
    from phaze.commands.plan_options import PlanOptions
    from phaze.commands.requests import refuse_unknown, request_of

    refuse_unknown("plan", options, get_type_hints(PlanFields))
    # JSON has all parts of the answer, of which results show some.
    arguments = {"precision": PRECISION, **options, "model": model, "gpus": gpus, "as_json": True}
    return _answered(request_of(PlanOptions, "plan", arguments))


def _answered(request: PlanOptions) -> PlanAnswer:
    from phaze.commands.output import restored_interrupts
    from phaze.commands.plan import answers_of, prepared

    with restored_interrupts():
        phases = prepared(request)
        answers = answers_of(phases)
    return PlanAnswer(tuple(answers), any(phase.interrupted for phase in phases), request.runtime)


def read(
    flags: File, runtime: WrittenRuntime = "megatron", gpus: str | None = None, **options: Unpack[ReadFields]
) -> ReadRun:
    """Predict a run from its flags, given as text or as a file, as `phaze read` does."""
    from phaze.commands.emit import ReadOptions, predicted_run
    from phaze.commands.requests import refuse_unknown, request_of

    refuse_unknown("read", options, get_type_hints(ReadFields))
    with TemporaryDirectory() as folder:
        file = _as_file(flags, Path(folder))
        arguments = {**options, "flags": file, "runtime": runtime, "gpus": gpus}
        return ReadRun(predicted_run(request_of(ReadOptions, "read", arguments)))


def compare(
    run: File,
    planned: PlanAnswer | TrainingPlan | File,
    *,
    row: int | None = None,
    layout: str | None = None,
) -> ComparedRun:
    """Show how much faster a run, given by its flags or a row of a CSV, would be with a plan."""
    from phaze.commands.emit import compared
    from phaze.spec.documents import read_as
    from phaze.spec.training_plan import TrainingPlan

    if isinstance(planned, PlanAnswer):
        chosen = planned.best
    else:
        chosen = planned if isinstance(planned, TrainingPlan) else read_as(TrainingPlan, Path(planned))
    with TemporaryDirectory() as folder:
        return ComparedRun(compared(_as_file(run, Path(folder)), chosen, row, layout))


def place(model: str, gpus: str | None = None, **options: Unpack[PlaceFields]) -> PlanAnswer:
    """Plan a model on chips of an architecture, as `phaze place --model` does."""
    from phaze.commands.place import architectures
    from phaze.commands.place_options import PlaceOptions
    from phaze.commands.requests import refuse_unknown, request_of

    refuse_unknown("place", options, get_type_hints(PlaceFields))
    arguments = {"precision": PRECISION, **options, "model": model, "gpus": gpus, "as_json": True}
    request = request_of(PlaceOptions, "place", arguments)
    chips = architectures(request)
    if len(chips) > 1:
        raise PhazeError("place: architecture: must be one, as the answer has one plan", "call it for each")
    return _answered(request.planned_on(chips[0]))


def chip(models: str | Sequence[str], **options: Unpack[ChipFields]) -> ChipAnswer:
    """Choose the accelerator to build for some models on a cluster, as `phaze chip` does."""
    from phaze.commands.chip import chosen_chip
    from phaze.commands.chip_options import ChipOptions
    from phaze.commands.output import restored_interrupts
    from phaze.commands.requests import refuse_unknown, request_of

    refuse_unknown("chip", options, get_type_hints(ChipFields))
    with restored_interrupts():
        return ChipAnswer(chosen_chip(request_of(ChipOptions, "chip", {**options, "models": models})))


def simulate(
    runs: pd.DataFrame | File, system: str | None = None, devices: int | None = None
) -> pd.DataFrame:
    """Predict the runs of a table (a DataFrame or a CSV), as `phaze simulate --runs` does.

    Returns the table with predictions in further columns. `system` is for rows that name none.
    """
    needs("pandas")
    from phaze.commands.options import known_system
    from phaze.commands.output import telling
    from phaze.plan.machines import load_machine
    from phaze.validate.table import predict_table

    machine = None if system is None else load_machine(str(known_system(system)), devices=devices)
    with TemporaryDirectory() as folder, telling("simulate"):
        file = Path(folder) / "runs.csv"
        if isinstance(runs, str | Path):
            file = Path(runs)
        else:
            runs.to_csv(file, index=False)
        return predict_table(file, machine)[0]


def validate(files: Sequence[File] | None = None, system: str | None = None) -> Validation:
    """Compare predicted with measured runs, by default the published ones, as `phaze validate` does."""
    needs("pandas")
    from phaze.commands.validate import predicted_runs
    from phaze.spec.measured import PublishedRuns
    from phaze.validate.scoreboard import runs_with_intervals, scoreboard

    runs = runs_with_intervals(predicted_runs([Path(file) for file in files or ()], system))
    return Validation(scoreboard(runs, PublishedRuns.load().simulated), runs)


def schema(name: str) -> dict[str, object]:
    """Return the JSON Schema of a file that phaze reads or writes, such as `plan` or `study`."""
    from phaze.commands.schemas import schema_of

    return schema_of(name)


def _as_file(text: File, folder: Path) -> Path:
    """Path of a file, or of a new file in a folder for flags that were given as text."""
    if isinstance(text, Path) or not (text.lstrip().startswith("--") or "\n" in text):
        return Path(text)
    file = folder / "flags.txt"
    file.write_text(text, encoding="utf-8")
    return file
