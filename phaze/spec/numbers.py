"""Numbers in files that users write: never text or a truth value, finite, within what sums can hold."""

import re
from math import isfinite
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from phaze.spec.names import MOST

EXPONENT = re.compile(r"[0-9]+\.?[0-9]*[eE][-+]?[0-9]+")


def _number(value: object) -> object:
    """Refuse what pydantic would turn into a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("must be a finite number")
    return value


def as_number(value: object) -> object:
    """Number that a text such as 1e12 means, which YAML 1.1 takes for a text; else the value."""
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


LEAST_SIZE, MOST_SIZE = 1e-30, 1e30
"""Bytes and seconds between which sums and quotients neither overflow nor vanish."""


def _bounded(value: float) -> float:
    if value and not LEAST_SIZE <= value <= MOST_SIZE:
        raise ValueError(f"must be from {LEAST_SIZE:g} to {MOST_SIZE:g}")
    return value


Whole = Annotated[int, BeforeValidator(_number)]
Index = Annotated[Whole, Field(ge=0)]
"""Counted from 0."""
Size = Annotated[float, BeforeValidator(_number), Field(ge=0), AfterValidator(_bounded)]
Result = Annotated[float, BeforeValidator(_number), Field(ge=0)]
"""What sums, products and quotients of sizes come to."""
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0), AfterValidator(_bounded)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, le=MOST)]
