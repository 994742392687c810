"""Options that several verbs have."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer

from phaze.base.errors import PhazeError


class Backward(StrEnum):
    """Forms of the backward pass."""

    PAIRED = "paired"
    SPLIT = "split"


def known_model(name: str | None) -> str | None:
    """Name of a model as given; PhazeError where it is misspelt, before what computes is imported."""
    from phaze.spec.files import model_path

    if name is not None:
        model_path(name)
    return name


def known_system(name: str | None) -> str | None:
    """The same for a system."""
    from phaze.spec.files import system_path

    if name is not None:
        system_path(name)
    return name


def known_stack(name: str | None) -> str | None:
    """The same for a software stack."""
    from phaze.spec.files import stack_path

    if name is not None:
        stack_path(name)
    return name


def cluster(verb: str, gpus: str | None, system: str | None, devices: str | None) -> tuple[str, str | None]:
    """System and numbers of devices, from one option or two; PhazeError for a misspelt system."""
    if gpus is None and system is None:
        raise PhazeError(f"{verb}: --gpus or --system must be given, such as --gpus 256xH100")
    if gpus is not None:
        count, times, name = gpus.lower().partition("x")
        if not times or not name or not count.isdecimal():
            raise PhazeError(f"{verb}: --gpus: must be a number and a system such as 256xH100, got {gpus}")
        if system is not None or devices is not None:
            raise PhazeError(
                f"{verb}: --gpus {gpus} stands for --system and --devices, which must not be given"
            )
        system, devices = name, count
    known_system(system)
    return str(system), devices


GpusOption = Annotated[
    str | None,
    typer.Option(help="Devices and their system in one, as 256xH100, for --devices and --system."),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Spec in config/models, or path of one or of a Hugging Face config.json.",
        callback=known_model,
    ),
]
ArchitectureOption = Annotated[
    str,
    typer.Option(
        "--architecture", "-a", help="File in config/architectures or config/devices, or path of one."
    ),
]
SequenceOption = Annotated[
    int | None,
    typer.Option(help="Tokens of a sample; 8192 unless given, or all where a model has fewer.", min=1),
]
TensorOption = Annotated[list[int] | None, typer.Option(help="TMP width; may be repeated.", min=1)]
MicrobatchOption = Annotated[list[int] | None, typer.Option(help="Microbatch; may be repeated.", min=1)]
SystemOption = Annotated[
    str, typer.Option(help="File in config/systems, or path of one.", callback=known_system)
]
FlatBandwidthOption = Annotated[
    float | None,
    typer.Option(
        "--flat-bandwidth",
        metavar="BYTES_PER_S",
        help="Bandwidth assumed between any two devices; needed for a system with levels.",
    ),
]
BackwardOption = Annotated[Backward, typer.Option(help="Gradients of an operator together, or apart.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

PlanModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Workload of the plan.")]
PlanArchitectureOption = Annotated[
    str | None, typer.Option("--architecture", "-a", help="Architecture of the plan.")
]
PlanHbmGibOption = Annotated[float | None, typer.Option(help="HBM of the plan's devices, GiB.", min=0)]
PlanPlannerOption = Annotated[str | None, typer.Option(help="Whose plan; the fastest unless given.")]
PLAN = {
    "model": "--model", "architecture": "--architecture", "hbm_gib": "--hbm-gib", "planner": "--planner",
}  # fmt: skip
"""Options that say which plan of a study is meant, by parameter."""


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter of the verb is in the command."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unless_positive(verb: str, **values: float | None) -> None:
    """Raise PhazeError for an option that is given, by parameter, and no finite number above 0."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise PhazeError(f"{verb}: --{name.replace('_', '-')}: must be a number > 0, got {value:g}")


def refuse(context: typer.Context, names: Mapping[str, str], message: str) -> None:
    """Raise PhazeError where one of these options, by parameter, is in the command; `{}` is its name."""
    for name, option in names.items():
        if is_given(context, name):
            raise PhazeError(message.format(option))
