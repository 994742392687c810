"""Documents with the fields of dataclasses, such as those of a layout, from which they derive."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from inspect import get_annotations
from typing import Annotated

from pydantic import Field

from phaze.layout import READERS, Compute, Number, Truth, Zero, ZeroStage
from phaze.spec.noun import Noun
from phaze.spec.values import Count, ExpertLoad, Flag, PositiveInt, read_by

KINDS: dict[object, object] = {
    Number: PositiveInt,
    Truth: Flag,
    ZeroStage: Zero,
    "int": Count,
    "bool": Flag,
    "str": str,
}
"""Types in documents, by the type of a field."""
OPTIONS: dict[str, object] = {
    **{name: Annotated[str, read_by(read)] for name, read in READERS.items()},
    "load": ExpertLoad,
    "compute": Compute,
}
"""Types of the options of a layout in documents, by name."""


class DerivedNoun(Noun):
    """Base of documents that also derive from dataclasses, whose fields become theirs."""

    def __init_subclass__(cls, required: tuple[str, ...] = ()) -> None:
        """Declare the fields of the dataclasses with the types of documents; `required` have no default."""
        found = {
            field.name: OPTIONS[field.name] if field.name in OPTIONS else KINDS[field.type]
            for base in cls.__bases__
            if is_dataclass(base)
            for field in fields(base)
        }
        cls.__annotations__ = {**found, **get_annotations(cls)}
        for name in required:
            setattr(cls, name, Field())
