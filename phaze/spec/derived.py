"""Base of document types that take fields from dataclasses, such as the fields of a layout."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from inspect import get_annotations
from typing import Annotated

from pydantic import Field

from phaze.layout import READERS, Compute, Number, Truth, Zero, ZeroStage
from phaze.spec.noun import Noun
from phaze.spec.values import Count, ExpertLoad, Flag, PositiveInt, Text, read_by

KINDS: dict[object, object] = {
    Number: PositiveInt,
    int: PositiveInt,
    Truth: Flag,
    ZeroStage: Zero,
    "int": Count,
    "bool": Flag,
    "str": Text,
}
"""Type in documents for each type of a dataclass field."""
OPTIONS: dict[str, object] = {
    **{name: Annotated[str, read_by(read)] for name, read in READERS.items()},
    "load": ExpertLoad,
    "compute": Compute,
}
"""Types in documents of layout options, by option."""


class DerivedNoun(Noun):
    """Base of document types that include the fields of the dataclasses they also derive from."""

    def __init_subclass__(cls, required: tuple[str, ...] = ()) -> None:
        """Declare the dataclass fields with their types in documents; `required` ones have no default."""
        annotations = {
            field.name: OPTIONS[field.name] if field.name in OPTIONS else KINDS[field.type]
            for base in cls.__bases__
            if is_dataclass(base)
            for field in fields(base)
        }
        # Fields of the class itself come last, so that they may redefine those of the dataclass.
        cls.__annotations__ = {**annotations, **get_annotations(cls)}
        for name in required:
            setattr(cls, name, Field())
