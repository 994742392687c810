"""Base of document types that take fields from dataclasses, such as the fields of a layout."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from inspect import get_annotations
from typing import Annotated, get_args, get_origin

from pydantic import Field

from phaze.layout import READERS, Compute, Number, Truth, Zero, ZeroStage
from phaze.spec.noun import Noun
from phaze.spec.values import Count, ExpertLoad, Flag, Positive, PositiveInt, Text, read_by

KINDS: dict[object, object] = {
    Number: PositiveInt,
    int: PositiveInt,
    Truth: Flag,
    ZeroStage: Zero,
    "int": Count,
    "bool": Flag,
    "str": Text,
    float | None: Positive | None,
}
"""Type in documents for each type of a dataclass field."""
OPTIONS: dict[str, object] = {
    **{name: Annotated[str, read_by(read)] for name, read in READERS.items()},
    "load": ExpertLoad,
    "compute": Compute,
}
"""Types in documents of layout options, by option."""


def _bare(kind: object) -> object:
    """Type of a field without the description of its option."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


class DerivedNoun(Noun):
    """Base of document types that include the fields of the dataclasses they also derive from."""

    def __init_subclass__(cls, required: tuple[str, ...] = ()) -> None:
        """Declare the dataclass fields with their types in documents; `required` ones have no default."""
        annotations = {
            field.name: OPTIONS[field.name] if field.name in OPTIONS else KINDS[_bare(field.type)]
            for base in cls.__bases__
            if is_dataclass(base)
            for field in fields(base)
        }
        # Fields of the class itself come last, so that they may redefine those of the dataclass.
        cls.__annotations__ = {**annotations, **get_annotations(cls)}
        for name in required:
            setattr(cls, name, Field())
