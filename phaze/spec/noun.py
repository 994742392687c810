"""Base class of all types that users write in files: strict, frozen, documented."""

import ast
import inspect
import sys
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Self, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean, nearest
from phaze.base.printed import one_line
from phaze.spec.files import read_mapping
from phaze.spec.plain import LONGEST_KEY, short


class Noun(BaseModel):
    """Frozen value that rejects unknown keys; the docstring below a field documents the field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, data: object, source: str) -> Self:
        """Validate data as this type; PhazeError names source, key, value and allowed values."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise mistakes(error, source, cls) from error

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read and validate a YAML file; PhazeError lists everything that is wrong."""
        return cls.parse(read_mapping(path), str(path))

    @classmethod
    def documentation(cls) -> dict[str, str]:
        """Docstrings of the documented fields, by field name.

        Parsing the source takes time and only generated documentation needs it; pydantic's
        `use_attribute_docstrings` would do it for every class in every process.
        """
        return documentation_of(cls)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in cls.documentation().items():
            properties[name]["description"] = text
        return found


def documentation_of(kind: type) -> dict[str, str]:
    """Docstrings of the documented fields of a `Noun` or dataclass, by field name."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if is_dataclass(one) or issubclass(one, Noun):
            found |= _documented(one.__module__)[one.__name__]
    return found


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Docstrings of the fields of every class in a module, by class name and field name."""
    return {
        noun.name: {
            ast.unparse(field.target): inspect.cleandoc(text.value.value)
            for field, text in pairwise(noun.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for noun in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(noun, ast.ClassDef)
    }


def describe(error: ValidationError, source: str) -> str:
    """Format validation errors with key and value, one per line."""
    return str(mistakes(error, source))


def mistakes(
    error: ValidationError, source: str, kind: type[BaseModel] | None = None, where: str = "config/README.md"
) -> PhazeError:
    """Convert validation errors to one PhazeError with a line each; a validator may report several lines.

    For unknown keys of `kind` the help names the most similar known keys, and `where` lists all of them.
    """
    told = _told(error.errors())
    wrong = "\n".join(
        f"{source}: {_key(problem)}{line}{_value(problem)}"
        for problem in told
        for line in _plain(problem["msg"]).splitlines()
    )
    fixes = dict.fromkeys(_nearest(problem, kind, where) for problem in told)
    return PhazeError(wrong, "; ".join(filter(None, fixes)))


def _told(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Errors to report, unknown keys first, without errors that only follow from another one.

    A key that is missing because it is misspelt follows from the unknown key, and a list that is too short
    from errors of its items.
    """
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]

    def follows(problem: ErrorDetails) -> bool:
        place = problem["loc"]
        if problem["type"] == "too_short":
            return any(other is not problem and other["loc"][: len(place)] == place for other in problems)
        return problem["type"] == "missing" and any(
            other["loc"][:-1] == place[:-1] and nearest(str(other["loc"][-1]), [str(place[-1])])
            for other in unknown
        )

    others = [problem for problem in problems if problem not in unknown and not follows(problem)]
    return unknown + others


def _key(problem: ErrorDetails) -> str:
    parts = (one_line(str(part)) for part in problem["loc"] if part != "[key]")
    key = ".".join(part if len(part) <= LONGEST_KEY else f"{part[:LONGEST_KEY]}..." for part in parts)
    return f"{key}: " if key else ""


def _nearest(problem: ErrorDetails, kind: type[BaseModel] | None, where: str) -> str:
    """Hint with the known keys most similar to an unknown key; empty for other errors."""
    if kind is None or problem["type"] != "extra_forbidden":
        return ""
    kinds = {kind}
    for part in problem["loc"][:-1]:
        below = {inner for one in kinds for inner in _inside(one, part)}
        kinds = below or kinds
    known = {field.alias or name for one in kinds for name, field in one.model_fields.items()}
    return did_you_mean(str(problem["loc"][-1]), sorted(known), where)


def _inside(kind: type[BaseModel], key: str | int) -> set[type[BaseModel]]:
    """Types that can occur in the value of a key, directly or inside lists and mappings."""
    for name, field in kind.model_fields.items():
        if key in (name, field.alias):
            return _kinds(field.annotation)
    return set()


def _kinds(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for part in get_args(annotation) for found in _kinds(part)}


def _value(problem: ErrorDetails) -> str:
    """Suffix of a message that shows the invalid value; empty if the validator's own message suffices."""
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        return ""
    return f", got {short(problem['input'])}"


def _plain(message: str) -> str:
    """Reword Pydantic's message in plain English."""
    if message == "Extra inputs are not permitted":
        return "is not a known key"
    return message.removeprefix("Value error, ").removeprefix("Input ")
