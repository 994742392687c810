"""Safe reading of YAML and JSON from people and other programs: no code, no duplicate keys."""

from __future__ import annotations

import json
import os
from collections import Counter
from errno import EACCES, EISDIR
from pathlib import Path
from typing import TypeAlias, cast

from phaze.base.errors import PhazeError
from phaze.base.files import read_text, refuse_endless

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""Any value of YAML or JSON."""


MOST_SHOWN = 300
"""Maximum length of a path in a message, in characters."""


def read_yaml(path: Path) -> Plain:
    """Read a YAML file; PhazeError names file and line."""
    from phaze.spec.strict_yaml import load  # slow to import; short commands read JSON only

    text = read_source(path)
    try:
        return cast(Plain, load(text))
    except ValueError as error:
        raise PhazeError(f"{path}: is not valid YAML: {error}") from error


def read_json(path: Path) -> Plain:
    """Read a JSON file; PhazeError names file and position."""
    return parse_json(read_source(path), str(path))


def parse_json(text: str, where: str) -> Plain:
    """Parse a JSON text; PhazeError names where it is from, and the position."""
    try:
        loaded: Plain = json.loads(text, object_pairs_hook=_unique_object)
    except (ValueError, RecursionError) as error:
        raise PhazeError(f"{where}: is not valid JSON: {error}") from error
    return loaded


def shown(path: Path) -> str:
    """Format a path for a message, truncated if it is long."""
    text = str(path)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def read_source(path: Path) -> str:
    """Read a text file that a user names; PhazeError if it is missing, a folder or not UTF-8."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def refuse_unreadable(path: Path) -> None:
    """Raise PhazeError if a file is missing, a folder or not permitted to be read, before slow imports."""
    try:
        refuse_endless(path)
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not os.access(path, os.R_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> PhazeError:
    return PhazeError(f"{shown(path)}: cannot be read: {getattr(error, 'strerror', None) or error}")


def _unique_object(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Build an object from key-value pairs; ValueError for a duplicate key (plain JSON keeps the last)."""
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"key {key!r} is given twice")
    return dict(pairs)
