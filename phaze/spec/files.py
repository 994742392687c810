"""Where files of the configuration lie, and what they hold as keys and values."""

import os
import re
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.base.nearest import nearest
from phaze.spec.plain import read_yaml, short, shown

PACKAGE = Path(__file__).resolve().parents[1]
VARIABLE = "PHAZE_CONFIG"
"""Environment variable that names another folder of configuration."""


def configuration() -> Path:
    """Folder of configuration: the one that `PHAZE_CONFIG` names, or that lies where one works.

    Else that of the checkout from which phaze is run, or the one that is installed with it.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    here = Path("config")
    known = (here, PACKAGE.parent / "config", PACKAGE / "config")
    return next((folder for folder in known if (folder / "systems").is_dir()), here)


FOLDER = configuration()
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
"""What may be the name of a file in a folder: never a path."""


def is_path(name: str) -> bool:
    """Whether a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml"))


def is_there(path: Path) -> bool:
    """Whether there is a file of that path, which may be longer than any."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def named_file(noun: str, name: str, *folders: Path) -> Path:
    """File of a name in the first of some folders that has it, in any case.

    PhazeError with the three nearest names and the folders where all are.
    """
    if not folders[0].is_dir():
        raise PhazeError(f"{shown(folders[0])}: there is no such folder{_configured()}")
    known = {p.stem.lower(): p for folder in reversed(folders) for p in sorted(folder.glob("*.yaml"))}
    found = known.get(name.lower())
    if found is None or not PLAIN.fullmatch(name):
        near = nearest(name, known) or sorted(known)[:3]
        raise PhazeError(
            f"{shown(folders[0] / f'{name}.yaml')}: there is no {noun} {short(name)}; nearest: "
            f"{', '.join(known[one].stem for one in near) or 'none'}; all {len(known)} are in "
            + " and ".join(map(shown, folders))
        )
    return within(found.parent, found)


def _configured() -> str:
    """Hint that names the environment variable, where it chose the folder of configuration."""
    return f"; {VARIABLE} is {short(os.environ[VARIABLE])}" if os.environ.get(VARIABLE) else ""


def model_path(name: str, folder: Path = FOLDER) -> Path:
    """File of a model: of config/models by name, or a spec or a `config.json` by path."""
    if "/" in name or name.endswith((".yaml", ".yml", ".json")):
        return Path(name)
    return named_file("model", name, folder / "models")


def system_path(name: str, folder: Path = FOLDER) -> Path:
    """File of a system: of config/systems by name, or a YAML file by path."""
    return Path(name) if is_path(name) else named_file("system", name, folder / "systems")


def stack_path(name: str, folder: Path = FOLDER) -> Path:
    """File of a software stack: of config/stacks by name, or a YAML file by path."""
    return Path(name) if is_path(name) else named_file("stack", name, folder / "stacks")


def within(folder: Path, path: Path) -> Path:
    """Path; PhazeError where it leads out of a folder, by its parts or by links."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise PhazeError(f"{path}: lies outside {folder}; what a file names must lie in its own folder")
    return path


def read_mapping(path: Path) -> dict[str, object]:
    """Keys and values of a YAML file; PhazeError where it holds anything else."""
    loaded = read_yaml(path)
    if not isinstance(loaded, dict):
        raise PhazeError(f"{path}: must hold keys and values, got {type(loaded).__name__}")
    return dict(loaded)
