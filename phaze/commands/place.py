"""Place a model on a cluster, or plan an instance file of Phaze's or Piper's planner."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phaze.base.errors import PhazeError
from phaze.commands import options
from phaze.commands.output import ended_at_once, refuse_outputs, telling, write_or_print
from phaze.commands.place_options import ModelOptions, PlaceOptions
from phaze.formulas.piper.choices import PiperChoices

if TYPE_CHECKING:
    from collections.abc import Collection


SAMPLES = 4096
"""Default global batch, in samples."""


@options.takes(PlaceOptions)
def place(request: PlaceOptions) -> None:
    """Place a model on a cluster of a given accelerator.

    Prints the widths t and d, the stages s with their layers and memory, the throughput, and the
    bottleneck. The input is either a model on an architecture (--model), or an instance file of layers with
    their latencies. An instance of Phaze's planner also defines the cluster. Options that begin with
    "Piper" override the values of an instance of --planner piper. With several architectures, separated by
    commas, or with --sweep it prints a table of them, with TPU v4 as built.
    """
    if (request.instance is None) == (request.model is None):
        raise PhazeError("place: give either an instance file or --model, not both")
    if request.instance is not None and not request.instance.suffix and not request.instance.exists():
        raise PhazeError(
            f"place: {request.instance}: there is no such instance file",
            f"for a model: phaze place --model {request.instance}",
        )
    refuse_outputs(request.out, reads=(request.instance, request.model, request.architecture, request.system))
    piper = request.planner == "piper"
    if not piper:
        message = "place: {} applies to --planner piper only"
        options.refuse(request.context, options.flags(PiperChoices), message)
    if request.instance is not None:
        of_models = [*options.flags(ModelOptions), "sweep", *["devices"] * (not piper)]
        _refuse_options_of_models(request.context, of_models)
        text = _place_with_piper(request.instance, request) if piper else _place_with_phaze(request.instance)
        write_or_print(text + "\n", request.out)
    elif piper:
        raise PhazeError(
            "place: --planner piper needs an instance file", "to plan a model with Piper, run a study"
        )
    else:
        _place_model(request)


def _place_model(request: PlaceOptions) -> None:
    """Place a model, and print the placement or write it to a file."""
    request = _completed(request)
    names = request.architecture.split(",")
    if request.sweep or len(names) > 1:
        from phaze.commands.chips import COLUMNS, compared
        from phaze.commands.tables import print_rows

        if request.out is not None:
            raise PhazeError("place: -o applies to one architecture only", "print with --json instead")
        with telling("place"):
            rows = compared(request, names, request.sweep or ())
        if request.as_json:
            typer.echo(json.dumps(rows, indent=1))
        else:
            print_rows(rows, COLUMNS)
        return
    from phaze.commands.answers import in_one_line

    described = _described(request)
    text = json.dumps(described, indent=2) if request.as_json else in_one_line(described)
    write_or_print(text + "\n", request.out)


def _completed(request: PlaceOptions) -> PlaceOptions:
    """The request with its batch and cluster; PhazeError for values out of range."""
    limits = {name: getattr(request, name) for name in ("flat_bandwidth", "hbm_gib", "tokens")}
    options.refuse_unless_positive("place", **limits)
    return replace(request, global_batch=_batch(request), **_cluster(request))


def described_placement(request: PlaceOptions) -> dict[str, object]:
    """Best placement of a model as plain values, or the reason why nothing fits."""
    return _described(_completed(request))


def _described(request: PlaceOptions) -> dict[str, object]:
    from phaze.commands.answers import answer, describe_placement

    with telling("place"):
        return describe_placement(request, answer(request))


def _batch(request: PlaceOptions) -> int:
    """Batch size in samples, from --global-batch, --batch-tokens or the default."""
    if request.batch_tokens is None or request.global_batch is not None:
        # A batch in samples needs no sequence, so the model need not be loaded for it.
        return options.batch_samples("place", request.global_batch, request.batch_tokens, 1) or SAMPLES
    from phaze.spec.models import load_model_named

    tokens = (
        load_model_named(str(request.model)).usual_sequence if request.sequence is None else request.sequence
    )
    return options.batch_samples("place", None, request.batch_tokens, tokens) or SAMPLES


def _cluster(request: PlaceOptions) -> dict[str, Any]:
    """Values that --gpus and --nodes supply: system, number of devices and architecture.

    The system's device is the architecture unless --architecture is given.
    """
    if request.gpus is None and request.nodes is None:
        return {}
    system = request.system if options.is_given(request.context, "system") else None
    devices = None if request.devices is None else str(request.devices)
    named, number = options.cluster("place", request.gpus, system, devices, request.nodes)
    changes: dict[str, Any] = {"system": named, "devices": options.one_number("place", number)}
    if not options.is_given(request.context, "architecture"):
        from phaze.spec.files import is_path, read_mapping, system_path

        path = system_path(named)
        device = str(read_mapping(path).get("device", request.architecture))
        # The path of a device in a system's file is relative to that file.
        changes["architecture"] = str(path.parent / device) if is_path(device) else device
    return changes


def _place_with_phaze(instance: Path) -> str:
    from phaze.formulas.phaze.instance import place_instance, read_instance, result_text

    problem = read_instance(instance)
    try:
        with telling("place"):
            result = place_instance(problem)
    except PhazeError as error:
        raise error.under(str(instance)) from error
    return result_text(result)


def _place_with_piper(instance: Path, request: PlaceOptions) -> str:
    from phaze.formulas.downsets import DownsetsError
    from phaze.formulas.piper.instance import read_instance
    from phaze.formulas.piper.question import PiperQuestion, answer, as_text

    choices = {name: getattr(request, name) for name in options.flags(PiperChoices)}
    question = PiperQuestion(devices=request.devices, **choices)
    stored = read_instance(instance)
    try:
        # Compiled code plans several levels, and Ctrl-C cannot interrupt it.
        with telling("place"), ended_at_once() if question.levels else nullcontext():
            return as_text(answer(stored, question))
    except DownsetsError as error:
        raise PhazeError(f"{instance}: {error}", "see --max-downsets and --paper-table1") from error


def _refuse_options_of_models(context: typer.Context, names: Collection[str]) -> None:
    """Raise PhazeError for options that do not apply to an instance file."""
    for name in filter(lambda name: options.is_given(context, name), context.params):
        if name in names:
            option = name.replace("_", "-")
            raise PhazeError(f"place: --{option} does not apply to the instance file of this planner")
