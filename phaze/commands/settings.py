"""Options of a command that are the fields of a noun: names, help and choices come from the noun."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from inspect import Parameter, Signature
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args, get_origin

import typer

from phaze.base.docstrings import documentation_of
from phaze.base.errors import PhazeError

if TYPE_CHECKING:
    from phaze.spec.noun import Noun

_GIVEN = "phaze.settings"
"""Key of a context's `meta` with the settings that the user gave, by field."""
_NUMBERS = {int: "N", float: "NUMBER", str: "TEXT"}


def setting_params(noun: type[Noun], declared: Collection[str]) -> list[typer.core.TyperOption]:
    """Options for the fields of a noun, without those that the command declares itself.

    Fields that hold several values take them separated by commas; nested values are written as YAML.
    """
    texts = documentation_of(noun)

    def command() -> None:
        """Function with the signature from which Typer derives the options."""

    annotations = {
        name: _option(name, field.annotation, texts.get(name, ""), _default(field.get_default()))
        for name, field in noun.model_fields.items()
        if name not in declared
    }
    command.__annotations__ = annotations
    command.__signature__ = Signature([  # type: ignore[attr-defined]
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=None)
        for name, annotation in annotations.items()
    ])  # fmt: skip
    app = typer.Typer(add_completion=False)
    app.command()(command)
    params = typer.main.get_command(app).params
    return [param for param in params if isinstance(param, typer.core.TyperOption)]


def given_settings(context: typer.Context, noun: type[Noun]) -> dict[str, object]:
    """Settings that the user gave as options, by field; PhazeError if one is no valid YAML."""
    settings: Mapping[str, str | bool] = context.meta.get(_GIVEN, {})
    return {name: _parsed(name, noun, text) for name, text in settings.items()}


def _option(name: str, annotation: object, text: str, default: str) -> object:
    """Annotation of an option that stores its text in the context."""

    def store(context: typer.Context, value: str | bool | None) -> None:
        if value is not None:
            context.meta.setdefault(_GIVEN, {})[name] = value

    flag = f"--{name.replace('_', '-')}"
    help_text = " ".join(text.split()).replace("…", "...") + (f" Default: {default}." if default else "")
    if annotation is bool:
        both = f"{flag}/--no-{name.replace('_', '-')}"
        return Annotated[bool | None, typer.Option(both, help=help_text, callback=store, expose_value=False)]
    shown = "|".join(dict.fromkeys(_choices(annotation)))
    return Annotated[
        str | None,
        typer.Option(flag, help=help_text, callback=store, expose_value=False, metavar=shown or "YAML"),
    ]


def _choices(annotation: object) -> Iterator[str]:
    """Allowed words of a type, or the kinds of its numbers; nothing for nested values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _NUMBERS:
        yield _NUMBERS[annotation]
    elif origin is Literal:
        yield from map(str, arguments)
    elif origin is Annotated or hasattr(annotation, "__metadata__"):
        yield from _choices(arguments[0])
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from _choices(argument)
    elif origin is tuple and get_origin(arguments[0]) is not tuple:
        for word in _choices(arguments[0]):
            yield f"{word}[,{word}]" if word in _NUMBERS.values() else word


def _default(value: object) -> str:
    """Default as the user would write it; empty if there is none."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None or not isinstance(value, (str, int, float)) or value is False else str(value)


def _parsed(name: str, noun: type[Noun], text: str | bool) -> object:
    """Value of a setting from its text: YAML, or values separated by commas for a list."""
    from phaze.spec.strict_yaml import load

    if isinstance(text, bool):
        return text
    annotation = noun.model_fields[name].annotation
    # A field that takes a list or a single value gets a list only if there are several values.
    bare = not text.lstrip().startswith(("[", "{"))
    lists = get_origin(annotation) is tuple or ("," in text and _has_list(annotation))
    try:
        return load(f"[{text}]" if bare and lists else text)
    except ValueError as error:
        raise PhazeError(f"--{name.replace('_', '-')}: must be YAML, got {text}: {error}") from error


def _has_list(annotation: object) -> bool:
    """True if a type is a sequence, or a union with one."""
    return get_origin(annotation) is tuple or any(map(_has_list, get_args(annotation)))
