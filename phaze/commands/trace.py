"""Trace a PyTorch module: its operator graph, or a comparison with its spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion
from phaze.commands.output import refuse_outputs, write_or_print
from phaze.spec.names import MOST

if TYPE_CHECKING:
    from phaze.spec.torch_module import TorchModule


def trace(
    specs: Annotated[
        list[Path],
        typer.Argument(
            help="Spec that names a callable (as in config/torch), or a Hugging Face config.json; see "
            "config/commands.md."
        ),
    ],
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Allow phaze to import and call the code that the spec names. It can do anything that you "
            "can.",
        ),
    ] = False,
    system: Annotated[
        str, typer.Option(help="System whose device runs the module.", autocompletion=completion.systems)
    ] = "a100-selene",
    sequence: Annotated[
        int | None,
        typer.Option(help="Tokens in a sample, for a config.json. Default: 1024.", min=2, max=MOST),
    ] = None,
    microbatch: Annotated[int, typer.Option(help="Samples in a microbatch.", min=1, max=MOST)] = 1,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Compare parameters and FLOPs with the specs of the same names in config/models, or "
            "with the family of a config.json; accepts several.",
        ),
    ] = False,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="Write a model, for `phaze place` and `phaze partition`, instead of a graph."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File for the graph, for `phaze partition`, or for the comparison."),
    ] = None,
) -> None:
    """Trace the operators of a PyTorch module.

    The module runs forward and backward on the meta device, without data. The graph has every operator that
    PyTorch runs, with times estimated for the device of a system. A comparison shows parameters and FLOPs per
    sample as counted by PyTorch, the graph and the spec.
    """
    from phaze.spec.torch_module import USUAL_SEQUENCE, load_torch_module

    refuse_outputs(out, reads=specs)
    modules = [load_torch_module(path, sequence or USUAL_SEQUENCE) for path in specs]
    if not compare and (len(modules) > 1 or out is None):
        raise PhazeError("trace: give one spec and -o for its graph, or pass --compare")
    if compare:
        write_or_print(_comparison(specs, modules, run_code=run_code), out)
    elif out is not None and layers:
        _write_layers(modules[0], out, run_code=run_code)
    elif out is not None:
        _write_graph(modules[0], microbatch, system, out, run_code=run_code)


def _comparison(specs: list[Path], modules: list[TorchModule], *, run_code: bool) -> str:
    from phaze.spec.model import Model
    from phaze.spec.models import load_model, load_model_named
    from phaze.workload.families.traced.trace import compare, csv_text
    from phaze.workload.families.traced.trace import trace as run

    found = []
    for path, module in zip(specs, modules, strict=True):
        model = load_model(path) if path.suffix == ".json" else load_model_named(module.name)
        if isinstance(model, Model):  # libraries do not implement its layers of multi-token prediction
            model = model.model_copy(update={"mtp": 0})
        found.append(compare(run(module, 1, run_code=run_code), model, module.tokens))
    return csv_text(found)


def _write_layers(module: TorchModule, out: Path, *, run_code: bool) -> None:
    from phaze.base.files import write_text
    from phaze.workload.families.traced.layers import described, layers_of
    from phaze.workload.families.traced.trace import trace as run

    graph = layers_of(run(module, 1, run_code=run_code))
    found = described(graph, module.name, module.tokens, causal=module.causal)
    write_text(out, json.dumps({"kind": "traced", **found.model_dump(exclude_defaults=True)}) + "\n")
    layers = ", ".join(f"{one.count} {one.layer}" for one in found.runs)
    typer.echo(f"{module.name}: {layers} of {module.tokens:,} tokens: {out}")


def _write_graph(module: TorchModule, microbatch: int, system: str, out: Path, *, run_code: bool) -> None:
    from phaze.partition.profile import profile_graph
    from phaze.spec.documents import write_document
    from phaze.spec.systems import load_cluster
    from phaze.workload.families.traced.trace import trace as run
    from phaze.workload.families.traced.translate import graph_of
    from phaze.workload.operator_graphs import stored_operators

    whole = graph_of(run(module, microbatch, run_code=run_code))
    graph = profile_graph(whole, load_cluster(system)[1])
    write_document(stored_operators(graph, module.name, microbatch), out)
    typer.echo(f"{module.name}: {len(graph.names)} operators, {len(graph.edges)} edges: {out}")
