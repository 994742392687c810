"""Shell completion for the names of files in the configuration folder."""

from collections.abc import Iterator


def _names(incomplete: str, *folders: str) -> Iterator[str]:
    """Yield the names in configuration folders that start with the incomplete text."""
    from phaze.spec.files import FOLDER

    for folder in folders:
        for path in sorted((FOLDER / folder).glob("*.yaml")):
            if path.stem.startswith(incomplete):
                yield path.stem


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
    """Systems prefixed by the given number of devices, such as 64xh100."""
    number, x, name = incomplete.partition("x")
    return [f"{number}x{system}" for system in systems(name)] if x and number.isdecimal() else []
