"""JSON files for tests, and changes that make them invalid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Plain = dict[str, Any]
Change = Callable[[Plain], object]


NOTHING = object()


def put(*path: str | int, value: object) -> Change:
    """Return a change that sets the value at a path, or removes it."""

    def change(content: Plain) -> object:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        if value is NOTHING:
            del place[path[-1]]
        return content

    return change


def drop(*path: str | int) -> Change:
    """Return a change that removes the value at a path."""
    return put(*path, value=NOTHING)


def edge(source: int, target: int) -> Plain:
    return {"sourceId": source, "destId": target, "communicationCost": 1}


def saved(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
