"""Flags of Megatron-LM from its arguments by name: as YAML has them, or as its log lists them.

YAML is that of Megatron-LM's own tests (`MODEL_ARGS`), that of Primus (`modules.pre_trainer.overrides`), or a
flat mapping. The log lists every argument, also those that are not set (`_print_args`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.runtimes.flags import Flags
from phaze.runtimes.settings import OtherSettings

LOGGED = re.compile(
    r"^.*?-{3,} arguments -{3,}[^\n]*\n(.*?)(?:-{3,} end of arguments|\Z)", re.DOTALL | re.MULTILINE
)
LINE = re.compile(r"([A-Za-z_]\w*) (?:\.+|(?<=\w{48} )) ?(.*)")
"""Line of the log: dots fill a name to 48 characters."""
YAML = re.compile(r"\s*(?:#[^\n]*\n\s*|---\s*\n\s*)*(?:--)?[A-Za-z_][\w-]*:(?:\s|\Z)")
DEFAULT = re.compile(r"\$\{\w+:([^{}]*)\}")
"""Value of a variable in Primus' YAML, with its default."""
SEVERAL = re.compile(r"\[?((?<=\[)[^\[\],]+(?=\])|\d+(?: \d+)+)\]?")
"""Text of several words: in brackets without commas, or numbers."""
OPPOSITE = "not "
OFF = "--off."
"""Section of arguments that nobody knows and that are off."""
UNSET: tuple[object, ...] = (None, [], "None", "", "0")
"""Values of arguments that are not set, in the log."""


def arguments_of(text: str, read: Collection[str], other: OtherSettings) -> Flags | None:
    """Flags of a log or a YAML file; None if a text is neither. PhazeError for YAML of another form."""
    known_flags = {*read, *other.names}
    logged = LOGGED.search(text)
    if logged is not None:
        lines = filter(None, map(LINE.search, logged[1].splitlines()))
        values = {line[1]: _logged(line[2].strip()) for line in lines}
        listed = {name: value for name, value in values.items() if name not in other.derived.split()}
        # A log lists unset arguments too; in YAML an empty list or a 0 has been written on purpose.
        return dict(_flags(listed, known_flags, other, UNSET))
    return dict(_flags(_settings(text), known_flags, other, (None,))) if YAML.match(text) else None


def _logged(text: str) -> object:
    """Value that the log has printed: a list, the name of a member of an enumeration, or a text."""
    if text.startswith("["):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
    # Members of enumerations are printed with their class, such as `AttnBackend.flash`.
    return {"True": True, "False": False}.get(text, re.sub(r"^[A-Z]\w*\.(?=\w+$)", "", text))


def _settings(text: str) -> Mapping[str, object]:
    """Names and values of a YAML file; PhazeError for sections of another program."""
    from phaze.spec.strict_yaml import load

    try:
        loaded = load(DEFAULT.sub(r"\1", text))
    except ValueError as error:
        raise PhazeError(f"flags: is not valid YAML: {error}") from error
    section: object = loaded
    if isinstance(loaded, dict) and "MODEL_ARGS" in loaded:
        section = loaded["MODEL_ARGS"]
    elif isinstance(loaded, dict) and "modules" in loaded:
        section = _overrides(loaded["modules"])
    settings = section if isinstance(section, dict) else {}
    sections = [str(key) for key, value in settings.items() if isinstance(value, dict)]
    if sections or not settings:
        others = sections or (loaded if isinstance(loaded, dict) else ["none"])
        raise PhazeError(
            f"flags: YAML must have flags with values, got {short(', '.join(map(str, others)))}",
            "pass flags of Megatron-LM in MODEL_ARGS, in modules.pre_trainer.overrides or without a section",
        )
    return {str(key): value for key, value in settings.items()}


def _overrides(modules: object) -> object:
    """Settings in a file of Primus; PhazeError if it takes further ones from other files."""
    trainer = modules.get("pre_trainer") if isinstance(modules, dict) else None
    if not isinstance(trainer, dict):
        return None
    others = [f"{name}: {trainer[name]}" for name in ("config", "model") if trainer.get(name)]
    if others:
        raise PhazeError(
            f"modules.pre_trainer: takes settings from other files, {short(', '.join(others))[1:-1]}",
            "write these settings into overrides and leave the keys out, or pass the log, which lists all",
        )
    return trainer.get("overrides")


def _flags(
    arguments: Mapping[str, object],
    known_flags: Collection[str],
    other: OtherSettings,
    unset: tuple[object, ...],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the flags that arguments stand for, with their words; unknown ones that are off as `OFF`."""
    for name, value in arguments.items():
        flag, is_opposite = _flag(name, known_flags, other)
        if flag not in known_flags and (value is False or value in unset):
            yield f"{OFF}{flag[2:]}", ()
        elif isinstance(value, bool) or value in ("true", "false"):
            if (value in (True, "true")) != is_opposite:
                yield flag, ()
        elif value not in unset:
            yield flag, tuple(_words(value))


def _flag(name: str, known_flags: Collection[str], other: OtherSettings) -> tuple[str, bool]:
    """Flag of an argument, and whether the flag is set if the argument is false."""
    text = name.removeprefix("--").replace("-", "_")
    # Arguments that argparse gives another name (`dest`) than their flag has.
    if text in other.arguments:
        flag = other.arguments[text]
        return flag.removeprefix(OPPOSITE), flag.startswith(OPPOSITE)
    hyphened = text.replace("_", "-")
    # A flag that switches off stores its opposite under the name without the prefix.
    for prefix in ("--", "--no-", "--disable-"):
        if f"{prefix}{hyphened}" in known_flags:
            return f"{prefix}{hyphened}", prefix != "--"
    return f"--{hyphened}", False


def _words(value: object) -> list[str]:
    """Words of a flag's value: those of a list of texts, or numbers with spaces between them."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value).split()
    words = SEVERAL.fullmatch(str(value))
    return words[1].split() if words else [str(value)]
