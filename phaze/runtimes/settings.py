"""Settings of runtimes' files that no recipe or stack expresses, with what they mean for the price.

`tables/RUNTIME.yaml` lists them. A setting of a file is read, listed there, or refused by its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from phaze.base.errors import PhazeError
from phaze.base.nearest import nearest
from phaze.spec.noun import Noun
from phaze.spec.plain import short
from phaze.spec.values import Label, Text

TABLES = Path(__file__).parent / "tables"
MOST_NAMED = 5
"""Maximum number of unknown settings that a message names."""
Value = TypeVar("Value")
Settings = Mapping[str, object]
"""Values of settings, by name; the value of a flag is a tuple of words."""


class OtherSettings(Noun):
    """Settings that no recipe or stack expresses; in the texts, `name=a|b` is priced with these values."""

    runtime: Label
    """Name of the runtime in messages."""
    file: Label
    """Path of the file in which users find these settings."""
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
    def known(self) -> Iterator[str]:
        """Names of all settings."""
        yield from (*self.refusals, *self.changing, *self.subjects, *self.renamed)

    def subject(self, name: str) -> str | None:
        """Subject of a harmless setting; None for any other."""
        sections = (f"{name[:end]}.*" for end, letter in enumerate(name) if letter == ".")
        return next((self.subjects[key] for key in (name, *sections) if key in self.subjects), None)

    def check(self, found: Settings, read: Collection[str]) -> None:
        """Raise PhazeError for settings that are unknown, or refused with their value."""
        for name, values in self.refusals.items():
            if name in found and not _is_one_of(found[name], values):
                only = f"is modelled only as {' or '.join(values)}" if values else "is not modelled"
                raise PhazeError(f"{name}: {only}, got {_shown(found[name])}")
        known = {*read, *self.known}
        unknown = [name for name in found if name not in known and self.subject(name) is None]
        if unknown:
            more = f"; {len(unknown) - MOST_NAMED} more are unknown" * (len(unknown) > MOST_NAMED)
            raise PhazeError(
                "\n".join(_unknown(name, known) for name in unknown[:MOST_NAMED]) + more,
                "correct the name, or leave out what changes neither time nor memory; all known names of "
                f"{self.runtime} are in {self.file}",
            )

    def named(self, found: Settings) -> Iterator[str]:
        """Yield settings that change time or memory and are not modelled, with their values."""
        for name in sorted(found.keys() & self.changing.keys()):
            if not _is_one_of(found[name], self.changing[name]):
                yield f"{name} {_text(found[name])}".strip()

    def by_subject(self, names: Iterable[str]) -> str:
        """Harmless settings as text: every subject with its names."""
        subjects: dict[str, list[str]] = {}
        for name in names:
            subjects.setdefault(self.subject(name) or "", []).append(name)
        return "; ".join(f"{subject} ({', '.join(members)})" for subject, members in subjects.items())

    def present(self, found: Mapping[str, Value]) -> dict[str, Value]:
        """Settings under their present names; PhazeError for one that has two values."""
        settings: dict[str, Value] = {}
        for given, value in found.items():
            name = self.renamed.get(given, given)
            if settings.setdefault(name, value) != value:
                raise PhazeError(
                    f"{given}: sets {name} as well, got {_shown(value)} and {_shown(settings[name])}"
                )
        return settings


@cache
def settings_of(runtime: str) -> OtherSettings:
    """Settings of a runtime that no recipe or stack expresses."""
    return OtherSettings.from_file(TABLES / f"{runtime}.yaml")


def _entries(text: str) -> Iterator[tuple[str, tuple[bool, tuple[str, ...]]]]:
    """Yield every name of a text, with whether it has a value, and the values that are priced."""
    for word in text.split():
        name, equals, values = word.partition("=")
        yield name, (bool(equals), tuple(values.split("|")) if values else ())


def _unknown(name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    return f"{short(name)[1:-1]}: is unknown" + f"; did you mean {' or '.join(near)}?" * bool(near)


def _text(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _is_one_of(value: object, values: Collection[str]) -> bool:
    return _text(value).casefold() in {one.casefold() for one in values}


def _shown(value: object) -> str:
    return short(_text(value)) if value != () else "it"
