"""Strict YAML: no code, no duplicate keys, no merge keys, no invalid values."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache

import yaml

from phaze.base.printed import LONGEST_KEY, short

MOST_BITS = 1024
"""Maximum number of bits of an integer, as in the largest float; Python refuses to print longer ones."""
MOST_TEXTS = 64
"""Maximum number of texts whose values are cached."""
MERGE = "tag:yaml.org,2002:merge"
OTHER_BASES = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9_]+:[0-9_:.]+")
"""Numbers that YAML 1.1 silently reads as octal (010 is 8) or in base 60 (1:30 is 90)."""


class _InvalidValueError(yaml.constructor.ConstructorError):
    """Error for invalid YAML, with the keys that lead to the rejected value."""

    def __init__(self, problem: str, mark: yaml.Mark | None, keys: tuple[str, ...] = ()) -> None:
        super().__init__(None, None, ": ".join(filter(None, (".".join(keys), problem))), mark)
        self.what, self.keys = problem, keys

    def under(self, key: object) -> _InvalidValueError:
        """Copy of the error with the parent mapping's `key` added to its path."""
        return _InvalidValueError(self.what, self.problem_mark, (str(key)[:LONGEST_KEY], *self.keys))


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML loader that rejects input that plain YAML silently accepts or cannot convert."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Construct the value of a node; ConstructorError if it is invalid."""
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"must be a valid {kind}; quote it if it is meant as text; got {short(node.value)}"
            raise _InvalidValueError(problem, node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            problem = f"must be a number below 2^{MOST_BITS}, got {short(node.value)}"
            raise _InvalidValueError(problem, node.start_mark)
        if isinstance(value, int | float) and OTHER_BASES.fullmatch(node.value):
            read = f"got {short(node.value)}, which YAML reads as {short(value)}"
            raise _InvalidValueError(f"must be in decimal digits, {read}; quote a text", node.start_mark)
        return value


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[object, object]:
    """Construct a mapping with unique scalar keys; plain YAML silently keeps the last of duplicates."""
    mapping: dict[object, object] = {}
    for name, value in node.value:
        if name.tag == MERGE:
            raise _InvalidValueError(
                "key '<<' merges another mapping, which is not supported; write its keys out", name.start_mark
            )
        key = loader.construct_object(name, deep=True)
        if isinstance(key, (list, dict, set)):
            raise _InvalidValueError("a key must be a scalar, not a list or mapping", name.start_mark)
        if key in mapping:
            raise _InvalidValueError(f"key {short(key)} is given twice", name.start_mark)
        try:
            # Deep, so that errors inside a value arise here, where its key is known.
            mapping[key] = loader.construct_object(value, deep=True)
        except _InvalidValueError as error:
            raise error.under(key) from error
    return mapping


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load(text: str) -> object:
    """Load a YAML text; ValueError names the line."""
    # Tables name the same few files in many rows, and YAML takes a hundred times as long as a copy.
    return deepcopy(_parsed(text))


@lru_cache(maxsize=MOST_TEXTS)
def _parsed(text: str) -> object:
    try:
        loaded: object = yaml.load(text, Loader=_StrictLoader)  # subclass of SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    return loaded
