"""Options of `phaze plan`: the size of the job, the layouts to search, the whole run, and the output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion, options
from phaze.commands.options import RuntimeOption
from phaze.spec.names import GAP, PRECISION, RANK, Rank
from phaze.spec.questions import RunFields


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """Options for the training job: batch, devices, sequence, precision."""

    global_batch: options.PlannedBatchOption = None
    batch_tokens: options.BatchTokensOption = None
    devices: Annotated[
        str | None,
        typer.Option(help="Number of devices, or several separated by commas. Default: the system's."),
    ] = None
    nodes: options.NodesOption = None
    sequence: options.SequenceOption = None
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
            help="Tokens dispatched to the experts of the busiest rank: natural, balanced, a factor over "
            "balanced, power_law_x or max_vio_x. Default: the software stack's.",
            parser=options.load,
            metavar="LOAD",
        ),
    ] = None
    lora: Annotated[
        int | None,
        typer.Option(help="Train only LoRA adapters of this rank. Default: train all weights.", min=1),
    ] = None
    set_values: options.SetOption = None


@dataclass(frozen=True, kw_only=True)
class LayoutSearchOptions:
    """Options for the layouts to search, and for the search itself."""

    top: Annotated[int, typer.Option(help="Number of rows of the ranked table.", min=1, max=1000)] = 5
    rank: Annotated[
        Literal[Rank, "robust"],
        typer.Option(
            help="Time that ranks layouts: prudent (credits only measured overlap) or expected; or robust, "
            "the least regret if overlap or the load of experts is not as assumed."
        ),
    ] = RANK
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
    fewest: Annotated[
        bool, typer.Option("--fewest", help="Plan on the fewest whole nodes on which the model fits.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options for the parts of the answer and the output files."""

    measure_first: Annotated[
        bool,
        typer.Option(
            "--measure-first",
            help="Add the plans whose measurement would decide, and what each outcome says.",
        ),
    ] = False
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Add the measured runs that are most similar to the plan.")
    ] = False
    why: Annotated[
        bool, typer.Option("--why", help="Add time and memory by part, the exclusions and the assumptions.")
    ] = False
    as_json: options.JsonOption = False
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the plan (JSON).")] = None
    page: Annotated[
        Path | None, typer.Option(help="Page of the answer (.html): layouts, charts and flags, in one file.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlannersOptions:
    """Options for plans of planners from the literature, and for the input of Piper's planner."""

    planners: Annotated[
        bool,
        typer.Option(
            "--planners",
            help="Add the plans of Phaze's and Piper's planners. Takes minutes for 1,000 devices.",
        ),
    ] = False
    layers: Annotated[
        Path | None,
        typer.Option(
            help="Piper: CSV of measured layers: layer, microbatch, t, recompute, kind, forward_s, "
            "backward_s, bytes. Default: the cost model's layers.",
            callback=options.readable,
        ),
    ] = None
    write_layers: Annotated[
        Path | None, typer.Option(help="Piper: CSV for the layers that it plans with, as for --layers.")
    ] = None
    write_input: Annotated[
        Path | None,
        typer.Option(help="Piper: JSON for its input, as `phaze place --planner piper` reads it."),
    ] = None
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="Piper: write to -o, instead of the plan, its times for all numbers of devices and sums of "
            "data-parallel degrees (CSV).",
        ),
    ] = False

    def check(self, out: Path | None, sizes: int) -> None:
        """Raise PhazeError for options that need others; `sizes` is the number of device counts."""
        files = {
            "--layers": self.layers,
            "--write-layers": self.write_layers,
            "--write-input": self.write_input,
        }
        passed = [name for name, file in files.items() if file is not None] + ["--table"] * self.table
        if passed and not self.planners:
            raise PhazeError(f"plan: {passed[0]} needs --planners", "pass --planners, or leave it out")
        if self.table and (out is None or out.suffix.lower() != ".csv"):
            raise PhazeError(f"plan: --table: needs -o FILE.csv, got {out}")
        if passed and sizes > 1:
            raise PhazeError(f"plan: {passed[0]} accepts one number of devices; --devices has several")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(QuestionOptions, LayoutSearchOptions, RunFields, AnswerOptions, PlannersOptions):
    """Options of `phaze plan`: model, cluster, search and output."""

    model: options.ModelArgument
    gpus: options.GpusOption = None
    system: options.LevelsOption = None
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture",
            "-a",
            help="Plan on chips of an architecture instead of the system's device, without a runtime: a name "
            "in config/architectures or config/devices, or a path. Of several (A,B, or a file with a grid "
            "and an area limit) the best one is chosen.",
            autocompletion=completion.chips,
        ),
    ] = None
    runtime: Annotated[
        RuntimeOption | None,
        typer.Option(help="Runtime that will train. Default: megatron, or maxtext on TPUs."),
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


PANELS = {
    PlanOptions: "Question",
    QuestionOptions: "Question",
    LayoutSearchOptions: "Layout",
    RunFields: "Run (the whole training)",
    AnswerOptions: "Output",
    PlannersOptions: "Output",
}
"""Title in the help of the options of each class."""
