"""Safe reading of YAML and JSON from people and other programs: no code, no duplicate keys."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import yaml

from phaze.base.errors import PhazeError
from phaze.base.files import read_text

MOST_BITS = 1024
"""Maximum bits of an integer, as of the largest float; Python refuses to print longer ones."""
MERGE = "tag:yaml.org,2002:merge"


class _Unfit(yaml.constructor.ConstructorError):
    """Error with the keys that lead to the refused part of the file."""

    def __init__(self, problem: str, mark: yaml.Mark | None, keys: tuple[str, ...] = ()) -> None:
        super().__init__(None, None, ": ".join(filter(None, (".".join(keys), problem))), mark)
        self.what, self.keys = problem, keys

    def under(self, key: object) -> _Unfit:
        """The same error as seen from the parent mapping, below `key`."""
        return _Unfit(self.what, self.problem_mark, (str(key)[:LONGEST_KEY], *self.keys))


class _Strict(yaml.SafeLoader):
    """Safe YAML loader that refuses input that plain YAML silently accepts or cannot convert."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Value of a node; ConstructorError if it is invalid."""
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"must be a valid {kind}; quote it if it is meant as text; got {short(node.value)}"
            raise _Unfit(problem, node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            problem = f"must be a number below 2^{MOST_BITS}, got {short(node.value)}"
            raise _Unfit(problem, node.start_mark)
        return value


def _unique_mapping(loader: _Strict, node: yaml.MappingNode) -> dict[object, object]:
    """Mapping with scalar, unique keys: plain YAML silently keeps the last of equal ones."""
    found: dict[object, object] = {}
    for name, value in node.value:
        if name.tag == MERGE:
            raise _Unfit(
                "key '<<' merges another mapping, which is not supported; write its keys out", name.start_mark
            )
        key = loader.construct_object(name, deep=True)
        if isinstance(key, (list, dict, set)):
            raise _Unfit("a key must be a scalar, not a list or mapping", name.start_mark)
        if key in found:
            raise _Unfit(f"key {short(key)} is given twice", name.start_mark)
        try:
            found[key] = loader.construct_object(value, deep=True)
        except _Unfit as error:
            raise error.under(key) from error
    return found


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load(text: str) -> Plain:
    """Content of a YAML text; ValueError naming the line."""
    try:
        loaded: Plain = yaml.load(text, Loader=_Strict)  # subclass of SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    return loaded


Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""Any value of YAML or JSON."""


SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxstring, SHORT.maxother = 3, 100, 100
"""Limits of values in messages: with aliases of aliases, a few lines of YAML can expand beyond any memory."""
MOST_SHOWN, LONGEST_KEY = 300, 80
"""Maximum characters of a path and of a key in a message."""


def short(value: object) -> str:
    """Value as text for a message, truncated to 80 characters."""
    text = SHORT.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_yaml(path: Path) -> Plain:
    """Content of a YAML file; PhazeError naming file and line."""
    from phaze.spec.plain import load  # slow to import; short commands read JSON only

    text = read_source(path)
    try:
        return load(text)
    except ValueError as error:
        raise PhazeError(f"{path}: is not valid YAML: {error}") from error


def read_json(path: Path) -> Plain:
    """Content of a JSON file; PhazeError naming file and position."""
    text = read_source(path)
    try:
        loaded: Plain = json.loads(text, object_pairs_hook=_unique_object)
    except (ValueError, RecursionError) as error:
        raise PhazeError(f"{path}: is not valid JSON: {error}") from error
    return loaded


def shown(path: Path) -> str:
    """Path as text for a message, truncated if long."""
    text = str(path)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def read_source(path: Path) -> str:
    """Text of a file that a user names; PhazeError if it is missing, a folder or not UTF-8."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise PhazeError(
            f"{shown(path)}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def _unique_object(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Object from key-value pairs; ValueError for a duplicate key, where plain JSON keeps the last."""
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"key {key!r} is given twice")
    return dict(pairs)
