"""Options shared by several commands."""

import math
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields
from decimal import Decimal
from functools import wraps
from inspect import Parameter, Signature, get_annotations
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from phaze.base.errors import PhazeError
from phaze.commands import completion
from phaze.spec import names
from phaze.spec.questions import Described

Options = TypeVar("Options")
MOST = 2**31
"""Largest accepted number of samples or tokens."""
MOST_STEP_TOKENS = 2**26
"""Largest accepted number of tokens of a step whose batch is given in samples, 16 times the default batch."""
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
"""Decimal suffixes of numbers, case-insensitive; b is a billion."""
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e[-+]?[0-9]{1,3})?|[0-9]+\.)([kmgbt]?)", re.IGNORECASE)
_NUMBER = "0*[1-9][0-9]{0,7}"
"""Pattern of a number of devices or nodes."""
EmitOption = Literal["bridge", "torch", names.WrittenRuntime]
"""Runtimes for which plans can be written: Megatron-Bridge trains with Megatron-Core, as Megatron-LM does;
torch is torch.distributed.pipelining, for the stages of `phaze partition`."""
RuntimeOption = Literal["bridge", names.TrainingRuntime]
"""Runtimes for which layouts can be planned."""


def readable(path: Path | None) -> Path | None:
    """Check an input file and return its path unchanged; PhazeError if unreadable, before slow imports."""
    from phaze.spec.plain import refuse_unreadable

    if path is not None:
        refuse_unreadable(path)
    return path


def known_model(name: str | None) -> str | None:
    """Check a model's name, id or path, and return its file's name or path; PhazeError if unknown."""
    from phaze.spec.files import model_path

    path = readable(None if name is None else model_path(name))
    if path is None or name is None or Path(name) == path:
        return name
    return str(path) if path.name == "config.json" else path.stem


def known_system(name: str | None) -> str | None:
    """Check a system's name and return it in the spelling of its file; PhazeError if unknown."""
    from phaze.spec.files import is_path, system_path

    path = readable(None if name is None else system_path(name))
    return name if path is None or name is None or is_path(name) else path.stem


def known_chip(name: str) -> str:
    """Name of an architecture's or device's file, or its path unchanged; PhazeError if unknown."""
    from phaze.spec.systems import chip_path

    path = chip_path(name)
    return name if Path(name) == path else path.stem


def known_stack(name: str | None) -> str | None:
    """Check a software stack's name or path and return it unchanged; PhazeError if unknown."""
    from phaze.spec.files import stack_path

    readable(None if name is None else stack_path(name))
    return name


def cluster(
    verb: str, gpus: str | None, system: str | None, devices: str | None, nodes: str | None = None
) -> tuple[str, str | None]:
    """System and number of devices, from --gpus or from --system with --devices or --nodes.

    Several numbers stay separated by commas. PhazeError if the system is unknown or the options contradict.
    """
    if gpus is None and system is None:
        raise PhazeError(
            f"{verb}: the cluster is missing", "pass --gpus, such as --gpus 256xH100, or --system"
        )
    if gpus is not None:
        match = re.fullmatch(rf"({_NUMBER}(?:,{_NUMBER})*)x([^,]+)", gpus, re.IGNORECASE)
        if match is None:
            several = "for several numbers of devices: --gpus 64,128xH100; `phaze systems` lists the systems"
            is_number = re.fullmatch(rf"{_NUMBER}(?:,{_NUMBER})*", gpus)
            raise PhazeError(
                f"{verb}: --gpus: must be a number, x and a system, such as 256xH100, got {gpus}",
                f"--gpus {gpus}x{system}" if is_number and system else several,
            )
        if system is not None or devices is not None or nodes is not None:
            raise PhazeError(f"{verb}: --gpus {gpus} already sets --system and --devices", "leave these out")
        devices, system = match.groups()
    named = str(known_system(system))
    return named, devices if nodes is None else _devices_of(verb, nodes, named, devices)


def _devices_of(verb: str, nodes: str, system: str, devices: str | None) -> str:
    """Numbers of devices of numbers of nodes; a node is the innermost group of the system's network."""
    from phaze.spec.systems import load_cluster

    if devices is not None:
        raise PhazeError(f"{verb}: --nodes {nodes} and --devices both set the devices", "pass only one")
    if re.fullmatch(rf"{_NUMBER}(?:,{_NUMBER})*", nodes) is None:
        raise PhazeError(f"{verb}: --nodes: must be whole numbers >= 1, such as 8 or 8,16, got {nodes}")
    node = load_cluster(system)[0].levels[0].devices
    return ",".join(str(int(number) * node) for number in nodes.split(","))


def one_number(verb: str, devices: str | None) -> int | None:
    """Number of devices of a command that accepts only one."""
    if devices is not None and "," in devices:
        raise PhazeError(
            f"{verb}: accepts one number of devices, got {devices}", "`phaze plan` compares several"
        )
    if devices is not None and not (devices.isdecimal() and int(devices) > 0):
        raise PhazeError(f"{verb}: --devices: must be a whole number >= 1, got {devices}")
    return None if devices is None else int(devices)


def whole_numbers(text: str | int) -> tuple[int, ...]:
    """Parse whole numbers separated by commas, such as 4,8; BadParameter if malformed."""
    parts = str(text).split(",")
    numbers = tuple(int(part) for part in parts if part.strip().isdecimal())
    if len(numbers) < len(parts) or not all(1 <= number <= names.MOST for number in numbers):
        raise typer.BadParameter(
            f"must be whole numbers, each greater than or equal to 1 and less than or equal to {names.MOST}, "
            f"separated by commas, such as 4,8, got {text}"
        )
    return numbers


def _joined(numbers: list[tuple[int, ...]] | None) -> list[int] | None:
    """Numbers of an option that was repeated, in one list; None if it was not given."""
    return [width for widths in numbers for width in widths] if numbers else None


def amount(text: str | float) -> float:
    """Parse a number such as 15T or 4e6; BadParameter if malformed."""
    if match := _AMOUNT.fullmatch(str(text)):
        # In floating point 4.1 million is no whole number.
        return float(Decimal(match[1]) * SUFFIXES[match[2].lower()])
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"must be a number, optionally with the suffix k, M, G or T, such as 15T, got {text}"
        ) from error


class Money(float):
    """Amount of money, with its currency as the user wrote it."""

    currency: str = ""


AMOUNT = re.compile(r"([^\d.\s+-]{0,4})\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d.\s]{0,4})")
"""Number with a currency before or after it; an e belongs to the number only before digits, not in EUR."""


def money(text: str | float) -> Money:
    """Parse an amount with an optional currency, such as 2.5USD, USD 2.5 or $2.5; BadParameter otherwise."""
    match = re.fullmatch(AMOUNT, str(text))
    try:
        price = Money(match[2] if match else text)
    except ValueError as error:
        raise typer.BadParameter(
            f"must be a number, optionally with a currency, such as 2.5 or 2.5USD, got {text}"
        ) from error
    price.currency = match[1] or match[3] if match else ""
    return price


def count(text: str | int) -> int:
    """Parse a whole number such as 4M; BadParameter if malformed."""
    value = amount(text)
    if not (value.is_integer() and 1 <= value <= MOST):
        raise typer.BadParameter(
            f"must be a whole number from 1 to {MOST}, optionally with the suffix k, M, G or T, "
            f"such as 4M, got {text}"
        )
    return int(value)


def compute(text: str) -> str:
    """Canonical name of a compute precision; BadParameter if unknown."""
    from phaze.layout import compute_of

    return _parsed(compute_of, text)


def load(text: str) -> str:
    """Parse an expert load, such as balanced or power_law_x; BadParameter if malformed."""
    from phaze.layout import load_of

    return _parsed(load_of, text)


def _parsed(parse: Callable[[str], str], text: str) -> str:
    """Parse a text; a parser's PhazeError becomes BadParameter, without the first word of its message."""
    try:
        return parse(text)
    except PhazeError as error:
        raise typer.BadParameter(str(error).partition(" ")[2]) from error


def batch_samples(
    verb: str, global_batch: int | None, batch_tokens: int | None, sequence: int, devices: int | None = None
) -> int | None:
    """Batch size in samples, given in samples or in tokens.

    Tokens are rounded down to whole samples, or to the nearest batch that the `devices` share equally. None
    if neither is given; PhazeError if both are, if the tokens are fewer than one sample, or if the samples
    have so many tokens that they are likely meant as tokens.
    """
    if batch_tokens is None:
        tokens = (global_batch or 0) * sequence
        if tokens > MOST_STEP_TOKENS:
            raise PhazeError(
                f"{verb}: --global-batch: must have at most {MOST_STEP_TOKENS:,} tokens (64 Mi), got "
                f"{global_batch:,} samples of {sequence:,} tokens, which are {tokens:,}",
                f"pass --batch-tokens {global_batch} if you mean {global_batch:,} tokens, without a limit",
            )
        return global_batch
    if global_batch is not None:
        raise PhazeError(
            f"{verb}: --global-batch (samples) and --batch-tokens both set the batch", "pass only one"
        )
    if batch_tokens < sequence:
        raise PhazeError(
            f"{verb}: --batch-tokens: must be at least {sequence}, the tokens of one sample, got "
            f"{batch_tokens}"
        )
    if devices is None:
        return batch_tokens // sequence
    from phaze.spec.training_plan import nearest_batch

    return nearest_batch(batch_tokens / sequence, devices)


def optional_cluster(
    verb: str, gpus: str | None, system: str | None, devices: int | None
) -> tuple[str | None, int | None]:
    """System and number of devices, from --gpus or the separate options; None for an option not given."""
    if gpus is None:
        return system, devices
    named, number = cluster(verb, gpus, system, None if devices is None else str(devices))
    return named, one_number(verb, number)


GpusOption = Annotated[
    str | None,
    typer.Option(
        help="Number of devices and their system, such as 256xH100; short for --devices 256 --system h100.",
        autocompletion=completion.gpus,
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(help="Number of nodes instead of --devices; needs --system.", metavar="N"),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Model: a name in config/models, a Hugging Face id, or a path of a spec, a Hugging Face "
        "config.json or a traced model.",
        callback=known_model,
        autocompletion=completion.models,
    ),
]
PlanArgument = Annotated[
    Path, typer.Argument(metavar="PLAN", help="Plan written by `phaze plan -o PLAN.json`.", callback=readable)
]
MODEL = typer.Option(
    "--model",
    "-m",
    help="Model: a name in config/models, a Hugging Face id, or a path of a spec or of a Hugging Face "
    "config.json.",
    callback=known_model,
    autocompletion=completion.models,
)
ModelOption = Annotated[str, MODEL]
SequenceOption = Annotated[
    int | None,
    typer.Option(
        "--sequence",
        "--seq-length",
        help="Tokens in a sample, such as 8k (8,000). Default: 8192, or the model's longest sequence if "
        "shorter.",
        parser=count,
        metavar="N",
    ),
]
PlannedBatchOption = Annotated[
    int | None,
    typer.Option(
        "--global-batch",
        "--gbs",
        help="Samples in a global batch. Default: 4 Mi tokens, or 1,024 tokens per device if that is more.",
        parser=count,
        metavar="N",
    ),
]
LevelsOption = Annotated[
    str | None,
    typer.Option(
        help="System: a name in config/systems, or a path. It must have a device and network levels.",
        autocompletion=completion.systems,
    ),
]
SetOption = Annotated[
    str | None,
    typer.Option(
        "--set", help="Values of fields that a trace does not determine, such as experts.per_token=2."
    ),
]
SEVERAL = typer.Option(parser=whole_numbers, callback=_joined, metavar="N,N")
"""Option for whole numbers, separated by commas."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Options for the workload of a study stage: model, TMP widths and microbatches."""

    model: ModelOption
    sequence: SequenceOption = None
    tensor: Annotated[list[int] | None, SEVERAL] = None
    """Tensor-parallel widths, such as 4,8."""
    microbatch: Annotated[list[int] | None, SEVERAL] = None
    """Samples in a microbatch, such as 1,2."""
    backward: names.Backward = "paired"
    """Backward pass of an operator: one operator for all gradients (paired), or one per gradient (split)."""
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class ArchitectureOptions:
    """Options for the accelerator: architecture, system and bandwidth."""

    architecture: Annotated[str, typer.Option("--architecture", "-a", autocompletion=completion.chips)] = (
        "tpu-v4-as-built"
    )
    """Accelerator: a name in config/architectures or config/devices, or a path."""
    system: Annotated[str, typer.Option(callback=known_system, autocompletion=completion.systems)] = (
        "tpu-v4-pod"
    )
    """System: a name in config/systems, or a path."""
    flat_bandwidth: Annotated[float | None, typer.Option(metavar="BYTES_PER_S", parser=amount)] = None
    """Bandwidth between any two devices, such as 25G; required if the system has network levels."""


def flags(noun: type) -> dict[str, str]:
    """Option name of every field of a dataclass, by field name."""
    return {name: names[0] for name, names in _flags(noun).items()}


def _flags(noun: type) -> dict[str, tuple[str, ...]]:
    """Option names of every field of a dataclass, by field name."""
    hints = get_type_hints(noun, include_extras=True)
    described = {field.name: description_of(hints[field.name]) for field in fields(noun)}
    return {
        name: (field and field.flags) or (f"--{name.replace('_', '-')}",) for name, field in described.items()
    }


def description_of(hint: object) -> Described | None:
    """Description of an annotated field, from which its option is made; None without one."""
    metadata = getattr(hint, "__metadata__", ())
    return next((part for part in metadata if isinstance(part, Described)), None)


def _with_option(hint: object, flags: tuple[str, ...], panel: str | None) -> object:
    """Annotation of a command's parameter, with the option that a field implies and the panel of its help."""
    if hint is typer.Context:
        return hint
    kind, *metadata = parts_of(hint)
    # Several commands share an option.
    option = copy(next((part for part in metadata if isinstance(part, ParameterInfo)), typer.Option()))
    if described := description_of(hint):
        parser = parser_of(described)
        option.help, option.min, option.parser = described.text, described.least, parser
        option.metavar = "N" if parser else None
    if isinstance(option, OptionInfo):
        if option.default is ...:  # Typer reads the first name of an option as its default
            option.param_decls = flags
        option.rich_help_panel = panel
    return Annotated[kind, option]


def parts_of(hint: object) -> tuple[object, ...]:
    """Type of an annotation, then what it is annotated with."""
    return get_args(hint) if get_origin(hint) is Annotated else (hint,)


def parser_of(described: Described) -> Callable[[str | float], float] | None:
    """Parser of numbers with a suffix or a currency."""
    return amount if described.with_suffix else money if described.with_currency else None


def takes(
    noun: type[Options], panels: Mapping[type, str] | None = None
) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Decorator: turn a function of one dataclass into a command with an argument or option for each field.

    The docstring of a field is the text of its option (`Verb`). In help, options of a class precede those of
    its base classes, and stand in the panel of their class.
    """
    names, hints = _flags(noun), get_type_hints(noun, include_extras=True)
    # Fields of a dataclass begin with those of its base classes; help is clearer the other way round.
    annotations = {base: get_annotations(base) for base in noun.__mro__}
    owners = {name: next(base for base in annotations if name in annotations[base]) for name in names}
    hints = {name: _with_option(hints[name], names[name], (panels or {}).get(owners[name])) for name in names}

    def rank(field: Field[object]) -> int:
        return noun.__mro__.index(owners[field.name])

    ordered = sorted(fields(noun), key=rank)  # type: ignore[arg-type]

    def verb(run: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(run)
        def command(**values: object) -> None:
            run(noun(**values))

        command.noun = noun  # type: ignore[attr-defined]
        # Typer reads the parameters of a command from its signature, not from the dataclass.
        command.__annotations__ = hints
        command.__signature__ = Signature([  # type: ignore[attr-defined]
            Parameter(
                field.name, Parameter.KEYWORD_ONLY, annotation=hints[field.name],
                default=Parameter.empty if field.default is MISSING else field.default,
            )
            for field in ordered
        ])  # fmt: skip
        return command

    return verb


def is_given(context: typer.Context, name: str) -> bool:
    """True if the user gave this parameter on the command line or from Python."""
    if isinstance(context.obj, frozenset):
        return name in context.obj
    # A default and the same value given by the user differ only in their source.
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unless_positive(verb: str, **values: float | None) -> None:
    """Raise PhazeError for any given option that is not a finite number above 0."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise PhazeError(
                f"{verb}: --{name.replace('_', '-')}: must be a finite number > 0, got {value:g}"
            )


def refuse(context: typer.Context, names: Mapping[str, str], message: str) -> None:
    """Raise PhazeError if the user gave one of these options; `{}` in the message stands for its name."""
    for name, option in names.items():
        if is_given(context, name):
            raise PhazeError(message.format(option))
