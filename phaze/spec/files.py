"""Find configuration files, and read their keys and values."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean, nearest
from phaze.base.printed import short
from phaze.spec.plain import read_yaml, shown

PACKAGE = Path(__file__).resolve().parents[1]
VARIABLE = "PHAZE_CONFIG"
"""Environment variable that sets the configuration folder."""
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
"""Pattern of valid file names, which excludes paths."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""Pattern of ids of models at Hugging Face: organisation and repository."""


def configuration() -> Path:
    """Configuration folder: `PHAZE_CONFIG` if set, otherwise `config` in the working directory.

    If that does not exist: the folder of the checkout that runs phaze, or the installed one.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    here = Path("config")
    candidates = (here, PACKAGE.parent / "config", PACKAGE / "config")
    return next((folder for folder in candidates if (folder / "systems").is_dir()), here)


FOLDER = configuration()


def is_path(name: str) -> bool:
    """True if a name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml"))


LISTED = ("model", "system", "device", "stack")
"""Kinds of files that a command lists, which has the plural of their name."""


def is_there(path: Path) -> bool:
    """True if the path is an existing file; False also if it is too long for the file system."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def named_file(noun: str, name: str, *folders: Path) -> Path:
    """YAML file with this name, ignoring case, in the first of several folders that contains it.

    PhazeError names the three nearest files, the folders to look in, and the command that lists all.
    """
    if not folders[0].is_dir():
        variable = f"; {VARIABLE} is {short(os.environ[VARIABLE])}" if os.environ.get(VARIABLE) else ""
        raise PhazeError(f"{shown(folders[0])}: folder does not exist{variable}")
    # Reversed, so that an earlier folder wins where several have the name.
    files = {p.stem.lower(): p for folder in reversed(folders) for p in sorted(folder.glob("*.yaml"))}
    file = files.get(name.lower()) or files.get(_other_names(folders).get(name.lower(), ""))
    if file is None or not PLAIN.fullmatch(name):
        stems, where = [files[stem].stem for stem in sorted(files)], " and ".join(map(shown, folders))
        raise PhazeError(
            f"{shown(folders[0] / f'{name}.yaml')}: there is no {noun} {short(name)}",
            (did_you_mean(name, stems, where) if stems else f"there is none in {where}")
            + f"; `phaze {noun}s` lists them" * (noun in LISTED)
            + ", for others pass a path of a config.json" * (noun == "model"),
        )
    return within(file.parent, file)


def _other_names(folders: Iterable[Path]) -> dict[str, str]:
    """Name of a file for each of its other names in `names.yaml`, in lower case; the first folder wins."""
    others: dict[str, str] = {}
    for folder in folders:
        table = folder.parent / "names.yaml"
        files = read_mapping(table).get(folder.name) if is_there(table) else None
        for file, names in files.items() if isinstance(files, dict) else ():
            if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
                raise PhazeError(
                    f"{shown(table)}: {folder.name}.{file}: must be a list of names, got {names}"
                )
            for name in names:
                others.setdefault(str(name).lower(), str(file).lower())
    return others


def model_path(name: str, folder: Path = FOLDER) -> Path:
    """Path of a model file: by name in config/models, by Hugging Face id, or by path.

    A path leads to a spec, a `config.json` or the folder of one. PhazeError for unknown names and ids.
    """
    if "/" not in name and not name.endswith((".yaml", ".yml", ".json")):
        return named_file("model", name, folder / "models")
    path = Path(name)
    if is_there(path / "config.json"):
        return path / "config.json"
    if HUB_ID.fullmatch(name) is None or path.suffix in (".yaml", ".yml", ".json") or is_there(path):
        return path
    ids = _other_names([folder / "models"])
    if name.lower() in ids:
        return named_file("model", ids[name.lower()], folder / "models")
    similar = nearest(name, [other for other in ids if "/" in other])[:1]
    raise PhazeError(
        f"{name}: there is no such file, and no model of config/models has this Hugging Face id",
        f"give its config.json, from https://huggingface.co/{name}, by path, such as {path.name}/config.json"
        + (f"; the most similar model that phaze knows is {ids[similar[0]]}" if similar else ""),
    )


def named_path(noun: str, name: str, *folders: Path) -> Path:
    """YAML file by path, or else by name as in `named_file`."""
    return Path(name) if is_path(name) else named_file(noun, name, *folders)


def system_path(name: str, folder: Path = FOLDER) -> Path:
    """Path of a system file: by name in config/systems, or a YAML file by path."""
    try:
        return named_path("system", name, folder / "systems")
    except PhazeError as error:
        if PLAIN.fullmatch(name) and is_there(folder / "architectures" / f"{name}.yaml"):
            fix = f"it is an architecture; name a system for its network: --gpus 8xtpu-v4 -a {name}"
            raise PhazeError(error.wrong, fix) from error
        raise


def stack_path(name: str, folder: Path = FOLDER) -> Path:
    """Path of a software stack's file: by name in config/stacks, or a YAML file by path."""
    return named_path("stack", name, folder / "stacks")


def within(folder: Path, path: Path) -> Path:
    """Return the path; PhazeError if it leads out of the folder, also through symbolic links."""
    # Both are resolved, since the folder itself may be reached through a link.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise PhazeError(f"{path}: is outside {folder}; a file may only name files in its own folder")
    return path


def read_mapping(path: Path) -> dict[str, object]:
    """Read the keys and values of a YAML file; PhazeError for any other content."""
    loaded = read_yaml(path)
    if not isinstance(loaded, dict):
        raise PhazeError(f"{path}: must hold keys and values, got {type(loaded).__name__}")
    return dict(loaded)
