"""Where files of the configuration lie, and what they hold as keys and values."""

from __future__ import annotations

from pathlib import Path

from phaze.errors import PhazeError
from phaze.spec.noun import read_yaml

FOLDER = Path("config")


def is_path(name: str) -> bool:
    """Return whether a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml"))


def named_file(noun: str, name: str, folder: Path) -> Path:
    """Return the file of a name in a folder, or raise PhazeError with the names that there are."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        raise PhazeError(f"{path}: there is no {noun} {name!r}; there are {', '.join(known) or 'none'}")
    return path


def read_mapping(path: Path) -> dict[str, object]:
    """Return what a YAML file holds, or raise PhazeError where that is no mapping."""
    loaded = read_yaml(path)
    if not isinstance(loaded, dict):
        raise PhazeError(f"{path}: must hold keys and values, got {type(loaded).__name__}")
    return dict(loaded)
