"""YAML and JSON that people and other programs write, read safely: no code, and no key given twice."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import yaml

from phaze.base.errors import PhazeError
from phaze.base.files import read_text

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""What YAML and JSON hold."""


SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxstring, SHORT.maxother = 3, 100, 100
"""What is shown of a value: a few lines of YAML can hold more than any memory (aliases of aliases)."""
MOST_BITS = 1024
"""Of a whole number, as of the largest float: Python does not write longer ones down."""
MOST_SHOWN, LONGEST_KEY = 300, 80
"""Characters of a path and of a key that a message shows."""
MERGE = "tag:yaml.org,2002:merge"


def short(value: object) -> str:
    """Value for a message, cut where it is long."""
    text = SHORT.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _Unfit(yaml.constructor.ConstructorError):
    """What of a file is refused, with the keys that lead to it."""

    def __init__(self, problem: str, mark: yaml.Mark | None, keys: tuple[str, ...] = ()) -> None:
        super().__init__(None, None, ": ".join(filter(None, (".".join(keys), problem))), mark)
        self.what, self.keys = problem, keys

    def under(self, key: object) -> _Unfit:
        """The same as seen from the mapping in which it lies below a key."""
        return _Unfit(self.what, self.problem_mark, (str(key)[:LONGEST_KEY], *self.keys))


class _Strict(yaml.SafeLoader):
    """A safe YAML loader that refuses what plain YAML takes without a word, or cannot make a value of."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Value of a node; ConstructorError where it has none."""
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"must be a valid {kind}, or quoted if it is a text, got {short(node.value)}"
            raise _Unfit(problem, node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            problem = f"must be a number below 2^{MOST_BITS}, got {short(node.value)}"
            raise _Unfit(problem, node.start_mark)
        return value


def _unique_mapping(loader: _Strict, node: yaml.MappingNode) -> dict[object, object]:
    """Mapping whose keys are plain and unique: plain YAML silently keeps the last of equal ones."""
    found: dict[object, object] = {}
    for name, value in node.value:
        if name.tag == MERGE:
            raise _Unfit("key '<<' would merge another mapping; write its keys out", name.start_mark)
        key = loader.construct_object(name, deep=True)
        if isinstance(key, (list, dict, set)):
            raise _Unfit("a key must be plain", name.start_mark)
        if key in found:
            raise _Unfit(f"key {short(key)} is given twice", name.start_mark)
        try:
            found[key] = loader.construct_object(value, deep=True)
        except _Unfit as error:
            raise error.under(key) from error
    return found


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: Path) -> Plain:
    """Content of a YAML file; PhazeError naming the file and the line."""
    text = _text(path)
    try:
        # The loader is a subclass of the safe one.
        loaded: Plain = yaml.load(text, Loader=_Strict)
    except (yaml.YAMLError, RecursionError) as error:
        raise PhazeError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from error
    return loaded


def read_json(path: Path) -> Plain:
    """Content of a JSON file; PhazeError naming the file and the place."""
    text = _text(path)
    try:
        loaded: Plain = json.loads(text, object_pairs_hook=_unique_object)
    except (ValueError, RecursionError) as error:
        raise PhazeError(f"{path}: is not valid JSON: {error}") from error
    return loaded


def shown(path: Path) -> str:
    """Path for a message, cut where it is longer than any."""
    text = str(path)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise PhazeError(
            f"{shown(path)}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def _unique_object(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Refuse a key given twice, where plain JSON silently keeps the last."""
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"key {key!r} is given twice")
    return dict(pairs)
