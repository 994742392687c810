"""Shell completion for the names of files in the configuration folder."""

from collections.abc import Iterator
from typing import cast


def _names(incomplete: str, *folders: str) -> Iterator[str]:
    """Yield the names in configuration folders that continue a text, in lists the part after the last comma.

    Upper and lower case are the same, and the text stays as it is: zsh offers nothing else. The other names
    in `names.yaml`, such as Hugging Face ids, are yielded where no file has the name.
    """
    from phaze.spec.files import FOLDER, read_mapping

    listed, comma, text = incomplete.rpartition(",")
    files = (path.stem for folder in folders for path in sorted((FOLDER / folder).glob("*.yaml")))
    others = cast("dict[str, dict[str, list[str]]]", read_mapping(FOLDER / "names.yaml"))
    synonyms = (name for folder in folders for names in others.get(folder, {}).values() for name in names)
    for names in (files, synonyms):
        matching = [name for name in names if name.lower().startswith(text.lower())]
        yield from (f"{listed}{comma}{text}{name[len(text) :]}" for name in matching)
        if matching:
            return


def models(incomplete: str) -> list[str]:
    """Models in config/models."""
    return [*_names(incomplete, "models")]


def systems(incomplete: str) -> list[str]:
    """Systems in config/systems."""
    return [*_names(incomplete, "systems")]


def stacks(incomplete: str) -> list[str]:
    """Software stacks in config/stacks."""
    return [*_names(incomplete, "stacks")]


def chips(incomplete: str) -> list[str]:
    """Architectures and devices in the configuration folder."""
    return [*_names(incomplete, "architectures", "devices")]


def gpus(incomplete: str) -> list[str]:
    """Systems prefixed by the given numbers of devices, such as 64xh100 or 64,128xh100."""
    numbers, x, name = incomplete.partition("x")
    are_numbers = all(number.isdecimal() for number in numbers.split(","))
    return [f"{numbers}x{system}" for system in systems(name)] if x and are_numbers else []
