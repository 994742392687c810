"""Describe a model: parameters, FLOPs, and the activations that its layers store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, TypedDict, get_args

import typer

from phaze.commands import completion
from phaze.commands.options import (
    JsonOption,
    ModelArgument,
    SequenceOption,
    SetOption,
    known_system,
    set_fields,
)
from phaze.spec.counts import ModuleGroup

if TYPE_CHECKING:
    from phaze.plan.kept import LayerMemory
    from phaze.spec.model import Model

SystemOption = Annotated[
    str,
    typer.Option(
        help="System whose software stack decides which activations layers store.",
        callback=known_system,
        autocompletion=completion.systems,
    ),
]


class BlockAnswer(TypedDict):
    """One kind of block of a model."""

    kind: str
    layers: int
    parameters: int
    active_parameters: int
    forward_flops: float
    """FLOPs per token."""


class ModelAnswer(TypedDict):
    """Description of a model."""

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


def model(
    name: ModelArgument,
    sequence: SequenceOption = None,
    system: SystemOption = "h100",
    given: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Describe a model: parameters, FLOPs, blocks, stored bytes.

    Parameters are listed by group, FLOPs per token, and stored bytes by recompute choice.
    """
    from phaze.spec.models import load_transformer

    found = load_transformer(name, "model", given=set_fields(given))
    tokens = sequence or found.usual_sequence
    found.check_sequence(tokens, "--sequence")
    answer = answer_of(found, tokens, system)
    typer.echo(json.dumps(answer, indent=1) if as_json else in_words(answer))


def answer_of(model: Model, sequence: int, system: str) -> ModelAnswer:
    """Parameters, FLOPs per token and kinds of blocks of a model, with their stored bytes on a system."""
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
        blocks=[_kind(model, kind, sequence) for kind in model.blocks],
        kept_bytes_per_token=_kept(model, sequence, system),
    )


def _kept(model: Model, sequence: int, system: str) -> dict[str, dict[str, float]]:
    """Stored bytes per token by layer and recompute choice (half precision, fused attention)."""
    from phaze.layout import Layout
    from phaze.plan.kept import LayerMemory, kept_by, kept_with_flash
    from phaze.spec.systems import load_cluster, load_stack_of
    from phaze.workload.models import library_workload

    stack, layout = load_stack_of(load_cluster(system)[0]), Layout()
    layers = [kept_by(stack, layer, layout) for layer in library_workload(model, sequence, layout).layers]
    found = [LayerMemory(kept_with_flash(layer), 0.0) for layer in layers]
    return {
        one.layer.name: {way: one.kept_bytes(way)[0] / sequence for way in _recomputes(one)} for one in found
    }


def _recomputes(cost: LayerMemory) -> list[str]:
    """Recompute choices of a layer: none, one of its modules, or the whole layer."""
    from phaze.layout import MODULES
    from phaze.plan.kept import KEPT

    if cost.layer.name in KEPT:
        return ["none"]
    own = [module for module in MODULES if cost.layer.forward_in(frozenset({module}))]
    return ["none", *own, "full"]


def _groups(model: Model, *, active: bool) -> dict[str, int]:
    found = model.parameter_groups(active=active)
    return {group: found[group] for group in get_args(ModuleGroup)}


def _kind(model: Model, kind: str, sequence: int) -> BlockAnswer:
    block, norm = model.blocks[kind], model.norm_parameters(model.hidden)
    return BlockAnswer(
        kind=kind,
        layers=sum(count for name, count in model.runs if name == kind),
        parameters=block.parameters(model.hidden, norm).total(),
        active_parameters=block.parameters(model.hidden, norm, active=True).total(),
        forward_flops=2.0 * block.products(model.hidden, sequence, causal=model.causal),
    )


def in_words(answer: ModelAnswer) -> str:
    """Description as tables."""
    whole, active = answer["parameters_by_group"], answer["active_parameters_by_group"]
    head = (
        f"{answer['model']}: {answer['parameters'] / 1e9:.4g}e9 parameters in {answer['layers']} "
        f"layers, {answer['active_parameters'] / 1e9:.4g}e9 active per "
        f"token\n{answer['forward_flops_per_token'] / 1e9:.4g} GFLOPs forward and "
        f"{answer['backward_flops_per_token'] / 1e9:.4g} backward per token, for sequences of "
        f"{answer['sequence']:,}; masked attention scores are not counted\n"
    )
    groups = [(name.replace("_", " "), whole[name], active.get(name, 0)) for name in whole if whole[name]]
    groups.append(("all but mtp", answer["parameters"], answer["active_parameters"]))
    lines = [f"{'parameters':<16}{'all':>20}{'active per token':>20}"]
    lines += [f"{name:<16}{number:>20,}{met:>20,}" for name, number, met in groups]
    lines += ["", f"{'blocks':<28}{'layers':>8}{'each':>16}{'active per token':>18}{'GFLOPs forward':>16}"]
    lines += [
        f"{one['kind']:<28}{one['layers']:>8}{one['parameters']:>16,}{one['active_parameters']:>18,}"
        f"{one['forward_flops'] / 1e9:>16.4g}"
        for one in answer["blocks"]
    ]
    lines += ["", "bytes stored per token and layer, by recompute choice"]
    lines += [
        f"{name:<28}" + ", ".join(f"{way} {nbytes:,.0f}" for way, nbytes in ways.items())
        for name, ways in answer["kept_bytes_per_token"].items()
    ]
    return "\n".join([head, *lines])
