"""The one store of what was worked out before: answers by the content of what was asked.

A question is all that its answer depends on besides the code, as plain values. Its digest is the name of the
answer, so that nothing is ever out of date: with other data, settings or code another question is asked.
Questions that have much in common name it once (`about`).

The answers that are made together lie in one file, which is written in one step and carries a checksum; any
number of processes may share a folder. What cannot be read counts as absent, with a warning. A folder may be
deleted at any time. One that belongs to a single job is entered (`with`): files of which that job used no
answer are removed when it has done its work.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar, cast

from phaze.base.files import write_text

log = logging.getLogger(__name__)

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"
Answer = TypeVar("Answer")
"""Anything plain: numbers, texts, lists and mappings by text."""


def digest_of(content: Plain) -> str:
    """Digest of plain content, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Store:
    """Answers in a folder by one version of the code; without a folder they last as long as the store."""

    def __init__(self, folder: Path | None = None, code: str = "") -> None:
        self._folder, self._code = folder, code
        self._known: dict[str, dict[str, Plain]] = {}
        """Answers that were made or believed, by what they are about, then by digest of the question."""
        self._files: dict[str, dict[str, tuple[Path, Plain]]] = {}
        """What the files hold, in the same way."""
        self._used: set[Path] = set()

    def __enter__(self) -> Store:
        """Own the folder until the work is done."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """Remove the files of which no answer was used, unless the work failed."""
        if kind is None and self._folder is not None:
            for path in set(self._folder.glob("*/*.json")) - self._used:
                with suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()

    def of(
        self,
        asked: Plain,
        make: Callable[[], Answer],
        *,
        holds: Callable[[Answer], bool] = lambda _: True,
        lasts: Callable[[Answer], bool] = lambda _: True,
    ) -> Answer:
        """Answer to a single question, as `each` gives it."""
        return self.each([None], lambda _: [make()], about=asked, holds=holds, lasts=lasts)[0]

    def each(
        self,
        asked: Sequence[Plain],
        make: Callable[[list[int]], Sequence[Answer]],
        *,
        about: Plain = None,
        holds: Callable[[Answer], bool] = lambda _: True,
        lasts: Callable[[Answer], bool] = lambda _: True,
    ) -> list[Answer]:
        """Answers to questions, of which `make` gives those to some, by their places, that have none.

        It is called once with all of these, equal questions once. What it returns comes back as it would be
        read from a file: lists for tuples. An answer in a file counts if it still `holds`; one that is made
        is written if it `lasts`.
        """
        name, digests = self._name(about), [digest_of(one) for one in asked]
        known, fresh = self._known.setdefault(name, {}), dict[str, int]()
        for place, digest in enumerate(digests):
            if digest in known or digest in fresh:
                continue
            path, answer = self._read(name).get(digest, (None, None))
            if path is not None and holds(cast("Answer", answer)):
                known[digest] = answer
                self._used.add(path)
            else:
                fresh[digest] = place
        if fresh:
            made = json.loads(json.dumps(list(make(list(fresh.values())))))
            answers = dict(zip(fresh, made, strict=True))
            known |= answers
            self._write(name, {digest: answer for digest, answer in answers.items() if lasts(answer)})
        return [cast("Answer", known[digest]) for digest in digests]

    def _name(self, about: Plain) -> str:
        return digest_of([self._code, about])

    def _read(self, name: str) -> dict[str, tuple[Path, Plain]]:
        """Answers about one thing with the file of each, read when something is asked for the first time."""
        if name not in self._files:
            paths = [] if self._folder is None else sorted((self._folder / name).glob("*.json"))
            self._files[name] = {
                digest: (path, answer) for path in paths for digest, answer in _answers_in(path).items()
            }
        return self._files[name]

    def _write(self, name: str, answers: Mapping[str, Plain]) -> None:
        if self._folder is not None and answers:
            path = self._folder / name / f"{digest_of(sorted(answers))}.json"
            write_text(path, json.dumps({"checksum": digest_of(answers), "answers": answers}, sort_keys=True))
            self._used.add(path)


def _answers_in(path: Path) -> dict[str, Plain]:
    """Answers in a file by digest of the question, none if it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        answers: dict[str, Plain] = dict(document["answers"])
        if document["checksum"] != digest_of(answers):
            raise ValueError("its checksum is wrong")
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: %s; its answers are worked out again", path, error)
        return {}
    return answers
