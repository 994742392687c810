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
    batch_tokens: Annotated[int | None, typer.Option(parser=options.count, metavar="N")] = None
    """Tokens in a global batch, such as 4M (4,000,000); replaces --global-batch."""
    devices: str | None = None
    """Number of devices, or several separated by commas. Default: the system's."""
    nodes: options.NodesOption = None
    sequence: options.SequenceOption = None
    precision: Annotated[
        str, typer.Option("--precision", "--compute", parser=options.compute, metavar="NAME")
    ] = PRECISION
    """Precision of GEMMs with the blocks' weights: bf16, fp8, fp8-cs, fp8-block, mxfp8 or nvfp4."""
    load: Annotated[str | None, typer.Option(parser=options.load, metavar="LOAD")] = None
    """Tokens dispatched to the experts of the busiest rank: natural, balanced, a factor over balanced,
    power_law_x or max_vio_x. Default: the software stack's."""
    lora: Annotated[int | None, typer.Option(min=1)] = None
    """Train only LoRA adapters of this rank. Default: train all weights."""
    set_values: options.SetOption = None


@dataclass(frozen=True, kw_only=True)
class LayoutSearchOptions:
    """Options for the layouts to search, and for the search itself."""

    top: Annotated[int, typer.Option(min=1, max=1000)] = 5
    """Number of rows of the ranked table."""
    rank: Literal[Rank, "robust"] = RANK
    """Time that ranks layouts: prudent (credits only measured overlap) or expected; or robust, the least
    regret if overlap or the load of experts is not as assumed."""
    fix: str | None = None
    """Fix fields of the layout, such as tp=8,pp=16."""
    explain: str | None = None
    """Explain other values of fields, such as tp=4: the time that they lose, or why no such plan fits."""
    gap: Annotated[float, typer.Option(min=0, max=0.5)] = GAP
    """Stop when the plan is proven within this share of the fastest step; 0 proves optimality."""
    seconds: Annotated[float | None, typer.Option(metavar="N")] = None
    """Time limit of the search: answer with the best plan so far and its gap, as after Ctrl-C. Default: until
    the gap is closed."""
    fewest: bool = False
    """Plan on the fewest whole nodes on which the model fits."""


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options for the parts of the answer and the output files."""

    measure_first: bool = False
    """Add the plans whose measurement would decide, and what each outcome says."""
    evidence: bool = False
    """Add the measured runs that are most similar to the plan."""
    why: bool = False
    """Add time and memory by part, the exclusions and the assumptions."""
    as_json: options.JsonOption = False
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File for the plan (JSON)."""
    page: Path | None = None
    """Page of the answer (.html): layouts, charts and flags, in one file."""


@dataclass(frozen=True, kw_only=True)
class PlannersOptions:
    """Options for plans of planners from the literature, and for the input of Piper's planner."""

    planners: bool = False
    """Add the plans of Phaze's and Piper's planners. Takes minutes for 1,000 devices."""
    layers: Annotated[Path | None, typer.Option(callback=options.readable)] = None
    """Piper: CSV of measured layers: layer, microbatch, t, recompute, kind, forward_s, backward_s, bytes.
    Default: the cost model's layers."""
    write_layers: Path | None = None
    """Piper: CSV for the layers that it plans with, as for --layers."""
    write_input: Path | None = None
    """Piper: JSON for its input, as `phaze place --planner piper` reads it."""
    table: bool = False
    """Piper: write to -o, instead of the plan, its times for all numbers of devices and sums of data-parallel
    degrees (CSV)."""

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
        str | None, typer.Option("--architecture", "-a", autocompletion=completion.chips)
    ] = None
    """Plan on chips of an architecture instead of the system's device, without a runtime: a name in
    config/architectures or config/devices, or a path. Of several (A,B, or a file with a grid and an area
    limit) the best one is chosen."""
    runtime: RuntimeOption | None = None
    """Runtime that will train. Default: megatron, or maxtext on TPUs."""
    stack: Annotated[
        str | None, typer.Option(callback=options.known_stack, autocompletion=completion.stacks)
    ] = None
    """Software stack: a name in config/stacks, or a path. Default: the system's for this runtime."""


PANELS = {
    PlanOptions: "Question",
    QuestionOptions: "Question",
    LayoutSearchOptions: "Layout",
    RunFields: "Run (the whole training)",
    AnswerOptions: "Output",
    PlannersOptions: "Output",
}
"""Title in the help of the options of each class."""
