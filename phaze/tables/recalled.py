"""Answers kept by the content of what was asked: what a job has found once it does not work out again.

A job keeps its answers in a file of its own, where each has for its name a digest of all that it depends on
besides the code. The file is of one version of the code. It is written when the job ends, with what it was
asked this time: what nobody asks any more is dropped. A file that cannot be read, or by other code, counts as
absent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

from phaze.base.files import write_text
from phaze.tables.evaluations import Plain, digest_of

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
"""Anything plain: numbers, texts, lists and mappings by text."""
Answers = dict[str, Plain]
"""By the digest of what was asked."""


class Recalled:
    """The answers of a job by one version of the code; without a file they last as long as this does."""

    def __init__(self, path: Path | None = None, code: str = "") -> None:
        self._path, self._code = path, code
        self._before = {} if path is None else _read(path, code)
        self._known = dict(self._before)
        self._asked: set[str] = set()

    def __enter__(self) -> Recalled:
        """Return this, to be written when the work is done."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """Write what was asked and is not in the file, or is no longer, unless the work failed."""
        answers = {name: self._known[name] for name in sorted(self._asked)}
        if kind is None and self._path is not None and answers != self._before:
            document = {"code": self._code, "checksum": digest_of(answers), "answers": answers}
            write_text(self._path, json.dumps(document))

    def knows(self, asked: Plain) -> bool:
        """Return whether a question has an answer, as it need not be made."""
        return digest_of(asked) in self._known

    def of(
        self, asked: Plain, make: Callable[[], Answer], holds: Callable[[Answer], bool] | None = None
    ) -> Answer:
        """Return the answer to a question, made if it is not known, or if what is known no longer `holds`."""
        return self.each([asked], lambda _: [make()], holds)[0]

    def each(
        self,
        asked: Sequence[Plain],
        make: Callable[[list[int]], Sequence[Answer]],
        holds: Callable[[Answer], bool] | None = None,
    ) -> list[Answer]:
        """Return the answers to questions; `make` gives those to some, by their places, that have none.

        It is called once with all of these, equal questions once. What it returns comes back as it would be
        read from the file: lists for tuples.
        """
        names = [digest_of(one) for one in asked]
        fresh: dict[str, int] = {}
        for place, name in enumerate(names):
            known = name in self._known and (holds is None or holds(cast("Answer", self._known[name])))
            if not known:
                fresh.setdefault(name, place)
        if fresh:
            made = json.loads(json.dumps(list(make(list(fresh.values())))))
            self._known.update(zip(fresh, made, strict=True))
        self._asked.update(names)
        return [cast("Answer", self._known[name]) for name in names]


def _read(path: Path, code: str) -> Answers:
    """Return the answers in a file by this code, none if it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        answers: Answers = document["answers"] if document["code"] == code else {}
        if answers and document["checksum"] != digest_of(answers):
            raise ValueError("its checksum is wrong")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: %s; its answers are worked out again", path, error)
        return {}
    return answers
