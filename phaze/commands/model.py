"""Describe a model: parameters, FLOPs and stored activations; trace a PyTorch module."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, get_args

import typer

from phaze.base.errors import PhazeError
from phaze.commands import completion, options
from phaze.commands.fields import set_fields
from phaze.commands.output import refuse_outputs, write_or_print
from phaze.spec.names import MOST

if TYPE_CHECKING:
    from phaze.partition.scatter import Scatter
    from phaze.plan.layers.activations import LayerMemory
    from phaze.spec.model import Model
    from phaze.spec.operators import ProfiledInput
    from phaze.spec.torch_module import TorchModule


class BlockAnswer(TypedDict):
    """One kind of block in a model: number of layers, parameters and FLOPs."""

    kind: str
    layers: int
    parameters: int
    active_parameters: int
    forward_flops: float
    """Forward FLOPs per token."""


class ModelAnswer(TypedDict):
    """Answer of `phaze model`: parameters, FLOPs per token, blocks and stored bytes."""

    model: str
    layers: int
    sequence: int
    parameters: int
    active_parameters: int
    mtp_parameters: int
    parameters_by_group: dict[str, int]
    active_parameters_by_group: dict[str, int]
    forward_flops_per_token: float
    backward_flops_per_token: float
    blocks: list[BlockAnswer]
    kept_bytes_per_token: dict[str, dict[str, float]]
    """Stored bytes by layer and recompute choice, on one device."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of `phaze model`: the model, its sequence, and the system that trains it."""

    name: options.ModelArgument
    sequence: options.SequenceOption = None
    system: Annotated[str, typer.Option(callback=options.known_system, autocompletion=completion.systems)] = (
        "h100"
    )
    """System whose software stack decides which activations layers store."""
    set_values: options.SetOption = None
    as_json: options.JsonOption = False


@options.takes(ModelOptions)
def model(request: ModelOptions) -> None:
    """Describe a model: parameters, FLOPs, blocks, stored bytes.

    Parameters are listed by group, FLOPs per token, and stored bytes by recompute choice.
    """
    from phaze.spec.models import load_transformer

    spec = load_transformer(request.name, "model", user_fields=set_fields(request.set_values))
    tokens = request.sequence or spec.usual_sequence
    spec.check_sequence(tokens, "--sequence")
    answer = answer_of(spec, tokens, request.system)
    typer.echo(json.dumps(answer, indent=1) if request.as_json else in_words(answer))


def answer_of(model: Model, sequence: int, system: str) -> ModelAnswer:
    """Parameters, FLOPs per token and kinds of blocks of a model, with their stored bytes on a system."""
    # A product of n multiply-adds is 2n FLOPs; the backward pass has two products for each forward one.
    products = model.products_per_token(sequence, causal=model.causal)
    return ModelAnswer(
        model=model.name,
        layers=model.layers,
        sequence=sequence,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        mtp_parameters=model.mtp_parameters,
        parameters_by_group=_groups(model, active=False) | {"mtp": model.mtp_parameters},
        active_parameters_by_group=_groups(model, active=True),
        forward_flops_per_token=2.0 * products,
        backward_flops_per_token=4.0 * products,
        blocks=[_block_answer(model, kind, sequence) for kind in model.blocks],
        kept_bytes_per_token=_stored_bytes(model, sequence, system),
    )


def _stored_bytes(model: Model, sequence: int, system: str) -> dict[str, dict[str, float]]:
    """Stored bytes per token by layer and recompute choice (half precision, fused attention)."""
    from phaze.layout import Layout
    from phaze.plan.layers.activations import LayerMemory, kept_by
    from phaze.spec.systems import load_cluster, load_stack_of
    from phaze.workload.lower.attention import kept_with_flash
    from phaze.workload.models import library_workload

    stack, layout = load_stack_of(load_cluster(system)[0]), Layout()
    layers = [kept_by(stack, layer, layout) for layer in library_workload(model, sequence, layout).layers]
    memories = [LayerMemory(kept_with_flash(layer), 0.0) for layer in layers]
    return {
        memory.layer.name: {choice: memory.kept_bytes(choice)[0] / sequence for choice in _recomputes(memory)}
        for memory in memories
    }


def _recomputes(cost: LayerMemory) -> list[str]:
    """Recompute choices of a layer: none, one of its modules, or the whole layer."""
    from phaze.layout import MODULES
    from phaze.plan.layers.activations import KEPT

    # Runtimes recompute blocks only, not the embedding or the head.
    if cost.layer.name in KEPT:
        return ["none"]
    modules = [module for module in MODULES if cost.layer.forward_in(frozenset({module}))]
    return ["none", *modules, "full"]


def _groups(model: Model, *, active: bool) -> dict[str, int]:
    from phaze.spec.counts import ModuleGroup

    parameters = model.parameter_groups(active=active)
    return {group: parameters[group] for group in get_args(ModuleGroup)}


def _block_answer(model: Model, kind: str, sequence: int) -> BlockAnswer:
    block, norm = model.blocks[kind], model.norm_parameters(model.hidden)
    return BlockAnswer(
        kind=kind,
        layers=sum(count for name, count in model.runs if name == kind),
        parameters=block.parameters(model.hidden, norm).total(),
        active_parameters=block.parameters(model.hidden, norm, active=True).total(),
        forward_flops=2.0 * block.products(model.hidden, sequence, causal=model.causal),
    )


def in_words(answer: ModelAnswer) -> str:
    """Model description, formatted as text tables."""
    total, active = answer["parameters_by_group"], answer["active_parameters_by_group"]
    head = (
        f"{answer['model']}: {answer['parameters'] / 1e9:.4g}e9 parameters in {answer['layers']} "
        f"layers, {answer['active_parameters'] / 1e9:.4g}e9 active per "
        f"token\n{answer['forward_flops_per_token'] / 1e9:.4g} GFLOPs forward and "
        f"{answer['backward_flops_per_token'] / 1e9:.4g} backward per token, for sequences of "
        f"{answer['sequence']:,}; masked attention scores are not counted\n"
    )
    groups = [(name.replace("_", " "), total[name], active.get(name, 0)) for name in total if total[name]]
    groups.append(("all but mtp", answer["parameters"], answer["active_parameters"]))
    lines = [f"{'parameters':<16}{'all':>20}{'active per token':>20}"]
    lines += [f"{name:<16}{number:>20,}{active_number:>20,}" for name, number, active_number in groups]
    lines += ["", f"{'blocks':<28}{'layers':>8}{'each':>16}{'active per token':>18}{'GFLOPs forward':>16}"]
    lines += [
        f"{block['kind']:<28}{block['layers']:>8}{block['parameters']:>16,}{block['active_parameters']:>18,}"
        f"{block['forward_flops'] / 1e9:>16.4g}"
        for block in answer["blocks"]
    ]
    lines += ["", "bytes stored per token and layer, by recompute choice"]
    lines += [
        f"{name:<28}" + ", ".join(f"{choice} {nbytes:,.0f}" for choice, nbytes in stored_bytes.items())
        for name, stored_bytes in answer["kept_bytes_per_token"].items()
    ]
    return "\n".join([head, *lines])


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Options of `phaze trace`: specs of modules, how they are traced, and the file to write."""

    specs: Annotated[list[Path], typer.Argument()]
    """Spec that names a callable (as in config/torch), or a Hugging Face config.json; see
    config/commands.md."""
    run_code: bool = False
    """Allow phaze to import and call the code that the spec names. It can do anything that you can."""
    system: Annotated[str, typer.Option(autocompletion=completion.systems)] = "a100-selene"
    """System whose device runs the module."""
    sequence: Annotated[int | None, typer.Option(min=2, max=MOST)] = None
    """Tokens in a sample, for a config.json. Default: 1024."""
    microbatch: Annotated[int, typer.Option(min=1, max=MOST)] = 1
    """Samples in a microbatch."""
    compare: bool = False
    """Compare parameters and FLOPs with the specs of the same names in config/models, or with the family of a
    config.json; accepts several."""
    layers: bool = False
    """Write a model, for `phaze place` and `phaze partition`, instead of a graph."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File for the graph, for `phaze partition`, or for the comparison."""


@options.takes(TraceOptions)
def trace(request: TraceOptions) -> None:
    """Trace the operators of a PyTorch module.

    The module runs forward and backward on the meta device, without data. The graph has every operator that
    PyTorch runs, with times estimated for the device of a system. A comparison shows parameters and FLOPs per
    sample as counted by PyTorch, the graph and the spec.
    """
    from phaze.spec.torch_module import USUAL_SEQUENCE, load_torch_module

    refuse_outputs(request.out, reads=request.specs)
    modules = [load_torch_module(path, request.sequence or USUAL_SEQUENCE) for path in request.specs]
    if request.compare:
        write_or_print(_comparison(request.specs, modules, run_code=request.run_code), request.out)
    elif request.out is None or len(modules) > 1:
        raise PhazeError("trace: give one spec and -o for its graph, or pass --compare")
    elif request.layers:
        _write_layers(modules[0], request.out, run_code=request.run_code)
    else:
        _write_graph(modules[0], request.microbatch, request.system, request.out, run_code=request.run_code)


def _comparison(specs: list[Path], modules: list[TorchModule], *, run_code: bool) -> str:
    from phaze.spec.model import Model
    from phaze.spec.models import load_model, load_model_named
    from phaze.workload.families.traced.trace import compare, csv_text
    from phaze.workload.families.traced.trace import trace as run

    comparisons = []
    for path, module in zip(specs, modules, strict=True):
        model = load_model(path) if path.suffix == ".json" else load_model_named(module.name)
        if isinstance(model, Model):  # libraries do not implement its layers of multi-token prediction
            model = model.model_copy(update={"mtp": 0})
        comparisons.append(compare(run(module, 1, run_code=run_code), model, module.tokens))
    return csv_text(comparisons)


def _write_layers(module: TorchModule, out: Path, *, run_code: bool) -> None:
    from phaze.base.files import write_text
    from phaze.workload.families.traced.layers import described, layers_of
    from phaze.workload.families.traced.trace import trace as run

    graph = layers_of(run(module, 1, run_code=run_code))
    spec = described(graph, module.name, module.tokens, causal=module.causal)
    write_text(out, json.dumps({"kind": "traced", **spec.model_dump(exclude_defaults=True)}) + "\n")
    layers = ", ".join(f"{layer_run.count} {layer_run.layer}" for layer_run in spec.runs)
    typer.echo(f"{module.name}: {layers} of {module.tokens:,} tokens: {out}")


def _write_graph(module: TorchModule, microbatch: int, system: str, out: Path, *, run_code: bool) -> None:
    from phaze.partition.profile import profile_graph
    from phaze.spec.documents import write_document
    from phaze.spec.systems import load_cluster
    from phaze.workload.families.traced.trace import trace as run
    from phaze.workload.families.traced.translate import graph_of
    from phaze.workload.operator_graphs import stored_operators

    operators = graph_of(run(module, microbatch, run_code=run_code))
    graph = profile_graph(operators, load_cluster(system)[1])
    write_document(stored_operators(graph, module.name, microbatch), out)
    typer.echo(f"{module.name}: {len(graph.names)} operators, {len(graph.edges)} edges: {out}")


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Options of `phaze profile`: the module and its inputs, where it runs, and the file to write."""

    module: Annotated[str, typer.Argument(metavar="FILE.py:NAME")]
    """Python file, and the callable in it that returns a PyTorch module."""
    inputs: Annotated[list[str], typer.Option("--input")]
    """Shape of an input for one sample, such as 3x224x224, or 128:index for token ids; repeat it for several
    inputs, in order."""
    out: Annotated[Path, typer.Option("-o", "--out")]
    """File for the graph, for `phaze partition`."""
    run_code: bool = False
    """Allow phaze to execute the file. It can do anything that you can."""
    microbatch: Annotated[int, typer.Option(min=1, max=MOST)] = 1
    """Samples in a microbatch."""
    device: str | None = None
    """PyTorch device, such as cpu or cuda:0. Default: a GPU if there is one."""


@options.takes(ProfileOptions)
def profile(request: ProfileOptions) -> None:
    """Measure the operators of a PyTorch module on this machine.

    The module is created and run. The graph has the forward and backward time of every operator, the median
    of several runs, and the bytes of outputs, weights and peak memory.
    """
    refuse_outputs(request.out, reads=(request.module.rpartition(":")[0] or request.module,))
    shapes = tuple(_profiled_input(text) for text in request.inputs)
    if ":" not in request.module or not request.module.rpartition(":")[0].endswith(".py"):
        raise PhazeError(f"profile: {request.module}: must be FILE.py:NAME, such as model.py:make")
    if not request.run_code:
        raise PhazeError(
            f"profile: {request.module} would be executed; allow it with --run-code if you trust the file"
        )
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise PhazeError(
            "profile: PyTorch is not installed", "run pip install '.[torch]' in the folder of phaze"
        )
    from phaze.partition.measured import default_device, profile_module
    from phaze.spec.documents import write_document

    scatters: list[Scatter] = []
    chosen = request.device or default_device()
    graph = profile_module(request.module, shapes, request.microbatch, chosen, on_scatter=scatters.append)
    write_document(graph, request.out)
    assert graph.profiled is not None
    total_s = sum(operator.forward_s + operator.backward_s for operator in graph.operators)
    typer.echo(
        f"{graph.name}: {len(graph.operators)} operators, {len(graph.edges)} edges on "
        f"{graph.profiled.device}; they take {total_s:.4g} s one by one, the whole module "
        f"{graph.profiled.step_s:.4g} s: {request.out}"
    )
    for line in scatters[0].in_words(total_s, graph.profiled.step_s):
        typer.echo(line)


def _profiled_input(text: str) -> ProfiledInput:
    """Input given as a shape and, after a colon, its kind; PhazeError if malformed."""
    from phaze.spec.operators import ProfiledInput

    shape, _, kind = text.partition(":")
    sizes = shape.split("x") if shape else []
    if not all(size.isdecimal() and 0 < int(size) <= MOST for size in sizes) or kind not in (
        "",
        "real",
        "index",
    ):
        raise PhazeError(
            f"profile: --input: must be a shape such as 3x224x224, optionally with :real or :index, got "
            f"{text}"
        )
    return ProfiledInput(kind="index" if kind == "index" else "real", shape=tuple(map(int, sizes)))
