"""Plan a model on chips of an architecture, or plan an instance file of Phaze's or Piper's planner."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import typer

from phaze.base.errors import PhazeError
from phaze.commands import options
from phaze.commands.output import ended_at_once, refuse_outputs, telling, write_or_print
from phaze.commands.place_options import PlaceOptions
from phaze.commands.plan_options import PANELS
from phaze.formulas.piper.choices import PiperChoices

ALONE = {
    "out": "-o", "page": "--page", "explain": "--explain", "why": "--why", "evidence": "--evidence",
    "measure_first": "--measure-first", "fewest": "--fewest", "top": "--top",
}  # fmt: skip
"""Options that say more about a single plan, by field."""


@options.takes(PlaceOptions, {**PANELS, PiperChoices: "Instances of Piper"})
def place(request: PlaceOptions) -> None:
    """Plan a model on chips of an architecture, or an instance file.

    A model is planned as by `plan --architecture --planners`: the fastest layouts with a proven lower bound,
    and the plans of the papers' planners, each with the time that its formula claims and its price. With
    several architectures, separated by commas, or with --sweep it prints a table of them, with TPU v4 as
    built. An instance of Phaze's planner has layers with their latencies, and defines the cluster. Options
    that begin with "Piper" override the values of an instance of --planner piper.
    """
    if (request.instance is None) == (request.model is None):
        raise PhazeError("place: give either an instance file or --model, not both")
    if request.instance is not None and request.instance.suffix != ".json" and not request.instance.exists():
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
        _refuse_options_of_models(request.context, piper=piper)
        text = _place_with_piper(request.instance, request) if piper else _place_with_phaze(request.instance)
        write_or_print(text + "\n", request.out)
    elif piper:
        raise PhazeError(
            "place: --planner piper needs an instance file", "to plan a model with Piper, run a study"
        )
    else:
        _place_model(request)


def _place_model(request: PlaceOptions) -> None:
    """Plan a model on one architecture as `plan` does, or print a table of several."""
    from phaze.commands.plan import NOTHING_FITS, answer_request

    chips = architectures(request)
    if len(chips) == 1 and not request.sweep:
        answer_request(request.planned_on(chips[0]))
        return
    from phaze.commands.chips import COLUMNS, compared
    from phaze.commands.tables import print_rows

    options.refuse(request.context, ALONE, "place: {} applies to one architecture only; a table has none")
    rows = compared(request, chips, request.sweep or ())
    if request.as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        print_rows(rows, COLUMNS)
    if not any(row["step_s"] for row in rows):
        raise typer.Exit(NOTHING_FITS)


def architectures(request: PlaceOptions) -> list[str]:
    """Architectures to place on: those of --architecture, or the device of the system."""
    from phaze.spec.config import architecture_names, space_of

    if request.architecture is not None:
        names = architecture_names(request.architecture, "place: --architecture")
        for name in names:
            if space_of(name) is not None:
                raise PhazeError(
                    f"place: --architecture {name}: is a space of architectures",
                    f"phaze plan MODEL --architecture {name} chooses the best of them",
                )
        return names
    from phaze.spec.files import is_path, read_mapping, system_path

    system, _ = options.cluster("place", request.gpus, request.cluster, request.devices, request.nodes)
    path = system_path(system)
    device = str(read_mapping(path).get("device", system))
    # The path of a device in a system's file is relative to that file.
    return [str(path.parent / device) if is_path(device) else device]


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
    devices = options.one_number("place", request.devices)
    question = PiperQuestion(devices=devices, **choices)
    stored = read_instance(instance)
    try:
        # Compiled code plans several levels, and Ctrl-C cannot interrupt it.
        with telling("place"), ended_at_once() if question.levels else nullcontext():
            return as_text(answer(stored, question))
    except DownsetsError as error:
        raise PhazeError(f"{instance}: {error}", "see --max-downsets and --paper-table1") from error


def _refuse_options_of_models(context: typer.Context, *, piper: bool) -> None:
    """Raise PhazeError for options that do not apply to an instance file."""
    apply = {"context", "instance", "planner", "out", "as_json", *options.flags(PiperChoices)}
    flags = {name: flag for name, flag in options.flags(PlaceOptions).items() if name not in apply}
    if piper:
        del flags["devices"]
    message = "place: {} does not apply to the instance file of this planner"
    options.refuse(context, flags, message)
