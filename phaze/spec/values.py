"""Types of values in files that users write: numbers, names, texts and locations."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from phaze.base.errors import PhazeError
from phaze.base.nearest import choices
from phaze.base.printed import one_line
from phaze.layout import Load, load_of
from phaze.spec.names import MOST

EXPONENT = re.compile(r"[0-9]+\.?[0-9]*[eE][-+]?[0-9]+")
T = TypeVar("T")
LEAST_SIZE, MOST_SIZE = 1e-30, 1e30
"""Range of bytes and seconds in which sums and quotients neither overflow nor vanish."""


def as_number(value: object) -> object:
    """Convert a string such as 1e12 (a string in YAML 1.1) to a number; return other values unchanged."""
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


def _whole(value: object) -> object:
    """Convert integral values (8.0, or a string such as 1e3) to int; return other values unchanged."""
    value = as_number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _bounded(value: float) -> float:
    # Zero is exact, so it cannot vanish.
    if value and not LEAST_SIZE <= value <= MOST_SIZE:
        raise ValueError(f"must be from {LEAST_SIZE:g} to {MOST_SIZE:g}")
    return value


def _one_line(text: str) -> str:
    if text != one_line(text):
        raise ValueError("must be one line without control characters")
    return text


def _once(values: tuple[object, ...]) -> tuple[object, ...]:
    for value, _ in repeated(values):
        raise ValueError(f"{value!r} is given twice")
    return values


def repeated(values: Iterable[T]) -> list[tuple[T, int]]:
    """Values that occur more than once, each with its number of occurrences."""
    return [(value, times) for value, times in Counter(values).items() if times > 1]


def refuse_unknown(where: str, names: Iterable[str], allowed: Iterable[str], of: str = "") -> None:
    """Raise ValueError for the first unknown name; `of` describes the known names."""
    for name in names:
        if name not in allowed:
            shown = choices(name, sorted(allowed), of or "the study")
            raise ValueError(f"{where}: {name!r} is not among {f'{of} ' if of else ''}{shown}")


def without_nulls(value: object) -> object:
    """Drop null values, by which a study removes entries of the default study."""
    entries = {} if value is None else value
    return {k: v for k, v in entries.items() if v is not None} if isinstance(entries, dict) else entries


def read_by(read: Callable[[str], T]) -> AfterValidator:
    """Validator that parses a string with `read`, and turns its PhazeError into a ValueError."""

    def check(text: str) -> T:
        try:
            return read(text)
        except PhazeError as error:
            raise ValueError(str(error)) from error

    return AfterValidator(check)


Once = AfterValidator(_once)
"""Validator of a list without duplicates."""
WHOLE, NUMBER = BeforeValidator(_whole), BeforeValidator(as_number)
"""Validators of numbers; they must follow all constraints so that the reference pages list these."""
Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True), WHOLE]
Index = Annotated[int, Field(strict=True, ge=0), WHOLE]
"""Index, counted from 0."""
Seed = Annotated[int, Field(strict=True, ge=0, le=2**31), WHOLE]
PositiveInt = Annotated[int, Field(strict=True, gt=0, le=2**31), WHOLE]
Count = Annotated[int, Field(strict=True, gt=0, le=MOST), WHOLE]
"""Integer from 1 to MOST, such as a number of devices in a file, an option or a table of a study."""
Result = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False), NUMBER]
"""Non-negative number computed from other values."""
Size = Annotated[Result, AfterValidator(_bounded)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False), NUMBER, AfterValidator(_bounded)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1), NUMBER]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1), NUMBER]
Part = Annotated[float, Field(strict=True, gt=0, le=1), NUMBER]

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=60)]
"""Name of lower-case letters, digits, hyphens and dots, so that it can also be a file name."""
Chip = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)]
"""Name of a chip: letters, digits, hyphens, underscores and dots, so that it can also be a file name."""
ONE_LINE = AfterValidator(_one_line)
"""Validator of text that people read: one line without control characters.

A line end would otherwise end a comment of a written file, and what follows would be code.
"""
Text = Annotated[str, ONE_LINE]
"""Text that people read, such as a sentence."""
Label = Annotated[str, StringConstraints(min_length=1, max_length=200), ONE_LINE]
Month = Annotated[str, StringConstraints(pattern=r"^20[0-9][0-9]-(0[1-9]|1[0-2])$")]
"""Short text that people read, such as a title or a key."""
Location = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^{}<>\x00]*$"), ONE_LINE
]
"""Name of a configuration file, or a path.

Excludes characters that no path has, or that the workflow would expand inside a rule.
"""
ExpertLoad = Annotated[Load, read_by(load_of), BeforeValidator(lambda value: f"{value}")]
"""Expert load of the busiest rank: `balanced`, `natural`, a factor over balanced routing, or a routing law,
`power_law_a` or `max_vio_v`."""
