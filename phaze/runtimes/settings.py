"""Settings of runtimes' files: how a field of a recipe is written and read, and all settings without a field.

`tables/RUNTIME.yaml` lists those that no recipe or stack expresses, with what they mean for the price. A
setting of a file is read, listed there, or refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from phaze.base.errors import PhazeError
from phaze.base.nearest import nearest
from phaze.base.printed import short
from phaze.runtimes.recipe import Recipe, flattened
from phaze.spec.noun import Noun
from phaze.spec.plain import Plain
from phaze.spec.values import Label, Text

TABLES = Path(__file__).parent / "tables"
MOST_NAMED = 5
"""Maximum number of unknown settings that a message names."""
Value = TypeVar("Value")
Settings = Mapping[str, object]
"""Values of settings, by name; the value of a flag is a tuple of words."""
KeyValues = Iterable[tuple[str, Plain]]
"""Settings to write, with their values."""


@dataclass(frozen=True)
class FieldSettings:
    """Settings for one field of a recipe or its layout, with functions that write and read the settings."""

    field: str
    usual: Settings
    """Settings that determine the field, with the runtime's default values."""
    write: Callable[[Recipe], KeyValues]
    """Function that returns the settings of a recipe."""
    read: Callable[[Settings], object] | None = None
    """Function that reads the layout field from settings; None if it depends on other fields."""


def settings_of_sections(sections: object) -> dict[str, object]:
    """Settings of a file's sections, without empty ones; PhazeError if it has no sections."""
    if not isinstance(sections, dict):
        raise PhazeError(f"settings: must be sections with settings, got {type(sections).__name__}")
    return {name: value for name, value in flattened(sections) if value is not None}


def write_fields(fields: Iterable[FieldSettings], recipe: Recipe) -> Iterator[tuple[str, Plain]]:
    """Yield the settings of a recipe."""
    return chain.from_iterable(field.write(recipe) for field in fields)


def read_fields(fields: Iterable[FieldSettings], settings: Settings) -> dict[str, Any]:
    """Read the layout fields that do not depend on other fields."""
    return {field.field: field.read(settings) for field in fields if field.read is not None}


def integer(settings: Settings, name: str) -> int:
    """Read a setting as an integer >= 1; PhazeError for any other value."""
    text = str(settings[name])
    # Python refuses to convert texts of thousands of digits: 19 tell whether there are too many.
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not (digits and int(digits[:19]) < 10**18):
        raise PhazeError(f"{name}: must be a whole number >= 1, got {short(settings[name])}")
    return int(digits)


def choice(settings: Settings, name: str, words: Mapping[str, Value]) -> Value:
    """Translate a setting's value to our name; PhazeError for any other value."""
    value = str(settings[name])
    if value not in words:
        raise PhazeError(f"{name}: must be one of {', '.join(words)}, got {short(value)}")
    return words[value]


class OtherSettings(Noun):
    """Settings that no recipe or stack expresses; in the texts, `name=a|b` is priced with these values."""

    runtime: Label
    """Name of the runtime in messages."""
    file: Label
    """Path of the file in which users find these settings."""
    forms: Label
    """Files that can be read."""
    refused: Text
    """Settings that change what is trained or how it is divided."""
    changes: Text
    """Settings that change time or memory, which answers name."""
    harmless: dict[Label, Text]
    """Settings that change neither, by subject; `name=` has a value, `name=*` several, `section.*` is a whole
    section."""
    renamed: dict[Label, Label] = Field(default_factory=dict)
    """Present names of settings, by earlier and alternative ones."""
    arguments: dict[Label, Label] = Field(default_factory=dict)
    """Flags by their names in a log and in YAML, where these differ; after `not` the opposite."""
    derived: Text = ""
    """Names in a log that follow from others."""

    @cached_property
    def refusals(self) -> dict[str, tuple[str, ...]]:
        """Values with which each refused setting is priced."""
        return {name: values for name, (_, values) in _entries(self.refused)}

    @cached_property
    def changing(self) -> dict[str, tuple[str, ...]]:
        """Values with which each setting that changes time or memory is priced."""
        return {name: values for name, (_, values) in _entries(self.changes)}

    @cached_property
    def subjects(self) -> dict[str, str]:
        """Subject of each harmless setting."""
        return {name: subject for subject, text in self.harmless.items() for name, _ in _entries(text)}

    @cached_property
    def valued(self) -> dict[str, tuple[str, ...]]:
        """Settings that are not priced and have a value; `*` if they may have several."""
        texts = (self.changes, *self.harmless.values())
        return {name: values for text in texts for name, (has, values) in _entries(text) if has}

    @property
    def names(self) -> Iterator[str]:
        """Names of all settings."""
        yield from (*self.refusals, *self.changing, *self.subjects, *self.renamed)

    def subject(self, name: str) -> str | None:
        """Subject of a harmless setting; None for any other."""
        return _entry(self.subjects, name)

    def check(self, settings: Settings, read: Collection[str], sizes: Collection[str]) -> None:
        """Raise PhazeError if settings are unknown or refused, or none is of `sizes`, the layout or batch."""
        is_sized = any(name in sizes for name in settings)
        # A file without layout and batch is no configuration, which is said below instead.
        for name in filter(lambda _: is_sized, settings):
            values = _entry(self.refusals, name)
            if values is not None and not _is_one_of(settings[name], values):
                only = f"is modelled only as {' or '.join(values)}" if values else "is not modelled"
                raise PhazeError(f"{name}: {only}, got {_shown(settings[name])}")
        known_names = {*read, *self.names}
        known_names |= {
            name.partition(".")[0] for name in known_names
        }  # sections, which may be made without a setting
        tables = (self.refusals, self.subjects)
        unknown = [
            name
            for name in settings
            if name not in known_names and all(_entry(table, name) is None for table in tables)
        ]
        if unknown:
            further = f"; {len(unknown) - MOST_NAMED} more are unknown" * (len(unknown) > MOST_NAMED)
            raise PhazeError(
                "\n".join(_unknown(name, known_names) for name in unknown[:MOST_NAMED]) + further,
                "correct the name, or leave out what changes neither time nor memory; all known names of "
                f"{self.runtime} are in {self.file}",
            )
        if not is_sized:
            raise PhazeError(f"{self.runtime}: neither layout nor batch is set", f"pass {self.forms}")

    def named(self, settings: Settings) -> Iterator[str]:
        """Yield settings that change time or memory and are not modelled, with their values."""
        for name in sorted(settings.keys() & self.changing.keys()):
            if not _is_one_of(settings[name], self.changing[name]):
                yield f"{name} {_text(settings[name])}".strip()

    def by_subject(self, names: Iterable[str]) -> str:
        """Harmless settings as text: every subject with its names."""
        subjects: dict[str, list[str]] = {}
        for name in names:
            subjects.setdefault(self.subject(name) or "", []).append(name)
        return "; ".join(f"{subject} ({', '.join(members)})" for subject, members in subjects.items())

    def present(self, settings: Mapping[str, Value]) -> dict[str, Value]:
        """Settings under their present names; PhazeError for one that has two values."""
        names = {alias: self.renamed.get(alias, alias) for alias in settings}
        by_name = {names[alias]: value for alias, value in settings.items()}
        for alias, name in names.items():
            if by_name[name] != settings[alias]:
                both = " and ".join(other for other in names if names[other] == name)
                values = f"{_shown(settings[alias])} and {_shown(by_name[name])}"
                raise PhazeError(f"{both}: are one setting, which must have one value, got {values}")
        return by_name


@cache
def settings_of(runtime: str) -> OtherSettings:
    """Settings of a runtime that no recipe or stack expresses."""
    return OtherSettings.from_file(TABLES / f"{runtime}.yaml")


def _entries(text: str) -> Iterator[tuple[str, tuple[bool, tuple[str, ...]]]]:
    """Yield every name of a text, with whether it has a value, and the values that are priced."""
    for word in text.split():
        name, equals, values = word.partition("=")
        yield name, (bool(equals), tuple(values.split("|")) if values else ())


def _entry(table: Mapping[str, Value], name: str) -> Value | None:
    """Entry of a setting, or of a whole section that it is in; None if there is none."""
    # An entry `section.*` stands for all settings of a section, of which a deeper one may have its own.
    sections = (f"{name[:end]}.*" for end, letter in enumerate(name) if letter == ".")
    return next((table[key] for key in (name, *sections) if key in table), None)


def _unknown(name: str, known_names: Collection[str]) -> str:
    near = nearest(name, [candidate for candidate in known_names if not candidate.endswith("*")])
    return f"{short(name)[1:-1]}: is unknown" + f"; did you mean {' or '.join(near)}?" * bool(near)


def _text(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _is_one_of(value: object, values: Collection[str]) -> bool:
    return _comparable(_text(value)) in map(_comparable, values)


def _comparable(text: str) -> float | str:
    """Text as a number if it is one in any notation, else in lower case."""
    try:
        # The same number may be written in several forms, such as 0, 0.0 or 0e0.
        return float(text)
    except ValueError:
        return text.casefold()


def _shown(value: object) -> str:
    return "it" if value == () else short(_text(value) if isinstance(value, tuple) else value)
