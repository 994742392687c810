"""What was found once is not worked out again: evaluations of architectures, and plain answers, by content.

`EvaluationStore` keeps tables. The name of a folder is a digest of all that an evaluation depends on besides
the architecture: the tables of the model at one layout, cluster, training, technology, settings and code.
Each batch in it holds the tables of some architectures beside table architectures, which is written last; an
architecture is the same where all that is known of it is, and not by its name. One more microbatch, or
another limit on areas, therefore evaluates only what was never asked before.

`Recalled` keeps the plain answers of one job in a file of its own, where each has for its name a digest of
all that it depends on besides the code. It is written when the job ends, with what was asked this time: what
nobody asks any more is dropped.

Both are of one version of the code; what cannot be read, or is of other code, counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar, cast

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.base.files import write_text
from phaze.tables import TABLES, Architectures

log = logging.getLogger(__name__)

Found = dict[str, pd.DataFrame]
"""Tables by name."""
Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"
Contents = dict[str, "list[Plain]"]
"""All that is known of architectures, by name."""
ABOUT = [name for name in Architectures.columns if not name.endswith("_design")]
"""All that is known of an architecture but its name; ids of designs depend on what else is evaluated."""


class EvaluationStore:
    """A folder of evaluations by one version of the code."""

    def __init__(self, folder: Path, code: str) -> None:
        self._folder = folder
        self._code = code
        self._batches: dict[Path, dict[Path, Contents]] = {}
        """What is in the batches of every folder that was looked into."""
        self._read: dict[Path, Found] = {}
        """The batches read so far: who looks for a front asks for the same ones again and again."""

    def complete(
        self,
        about: Plain,
        chips: pd.DataFrame,
        names: Sequence[str],
        evaluate: Callable[[pd.DataFrame], Mapping[str, pd.DataFrame]],
    ) -> Found:
        """Return the tables `names` of architectures, of which only those not yet known are evaluated.

        `about` is all that the evaluation depends on besides rows of table architectures.
        """
        folder = self._folder / digest_of([self._code, list(names), about])
        if folder not in self._batches:
            self._batches[folder] = dict(_batches_in(folder))
        missing, found = _contents(chips), []
        for batch, inside in self._batches[folder].items():
            mine = [name for name, content in inside.items() if missing.get(name) == content]
            if mine and (tables := self._tables_of(batch, names)) is not None:
                found.append({name: _about(tables[name], mine) for name in names})
                missing = {name: content for name, content in missing.items() if name not in mine}
        if missing or not found:
            fresh = chips[chips["architecture"].isin(missing)]
            log.info("%d of %d architectures are evaluated, the others known", len(fresh), len(chips))
            evaluated = evaluate(fresh)
            found.append({name: evaluated[name] for name in names})
            _write(folder / digest_of(missing), fresh, found[-1])
            self._batches[folder][folder / digest_of(missing)] = missing
        return {name: pd.concat([one[name] for one in found], ignore_index=True) for name in names}

    def _tables_of(self, batch: Path, names: Sequence[str]) -> Found | None:
        """Return the tables of a batch, or None if one cannot be read."""
        if batch not in self._read:
            try:
                self._read[batch] = {name: TABLES[name].load(batch / f"{name}.parquet") for name in names}
            except PhazeError as error:
                log.warning("%s; its architectures are evaluated again", error)
                return None
        return self._read[batch]


def content_of(frames: Iterable[pd.DataFrame]) -> str:
    """Return a digest of tables, for `about`."""
    return digest_of([{str(name): frame[name].tolist() for name in frame} for frame in frames])


def digest_of(content: Plain) -> str:
    """Return a digest of plain content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _contents(chips: pd.DataFrame) -> Contents:
    """Return all that is known of every architecture, by name."""
    return dict(zip(chips["architecture"], chips[ABOUT].to_numpy(object).tolist(), strict=True))


def _batches_in(folder: Path) -> Iterator[tuple[Path, Contents]]:
    """Yield the batches of a folder that can be read."""
    for path in sorted(folder.glob("*/architectures.parquet")):
        try:
            yield path.parent, _contents(Architectures.load(path))
        except PhazeError as error:
            log.warning("%s; its architectures are evaluated again", error)


def _about(rows: pd.DataFrame, architectures: Sequence[str]) -> pd.DataFrame:
    return rows[rows["architecture"].isin(architectures)]


def _write(batch: Path, chips: pd.DataFrame, found: Found) -> None:
    for name, frame in found.items():
        TABLES[name].save(frame, batch / f"{name}.parquet")
    Architectures.save(chips, batch / "architectures.parquet")


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
