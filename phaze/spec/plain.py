"""YAML and JSON that people and other programs write, read safely: no code, and no key given twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import yaml

from phaze.errors import PhazeError

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""What YAML and JSON hold."""


class _UniqueKeys(yaml.SafeLoader):
    """A safe YAML loader that refuses a key given twice, where plain YAML silently keeps the last."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[object, object]:
    pairs = [(loader.construct_object(key, deep=True), key) for key, _ in node.value]
    seen: set[object] = set()
    for name, key in pairs:
        if isinstance(name, (list, dict)):
            raise yaml.constructor.ConstructorError(None, None, "a key must be plain", key.start_mark)
        if name in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {name!r} is given twice", key.start_mark
            )
        seen.add(name)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: Path) -> Plain:
    """Return what a YAML file holds, or raise PhazeError naming the file and the line."""
    text = _text(path)
    try:
        # The loader is a subclass of the safe one.
        loaded: Plain = yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, RecursionError) as error:
        raise PhazeError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from error
    return loaded


def read_json(path: Path) -> Plain:
    """Return what a JSON file holds, or raise PhazeError naming the file and the place."""
    text = _text(path)
    try:
        loaded: Plain = json.loads(text, object_pairs_hook=_unique_object)
    except (ValueError, RecursionError) as error:
        raise PhazeError(f"{path}: is not valid JSON: {error}") from error
    return loaded


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PhazeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _unique_object(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Refuse a key given twice, where plain JSON silently keeps the last."""
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"key {key!r} is given twice")
    return dict(pairs)
