"""Options of a command from Python values, parsed and checked like those of a shell."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ParameterInfo

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean, nearest
from phaze.commands import options

Options = TypeVar("Options")


def refuse_unknown(verb: str, names: Iterable[str], allowed: Collection[str]) -> None:
    """Raise TypeError for the first name that is none of the allowed options, as Python does for a call."""
    for name in names:
        if name not in allowed:
            near = nearest(name, allowed)[:1]
            raise TypeError(f"{verb}: no option {name}" + (f"; did you mean {near[0]}?" if near else ""))


def request_of(noun: type[Options], verb: str, values: Mapping[str, object]) -> Options:
    """Options of a command from Python values by field name, parsed and checked like those of a shell.

    Fields without a value have the command's default. TypeError for an unknown name, PhazeError for a value.
    """
    hints = get_type_hints(noun, include_extras=True)
    refuse_unknown(verb, values, [field.name for field in fields(noun)])  # type: ignore[arg-type]
    try:
        parsed = {name: _checked(verb, name, hints[name], value) for name, value in values.items()}
    except typer.BadParameter as error:
        raise PhazeError(f"{verb}: {error.message}") from error
    if "context" in hints:
        parsed["context"] = typer.Context(TyperCommand(verb), obj=frozenset(parsed))
    return noun(**parsed)


def _checked(verb: str, name: str, hint: object, value: object) -> object:
    """Value of an option as the command line would parse it; BadParameter or PhazeError if not allowed."""
    if value is None:
        return None
    described, (kind, *metadata) = options.description_of(hint), options.parts_of(hint)
    option = next((part for part in metadata if isinstance(part, ParameterInfo)), None)
    parser = option.parser if option else options.parser_of(described) if described else None
    if parser is options.whole_numbers:
        several = [value] if isinstance(value, int | float | str) else cast("list[object]", value)
        return [number for item in several for number in options.whole_numbers(str(item))]
    if parser is not None:
        value = parser(str(value))
    kinds = get_args(kind) or (kind,)
    allowed = [choice for part in (kind, *kinds) if get_origin(part) is Literal for choice in get_args(part)]
    if allowed and value not in allowed:
        raise PhazeError(
            f"{verb}: {name}: must be one of {', '.join(allowed)}, got {value}",
            did_you_mean(str(value), allowed, ""),
        )
    value = _of_kind(verb, name, value, kinds, parsed=parser is not None)
    if option:
        _check_range(verb, name, value, option)
    return option.callback(value) if option and option.callback else value


def _of_kind(verb: str, name: str, value: object, kinds: Sequence[object], *, parsed: bool) -> object:
    """Value of an option as one of its types, from what Python callers pass for it."""
    if Path in kinds:
        return Path(str(value))
    if list[str] in kinds:
        return [value] if isinstance(value, str) else value
    if str in kinds and isinstance(value, Collection) and not isinstance(value, str):
        return ",".join(map(str, value))  # numbers of devices, or names
    if str in kinds:
        return str(value)
    if not parsed and (int in kinds or float in kinds) and bool not in kinds:
        return _number(verb, name, value, whole=float not in kinds)
    return value


def _check_range(verb: str, name: str, value: object, option: ParameterInfo) -> None:
    """Raise PhazeError for a number outside the range of an option."""
    if not isinstance(value, int | float):
        return
    if option.min is not None and value < option.min:
        raise PhazeError(f"{verb}: {name}: must be >= {option.min}, got {value}")
    if option.max is not None and value > option.max:
        raise PhazeError(f"{verb}: {name}: must be <= {option.max}, got {value}")


def _number(verb: str, name: str, value: object, *, whole: bool) -> float:
    """Number of an option, as the command line parses its text; PhazeError for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or (whole and not number.is_integer()):
        raise PhazeError(f"{verb}: {name}: must be a {'whole ' * whole}number, got {value}")
    return int(number) if whole else number
