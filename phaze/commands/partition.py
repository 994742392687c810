"""Partition a model's operators into pipeline stages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion, options
from phaze.commands.output import refuse_outputs, tell_sequence, telling
from phaze.spec.names import MOST

if TYPE_CHECKING:
    from phaze.partition.study import ShapeResult
    from phaze.partition.weights import PartitionTerms
    from phaze.workload.operator_graphs import OperatorGraph


_Other = tuple[str, dict[str, object], str]
"""Result of a baseline planner: its name, its JSON row and its line of text."""
SYSTEM = "titan-v-ethernet"
"""Default system, whose device runs the model: the system of the Parmesan paper."""


Flow = Literal["full", "paper"]
"""Partitioning flows: in full, or only the paper's steps."""


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """Options for the device, the links and the partitioning flow."""

    hyper_operators: Annotated[
        int | None,
        typer.Option(
            "--hyper-operators",
            "-k",
            help="Number of clusters of operators, K. Default: the model's, else 4 S and at least 48.",
            min=1,
        ),
    ] = None
    microbatch: Annotated[
        int | None, typer.Option(help="Samples in a microbatch, for a model. Default: 1.", min=1, max=MOST)
    ] = None
    microbatches: Annotated[
        int, typer.Option(help="Microbatches in a step, per replica (MB).", min=1, max=MOST)
    ] = 4
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory of a device in GiB. Default: unlimited.")
    ] = None
    bandwidth_gbps: Annotated[
        float, typer.Option(help="Bandwidth between any two devices, 10^9 bytes/s.")
    ] = 10.0
    recompute: Annotated[
        bool, typer.Option(help="Recompute the forward pass in the backward pass, or keep its activations.")
    ] = True
    flow: Annotated[
        Flow,
        typer.Option(
            help="paper: clustering, dynamic program and refinement only. full: continue towards the lower "
            "bound."
        ),
    ] = "full"
    slack: Annotated[
        float,
        typer.Option(
            help="Allowed slowdown of the slowest stage, if the step gets faster: 0.5 is 50 %.",
            min=0,
        ),
    ] = 0.02
    system: Annotated[
        str | None,
        typer.Option(
            help="System whose device runs the model. Default: titan-v-ethernet.",
            autocompletion=completion.systems,
        ),
    ] = None
    sequence: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a sample, for a model. Default: 8192, or its longest sequence if shorter.",
            parser=options.count,
            metavar="N",
        ),
    ] = None
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Compare with PipeDream, with one topological order, and with Piper and Phaze on layers.",
        ),
    ] = False
    graph_out: Annotated[Path | None, typer.Option(help="File for the graph of operators.")] = None
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the stages.")] = None
    as_json: options.JsonOption = False


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(FlowOptions):
    """Options of `phaze partition`: operator graph, number of stages, and devices."""

    graph: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|GRAPH.json",
            help="Model: a name in config/models, or a path of a spec or of a graph of operators "
            "(JSON; see config/formats.md).",
            autocompletion=completion.models,
        ),
    ]
    stages: Annotated[
        int | None,
        typer.Option(help="Number of stages, S. Default: the best one for --devices.", min=1, max=MOST),
    ] = None
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Replicas of every stage, R. Default with --devices: the best one.", min=1, max=MOST
        ),
    ] = None
    gpus: options.GpusOption = None
    devices: Annotated[
        int | None, typer.Option(help="Total number of devices, S R; S and R are searched.", min=1, max=MOST)
    ] = None


@options.takes(PartitionOptions)
def partition(asked: PartitionOptions) -> None:
    """Partition a model's operators into pipeline stages.

    There are S stages of R devices each. With --devices, S and R are searched unless --stages and --replicas
    are given. All devices and all bandwidths are assumed equal; `phaze map` maps the stages to a network.
    """
    from phaze.partition.study import stored_stages
    from phaze.spec.documents import write_document
    from phaze.workload.operator_graphs import stored_operators

    system, devices = options.grown("partition", asked.gpus, asked.system, asked.devices)
    refuse_outputs(asked.graph_out, asked.out, reads=(asked.graph, system))
    terms = _terms(asked.memory_gib, asked.bandwidth_gbps, asked.microbatches, recompute=asked.recompute)
    subject = _subject(asked.graph, asked.microbatch, system, asked.sequence)
    operators, name, samples = subject.operators, subject.name, subject.microbatch
    if asked.graph_out is not None:
        write_document(stored_operators(operators, name, samples), asked.graph_out)
    most = subject.hyper_operators if asked.hyper_operators is None else asked.hyper_operators
    with telling("partition"):
        shape = (asked.stages, asked.replicas, devices)
        found = _configurations(operators, terms, shape, most, asked.flow, asked.slack)
    best = found[0]
    if best.found is None:
        raise PhazeError(best.reason)
    if asked.out is not None:
        file = stored_stages(operators, best.found.chosen, terms, name, best.replicas, samples)
        write_document(file, asked.out)
    others = _baselines(operators, terms, best) if asked.baselines else []
    typer.echo(_as_json(found, others, samples) if asked.as_json else _as_text(found, others, samples))


@dataclass(frozen=True)
class _Subject:
    """Operator graph to partition into stages, with its name and microbatch."""

    operators: OperatorGraph
    name: str
    microbatch: int
    hyper_operators: int | None = None
    """The model's default number of operator clusters, K."""


def _subject(graph: str, microbatch: int | None, system: str | None, sequence: int | None) -> _Subject:
    """Operator graph, read from a file or profiled for a model on a system's device."""
    if _holds_operators(graph):
        _refuse_for_files(microbatch, system, sequence)
        return _read(graph)
    from phaze.partition.profile import profile_model
    from phaze.spec.models import load_model_named

    model, samples = load_model_named(graph), 1 if microbatch is None else microbatch
    tell_sequence(graph, sequence)
    operators = profile_model(model, samples, SYSTEM if system is None else system, sequence=sequence)
    return _Subject(operators, Path(graph).stem, samples, model.hyper_operators)


def _holds_operators(graph: str) -> bool:
    """True if the file contains an operator graph, not a model or a Hugging Face configuration."""
    from phaze.spec.huggingface import describes_model
    from phaze.spec.plain import read_json

    path = Path(graph)
    return path.suffix == ".json" and not (path.is_file() and describes_model(read_json(path)))


def _read(path: str) -> _Subject:
    from phaze.spec.documents import read_as
    from phaze.spec.operators import StoredOperators
    from phaze.workload.operator_graphs import operator_graph

    stored = read_as(StoredOperators, path)
    return _Subject(operator_graph(stored), stored.name, stored.microbatch)


def _refuse_for_files(microbatch: int | None, system: str | None, sequence: int | None) -> None:
    for name, value in (("--microbatch", microbatch), ("--system", system), ("--sequence", sequence)):
        if value is not None:
            raise PhazeError(
                f"partition: {name} applies to models only; a graph file already has times and sizes"
            )


def _terms(
    memory_gib: float | None, bandwidth_gbps: float, microbatches: int, *, recompute: bool
) -> PartitionTerms:
    import math

    from phaze.base.units import GIB
    from phaze.partition.weights import PartitionTerms

    options.refuse_unless_positive("partition", memory_gib=memory_gib, bandwidth_gbps=bandwidth_gbps)
    memory = math.inf if memory_gib is None else memory_gib * GIB
    return PartitionTerms(bandwidth_gbps * 1e9, memory, microbatches, recompute)


def _configurations(
    graph: OperatorGraph,
    terms: PartitionTerms,
    shape: tuple[int | None, int | None, int | None],
    hyper_operators: int | None,
    flow: Flow,
    slack: float,
) -> list[ShapeResult]:
    from phaze.partition.flow import CutOptions
    from phaze.partition.study import search

    return search(graph, terms, shape, CutOptions(hyper_operators, flow, slack))


def _as_json(found: list[ShapeResult], others: list[_Other], samples: int) -> str:
    rows = [_row(one, samples) for one in found]
    if others:
        rows[0]["baselines"] = {name: row for name, row, _ in others}
    return json.dumps(rows, indent=2)


def _as_text(found: list[ShapeResult], others: list[_Other], samples: int) -> str:
    best, *rest = (_in_words(one, samples) for one in found)
    return "\n".join([best, *(line for _, _, line in others), *rest])


def _baselines(graph: OperatorGraph, terms: PartitionTerms, best: ShapeResult) -> list[_Other]:
    """Results of the baseline planners for the best configuration."""
    from phaze.partition.planners import compare_baselines

    found = []
    for one in compare_baselines(graph, terms, best.stages, best.replicas):
        row: dict[str, object] = {"reason": one.reason}
        line = f"  {one.planner}: {one.reason}"
        if one.found is not None:
            row = {
                "stages": int(one.found.stage_of.max()) + 1,
                "stage_time_s": one.found.time_s,
                "step_time_s": one.found.step_s,
                "fits_memory": one.fits_memory,
            }
            line = (
                f"  {one.planner}: slowest stage {one.found.time_s:.4g} s, step {one.found.step_s:.4g} s"
                f", {row['stages']} stages{'' if one.fits_memory else ', does not fit in memory'}"
            )
        found.append((str(one.planner), row, line))
    return found


def _row(one: ShapeResult, microbatch: int) -> dict[str, object]:
    row: dict[str, object] = {"stages": one.stages, "replicas": one.replicas}
    if one.found is None:
        return {**row, "reason": one.reason}
    return {
        **row,
        "stage_time_s": one.found.chosen.time_s,
        "bound_s": one.found.bound_s,
        "proven": one.found.proven,
        "step_time_s": one.found.chosen.step_s,
        "samples_per_s": microbatch * one.microbatches_per_s,
        "made_by": one.found.chosen.made_by,
    }


def _in_words(one: ShapeResult, microbatch: int) -> str:
    shape = f"S={one.stages} R={one.replicas}"
    if one.found is None:
        return f"{shape}: {one.reason}"
    best = one.found.chosen
    proof = "the minimum" if one.found.proven else "the bound"
    return (
        f"{shape}: slowest stage {best.time_s:.4g} s ({one.found.gap:.2%} above {proof}), "
        f"step {best.step_s:.4g} s, {microbatch * one.microbatches_per_s:.4g} samples/s, by {best.made_by}"
    )
