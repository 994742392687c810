"""YAML and JSON that people and other programs write, read safely: no code, and no key given twice."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import TypeAlias

from phaze.base.errors import PhazeError
from phaze.base.files import read_text

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""What YAML and JSON hold."""


SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxstring, SHORT.maxother = 3, 100, 100
"""What is shown of a value: a few lines of YAML can hold more than any memory (aliases of aliases)."""
MOST_SHOWN, LONGEST_KEY = 300, 80
"""Characters of a path and of a key that a message shows."""


def short(value: object) -> str:
    """Value for a message, cut where it is long."""
    text = SHORT.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_yaml(path: Path) -> Plain:
    """Content of a YAML file; PhazeError naming the file and the line."""
    from phaze.spec.strict_yaml import load  # short answers read JSON alone

    text = read_source(path)
    try:
        return load(text)
    except ValueError as error:
        raise PhazeError(f"{path}: is not valid YAML: {error}") from error


def read_json(path: Path) -> Plain:
    """Content of a JSON file; PhazeError naming the file and the place."""
    text = read_source(path)
    try:
        loaded: Plain = json.loads(text, object_pairs_hook=_unique_object)
    except (ValueError, RecursionError) as error:
        raise PhazeError(f"{path}: is not valid JSON: {error}") from error
    return loaded


def shown(path: Path) -> str:
    """Path for a message, cut where it is longer than any."""
    text = str(path)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def read_source(path: Path) -> str:
    """Text of a file that a user names; PhazeError naming it where it is absent, a folder or no UTF-8."""
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
