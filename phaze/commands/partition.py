"""Partition a model's operators into pipeline stages."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phaze.base.errors import PhazeError
from phaze.base.progress import busy
from phaze.base.units import GIB, percent
from phaze.commands import completion, options
from phaze.commands.output import refuse_outputs, tell_sequence, telling
from phaze.commands.terminal import tell
from phaze.spec.names import MOST

if TYPE_CHECKING:
    from phaze.map.joint import JointPlan
    from phaze.partition.flow import CutOptions
    from phaze.partition.study import ShapeResult
    from phaze.partition.weights import PartitionTerms
    from phaze.spec.operators import ProfiledModule
    from phaze.workload.operator_graphs import OperatorGraph


_Baseline = tuple[str, dict[str, object], str]
"""Result of a baseline planner: its name, its JSON row and its line of text."""
SYSTEM = "titan-v-ethernet"
"""Default system, whose device runs the model: the system of the Parmesan paper."""


Flow = Literal["full", "paper"]
"""Partitioning flows: in full, or only the paper's steps."""


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """Options for the device, the links and the partitioning flow."""

    hyper_operators: Annotated[int | None, typer.Option("--hyper-operators", "-k", min=1)] = None
    """Number of clusters of operators, K. Default: the model's, else 4 S and at least 48."""
    microbatch: Annotated[int | None, typer.Option(min=1, max=MOST)] = None
    """Samples in a microbatch, for a model. Default: 1."""
    microbatches: Annotated[int, typer.Option(min=1, max=MOST)] = 4
    """Microbatches in a step, per replica (MB)."""
    memory_gib: float | None = None
    """Memory of a device in GiB. Default: unlimited."""
    bandwidth_gbps: float = 10.0
    """Bandwidth between any two devices, 10^9 bytes/s."""
    recompute: Annotated[bool, typer.Option("--recompute/--no-recompute")] = True
    """Recompute the forward pass in the backward pass, or keep its activations."""
    flow: Flow = "full"
    """paper: clustering, dynamic program and refinement only. full: continue towards the lower bound."""
    slack: Annotated[float, typer.Option(min=0)] = 0.02
    """Allowed slowdown of the slowest stage, if the step gets faster: 0.5 is 50 %."""
    system: Annotated[str | None, typer.Option(autocompletion=completion.systems)] = None
    """System whose device runs the model. Default: titan-v-ethernet."""
    sequence: Annotated[int | None, typer.Option(parser=options.count, metavar="N")] = None
    """Tokens in a sample, for a model. Default: 8192, or its longest sequence if shorter."""
    baselines: bool = False
    """Compare with PipeDream, with one topological order, and with Piper and Phaze on layers."""
    graph_out: Path | None = None
    """File for the graph of operators."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File for the stages."""
    as_json: options.JsonOption = False


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(FlowOptions):
    """Options of `phaze partition`: operator graph, number of stages, and devices."""

    graph: Annotated[str, typer.Argument(metavar="MODEL|GRAPH.json", autocompletion=completion.models)]
    """Model: a name in config/models, or a path of a spec or of a graph of operators (JSON; see
    config/formats.md)."""
    stages: Annotated[int | None, typer.Option(min=1, max=MOST)] = None
    """Number of stages, S. Default: the best one for --devices."""
    replicas: Annotated[int | None, typer.Option(min=1, max=MOST)] = None
    """Replicas of every stage, R. Default with --devices: the best one."""
    gpus: options.GpusOption = None
    devices: Annotated[int | None, typer.Option(min=1, max=MOST)] = None
    """Total number of devices, S R; S and R are searched."""
    topology: str | None = None
    """Network of the devices, as for `phaze map`: stages, replicas and mapping are then chosen together, for
    all its devices unless --devices says fewer."""
    map_out: Path | None = None
    """File for the mapping of the stages, with --topology."""


@options.takes(PartitionOptions)
def partition(request: PartitionOptions) -> None:
    """Partition a model's operators into pipeline stages.

    There are S stages of R devices each. With --devices, S and R are searched unless --stages and --replicas
    are given. All devices and all bandwidths are assumed equal; `phaze map` maps the stages to a network.
    With --topology, S, R and the mapping are chosen together for that network.
    """
    system, devices = options.optional_cluster("partition", request.gpus, request.system, request.devices)
    used = (request.stages or 0) * (request.replicas or 0)
    if devices is not None and 0 < used < devices:
        tell(
            f"partition: --stages {request.stages} and --replicas {request.replicas} use {used} of {devices} "
            "devices; leave out one of the two to use all"
        )
    topology = _topology(request)
    outputs = request.graph_out, request.out, request.map_out
    refuse_outputs(*outputs, reads=(request.graph, system, topology))
    options.refuse_unless_positive(
        "partition", memory_gib=request.memory_gib, bandwidth_gbps=request.bandwidth_gbps
    )
    with telling("partition"):
        answer = _answer(request, system, topology, devices)
    typer.echo(answer)


def _answer(request: PartitionOptions, system: str | None, topology: Path | None, devices: int | None) -> str:
    """Partition the operators, write the files, and return the answer as text or JSON."""
    from phaze.partition.flow import CutOptions
    from phaze.partition.study import search, stored_stages
    from phaze.partition.weights import PartitionTerms
    from phaze.spec.documents import write_document
    from phaze.workload.operator_graphs import stored_operators

    memory = math.inf if request.memory_gib is None else request.memory_gib * GIB
    terms = PartitionTerms(request.bandwidth_gbps * 1e9, memory, request.microbatches, request.recompute)
    with busy("profiling the model"):
        subject = _subject(request, system)
    operators, name, samples = subject.operators, subject.name, subject.microbatch
    # Written before the search, which may take long or find nothing.
    if request.graph_out is not None:
        write_document(stored_operators(operators, name, samples, subject.profiled), request.graph_out)
    most = subject.hyper_operators if request.hyper_operators is None else request.hyper_operators
    cut_options = CutOptions(most, request.flow, request.slack)
    if topology is not None:
        return _partition_jointly(request, subject, terms, cut_options, topology, devices)
    with busy("cutting into stages"):
        shapes = search(operators, terms, (request.stages, request.replicas, devices), cut_options)
    best = shapes[0]
    if best.partition is None:
        raise PhazeError(best.reason)
    if request.out is not None:
        file = stored_stages(
            operators, best.partition.chosen, terms, name, best.replicas, samples, subject.profiled
        )
        write_document(file, request.out)
    with busy("comparing with other planners"):
        others = _baselines(operators, terms, best) if request.baselines else []
    return _as_json(shapes, others, samples) if request.as_json else _as_text(shapes, others, samples)


def _topology(request: PartitionOptions) -> Path | None:
    """File of --topology; PhazeError for options that it does not go with."""
    from phaze.commands.map import topology_path

    if request.topology is None:
        if request.map_out is not None:
            raise PhazeError("partition: --map-out needs --topology", "pass --topology, or run phaze map")
        return None
    if request.baselines:
        raise PhazeError("partition: --baselines compares without a network", "leave out --topology")
    path = topology_path(request.topology)
    options.readable(path)
    return path


def _partition_jointly(
    request: PartitionOptions,
    subject: _Subject,
    terms: PartitionTerms,
    cut_options: CutOptions,
    topology: Path,
    devices: int | None,
) -> str:
    """Choose stages, replicas and mapping together, write both files, and return the answer."""
    from phaze.map.ensemble import MapSettings, stored_mapping
    from phaze.map.joint import search_jointly
    from phaze.map.networks import read_topology
    from phaze.partition.study import stored_stages
    from phaze.spec.documents import write_document

    network, settings = read_topology(topology), MapSettings()
    count = network.devices if devices is None else devices
    needed = max(count if devices else 1, (request.stages or 1) * (request.replicas or 1))
    if needed > network.devices:
        raise PhazeError(
            f"partition: {topology}: devices: must be at least {needed}, one for every replica of every "
            f"stage, got {network.devices}",
            "pass fewer --stages, --replicas or --devices, or a larger topology",
        )
    with busy("cutting and mapping"):
        shape = (request.stages, request.replicas, count)
        plans = search_jointly(subject.operators, terms, shape, cut_options, network, settings)
    best = plans[0]
    assert best.candidate is not None
    assert best.mapped is not None
    if request.out is not None:
        file = stored_stages(
            subject.operators, best.candidate, best.terms, subject.name, best.replicas, subject.microbatch,
            subject.profiled,
        )  # fmt: skip
        write_document(file, request.out)
    if request.map_out is not None:
        write_document(stored_mapping(best.mapped, subject.name, str(topology), settings), request.map_out)
    if request.as_json:
        return json.dumps([_joint_row(plan, subject.microbatch) for plan in plans], indent=2)
    return "\n".join(_joint_line(plan, subject.microbatch) for plan in plans)


def _joint_row(plan: JointPlan, microbatch: int) -> dict[str, object]:
    row: dict[str, object] = {"stages": plan.stages, "replicas": plan.replicas}
    if plan.candidate is None or plan.mapped is None:
        return {**row, "reason": plan.reason}
    return {
        **row,
        "step_time_s": plan.step_s,
        "samples_per_s": microbatch * plan.microbatches_per_s,
        "made_by": plan.candidate.made_by,
        "mapped_by": plan.mapped.best.method,
        "mapping": plan.mapped.best.mapping.tolist(),
    }


def _joint_line(plan: JointPlan, microbatch: int) -> str:
    title = f"{plan.stages} stages × {plan.replicas} replicas"
    if plan.candidate is None or plan.mapped is None:
        return f"{title}: {plan.reason}"
    return (
        f"{title}: step {plan.step_s:.4g} s, {microbatch * plan.microbatches_per_s:.4g} samples/s, cut by "
        f"{plan.candidate.made_by}, mapped by {plan.mapped.best.method}"
    )


@dataclass(frozen=True)
class _Subject:
    """Operator graph to partition into stages, with its name and microbatch."""

    operators: OperatorGraph
    name: str
    microbatch: int
    hyper_operators: int | None = None
    """The model's default number of operator clusters, K."""
    profiled: ProfiledModule | None = None
    """PyTorch module of the operators, if they were measured."""


def _subject(request: PartitionOptions, system: str | None) -> _Subject:
    """Operator graph, read from a file or profiled for a model on a system's device."""
    graph, microbatch, sequence = request.graph, request.microbatch, request.sequence
    if _is_operator_graph(graph):
        system_option = "--system" if request.gpus is None else "--gpus"
        for name, value in (("--microbatch", microbatch), (system_option, system), ("--sequence", sequence)):
            if value is not None:
                raise PhazeError(
                    f"partition: {name} applies to models only; a graph file already has times and sizes",
                    "pass the number alone: --devices" if name == "--gpus" else "",
                )
        from phaze.spec.documents import read_as
        from phaze.spec.operators import StoredOperators
        from phaze.workload.operator_graphs import operator_graph

        stored = read_as(StoredOperators, graph)
        graph_of_file = operator_graph(stored)
        return _Subject(graph_of_file, stored.name, stored.microbatch, profiled=stored.profiled)
    from phaze.partition.profile import profile_model
    from phaze.spec.models import load_model_named

    model, samples = load_model_named(graph), 1 if microbatch is None else microbatch
    tell_sequence(graph, sequence)
    # A graph file stores times and sizes; for a model they are estimated for the device here.
    operators = profile_model(model, samples, SYSTEM if system is None else system, sequence=sequence)
    return _Subject(operators, model.name, samples, model.hyper_operators)


def _is_operator_graph(graph: str) -> bool:
    """True if the file contains an operator graph, not a model or a Hugging Face configuration."""
    from phaze.spec.huggingface import describes_model
    from phaze.spec.plain import read_json

    path = Path(graph)
    return path.suffix == ".json" and not (path.is_file() and describes_model(read_json(path)))


def _as_json(shapes: list[ShapeResult], others: list[_Baseline], samples: int) -> str:
    rows = [_row(shape, samples) for shape in shapes]
    if others:
        rows[0]["baselines"] = {name: row for name, row, _ in others}
    return json.dumps(rows, indent=2)


def _as_text(shapes: list[ShapeResult], others: list[_Baseline], samples: int) -> str:
    best, *slower = (_in_words(shape, samples) for shape in shapes)
    return "\n".join([best, *(line for _, _, line in others), *slower])


def _baselines(graph: OperatorGraph, terms: PartitionTerms, best: ShapeResult) -> list[_Baseline]:
    """Results of the baseline planners for the best configuration."""
    from phaze.partition.planners import compare_baselines

    baselines = []
    for baseline in compare_baselines(graph, terms, best.stages, best.replicas):
        row: dict[str, object] = {"reason": baseline.reason}
        line = f"  {baseline.planner}: {baseline.reason}"
        if baseline.candidate is not None:
            row = {
                "stages": int(baseline.candidate.stage_of.max()) + 1,
                "stage_time_s": baseline.candidate.time_s,
                "step_time_s": baseline.candidate.step_s,
                "fits_memory": baseline.fits_memory,
            }
            line = (
                f"  {baseline.planner}: slowest stage {baseline.candidate.time_s:.4g} s, "
                f"step {baseline.candidate.step_s:.4g} s, {row['stages']} stages"
                f"{'' if baseline.fits_memory else ', does not fit in memory'}"
            )
        baselines.append((str(baseline.planner), row, line))
    return baselines


def _row(shape: ShapeResult, microbatch: int) -> dict[str, object]:
    row: dict[str, object] = {"stages": shape.stages, "replicas": shape.replicas}
    if shape.partition is None:
        return {**row, "reason": shape.reason}
    return {
        **row,
        "stage_time_s": shape.partition.chosen.time_s,
        "bound_s": shape.partition.bound_s,
        "proven": shape.partition.proven,
        "step_time_s": shape.partition.chosen.step_s,
        "samples_per_s": microbatch * shape.microbatches_per_s,
        "made_by": shape.partition.chosen.made_by,
    }


def _in_words(shape: ShapeResult, microbatch: int) -> str:
    title = f"{shape.stages} stages × {shape.replicas} replicas"
    if shape.partition is None:
        return f"{title}: {shape.reason}"
    best = shape.partition.chosen
    proof = "the minimum" if shape.partition.proven else "the bound"
    return (
        f"{title}: slowest stage {best.time_s:.4g} s ({percent(shape.partition.gap, 2)} above {proof}), "
        f"step {best.step_s:.4g} s, {microbatch * shape.microbatches_per_s:.4g} samples/s, by {best.made_by}"
    )
