"""Content-addressed cache of computed results.

A request contains everything that its answer depends on, other than the code, as plain values. The digest of
the request is the name of the answer. Answers are therefore never stale: other data, settings or code make
another request. Requests with a common part give it once (`about`).

Answers computed together are stored in one file, which is written atomically and has a checksum. Any number
of processes may share a folder. A file that cannot be read counts as absent, with a warning. A folder may be
deleted at any time. The folder of a single job is used as a context manager (`with`): files with no answer
used by the job are removed when it succeeds.
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
"""Result of a computation as plain content: numbers, texts, lists, and mappings with text keys."""


def digest_of(content: Plain) -> str:
    """SHA-256 of plain (JSON) content, as 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Store:
    """Cache of computed answers for one version of the code, in a folder or, without one, in memory."""

    def __init__(self, folder: Path | None = None, code: str = "") -> None:
        self._folder, self._code = folder, code
        self._answers: dict[str, dict[str, Plain]] = {}
        """Answers known so far, by digest of the requests' common part, then of the request."""
        self._files: dict[str, dict[str, tuple[Path, Plain]]] = {}
        """Answers found in files, each with its path, keyed as in `_answers`."""
        self._used: set[Path] = set()

    def __enter__(self) -> Store:
        """Enter a job that owns the cache folder, so that `__exit__` may remove its unused files."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """Remove cache files that provided no answer, unless the job failed."""
        if kind is None and self._folder is not None:
            for path in set(self._folder.glob("*/*.json")) - self._used:
                with suppress(OSError):
                    path.unlink()
                    # Fails, as it should, while the folder has other files.
                    path.parent.rmdir()

    def of(
        self,
        request: Plain,
        make: Callable[[], Answer],
        *,
        holds: Callable[[Answer], bool] = lambda _: True,
        lasts: Callable[[Answer], bool] = lambda _: True,
    ) -> Answer:
        """Answer to a single request, as in `each`."""
        return self.each([None], lambda _: [make()], about=request, holds=holds, lasts=lasts)[0]

    def each(
        self,
        requests: Sequence[Plain],
        make: Callable[[list[int]], Sequence[Answer]],
        *,
        about: Plain = None,
        holds: Callable[[Answer], bool] = lambda _: True,
        lasts: Callable[[Answer], bool] = lambda _: True,
    ) -> list[Answer]:
        """Answers to all requests; `make` computes the answers that are not cached, given their indices.

        `make` is called once for all missing answers, with equal requests only once. Its results are
        converted as if read from a file: tuples become lists. An answer in a file is accepted if it still
        `holds`. A computed answer is written if it `lasts`.
        """
        name, digests = digest_of([self._code, about]), [digest_of(request) for request in requests]
        answers, fresh = self._answers.setdefault(name, {}), dict[str, int]()
        for place, digest in enumerate(digests):
            if digest in answers or digest in fresh:
                continue
            path, answer = self._read(name).get(digest, (None, None))
            if path is not None and holds(cast("Answer", answer)):
                answers[digest] = answer
                self._used.add(path)
            else:
                # The first of several equal requests stands for all of them.
                fresh[digest] = place
        if fresh:
            computed = json.loads(json.dumps(list(make(list(fresh.values())))))
            fresh_answers = dict(zip(fresh, computed, strict=True))
            answers |= fresh_answers
            self._write(name, {digest: answer for digest, answer in fresh_answers.items() if lasts(answer)})
        return [cast("Answer", answers[digest]) for digest in digests]

    def _read(self, name: str) -> dict[str, tuple[Path, Plain]]:
        """Answers cached under a name, each with its file, by digest of the request; read on first use."""
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
    """Answers in a cache file, by digest of the request; empty if the file cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        answers: dict[str, Plain] = dict(document["answers"])
        if document["checksum"] != digest_of(answers):
            raise ValueError("checksum does not match")
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: %s; its results are computed again", path, error)
        return {}
    return answers
