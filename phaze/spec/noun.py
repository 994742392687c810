"""Base class of all types that users write in files: strict, frozen, documented."""

from pathlib import Path
from typing import Self, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from phaze.base.docstrings import documentation_of
from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean, nearest
from phaze.base.printed import LONGEST_KEY, one_line, short
from phaze.spec.files import read_mapping

EXPECTED = {
    "float_type": "a number", "int_type": "a whole number", "string_type": "text",
    "bool_type": "true or false", "tuple_type": "a list", "list_type": "a list",
    "dict_type": "a mapping", "model_type": "a mapping",
}  # fmt: skip
"""Kinds of values that a file may have, by the type of Pydantic's error for another kind."""


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
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, text in documentation_of(cls).items():
            properties[name]["description"] = text
        return json_schema


def describe(error: ValidationError, source: str) -> str:
    """Format validation errors with key and value, one per line."""
    return str(mistakes(error, source))


def mistakes(
    error: ValidationError, source: str, kind: type[BaseModel] | None = None, where: str = "config/README.md"
) -> PhazeError:
    """Convert validation errors to one PhazeError with a line each; a validator may report several lines.

    For unknown keys of `kind` the help names the most similar known keys, and `where` lists all of them.
    """
    problems = _reported_problems(error.errors())
    wrong = "\n".join(
        f"{source}: {_key_prefix(problem)}{line}{_value_suffix(problem)}"
        for problem in problems
        for line in _plain_message(problem).splitlines()
    )
    fixes = dict.fromkeys(_suggest_keys(problem, kind, where) for problem in problems)
    return PhazeError(wrong, "; ".join(filter(None, fixes)))


def _reported_problems(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Errors to report, unknown keys first, without errors that only follow from another one.

    A key that is missing because it is misspelt follows from the unknown key, and a list that is too short
    from errors of its items.
    """
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]

    def follows(problem: ErrorDetails) -> bool:
        place = problem["loc"]
        # A tuple whose items are invalid counts as too short, as valid items are missing.
        if problem["type"] == "too_short":
            return any(other is not problem and other["loc"][: len(place)] == place for other in problems)
        return problem["type"] == "missing" and any(
            other["loc"][:-1] == place[:-1] and nearest(str(other["loc"][-1]), [str(place[-1])])
            for other in unknown
        )

    others = [problem for problem in problems if problem not in unknown and not follows(problem)]
    return unknown + others


def _key_prefix(problem: ErrorDetails) -> str:
    parts = (one_line(str(part)) for part in problem["loc"] if part != "[key]")
    key = ".".join(part if len(part) <= LONGEST_KEY else f"{part[:LONGEST_KEY]}..." for part in parts)
    return f"{key}: " if key else ""


def _suggest_keys(problem: ErrorDetails, kind: type[BaseModel] | None, where: str) -> str:
    """Hint with the known keys most similar to an unknown key; empty for other errors."""
    if kind is None or problem["type"] != "extra_forbidden":
        return ""
    kinds = {kind}
    for part in problem["loc"][:-1]:
        below = {inner for noun in kinds for inner in _types_of_value(noun, part)}
        kinds = below or kinds
    keys = {field.alias or name for noun in kinds for name, field in noun.model_fields.items()}
    return did_you_mean(str(problem["loc"][-1]), sorted(keys), where)


def _types_of_value(kind: type[BaseModel], key: str | int) -> set[type[BaseModel]]:
    """Types that can occur in the value of a key, directly or inside lists and mappings."""
    for name, field in kind.model_fields.items():
        if key in (name, field.alias):
            return _nested_types(field.annotation)
    return set()


def _nested_types(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {noun for part in get_args(annotation) for noun in _nested_types(part)}


def _value_suffix(problem: ErrorDetails) -> str:
    """Suffix of a message that shows the invalid value; empty if the validator's own message suffices."""
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        return ""
    given = problem["input"]
    kind = "a mapping, " if isinstance(given, dict) else "a list, " if isinstance(given, list | tuple) else ""
    return f", got {kind if problem['type'] in EXPECTED else ''}{short(given)}"


def _plain_message(problem: ErrorDetails) -> str:
    """Reword Pydantic's message in plain English."""
    message = problem["msg"]
    if message == "Extra inputs are not permitted":
        return "is not a known key"
    if problem["type"] in EXPECTED:
        return f"must be {EXPECTED[problem['type']]}"
    return message.removeprefix("Value error, ").removeprefix("Input ")
