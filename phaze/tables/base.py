"""What every table is: typed columns with a key, checked on every write and every read.

A table is a pandas frame in memory and a Parquet file on disk. Its class states the columns with their
types, the key, the ranges and the rules between columns. Files are byte-deterministic: rows sorted by key,
`-0.0` normalised, no timestamps; they are written to a temporary name and renamed, so that no reader ever
sees half a table. The checks are a few lines of our own: importing a validation library would take a job
longer than most of its work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet

from phaze.errors import PhazeError

VERSION = "1"
"""Version of the table formats; a file of another version is refused instead of misread."""

Rule = Callable[[pd.DataFrame], pd.Series]


@dataclass(frozen=True)
class Column:
    """One column: its type, and the range or the set of values that it allows."""

    dtype: str
    """'str', 'int64', 'float64' or 'bool'."""
    about: str
    minimum: float | None = None
    values: tuple[str, ...] = ()
    finite: bool = True
    """False where infinity has a meaning (a time that no placement reaches)."""

    def demands(self, values: pd.Series) -> Iterator[tuple[str, pd.Series]]:
        """Yield what is asked of every value, and which of the values meet it."""
        yield "must not be missing", values.notna()
        if self.minimum is not None:
            yield f"must be at least {self.minimum:g}", values >= self.minimum
        if self.values:
            yield f"must be one of {', '.join(self.values)}", values.isin(self.values)
        if self.dtype == "float64" and self.finite:
            yield "must be finite", np.isfinite(values)


def text(about: str, *values: str) -> Column:
    """Return a column of text, optionally one of the given values."""
    return Column("str", about, values=values)


def count(about: str, minimum: int = 0) -> Column:
    """Return a column of whole numbers."""
    return Column("int64", about, minimum=minimum)


def real(about: str, minimum: float | None = 0.0, *, finite: bool = True) -> Column:
    """Return a column of real numbers, by default finite and not negative."""
    return Column("float64", about, minimum=minimum, finite=finite)


def flag(about: str) -> Column:
    """Return a column of true and false."""
    return Column("bool", about)


class Table:
    """A table's contract; subclasses only state it."""

    name: ClassVar[str]
    """The plural noun: also the folder under results/."""
    about: ClassVar[str]
    keys: ClassVar[dict[str, Column]]
    columns: ClassVar[dict[str, Column]]
    rules: ClassVar[dict[str, Rule]] = {}
    """Rules between columns: sentence -> function of the frame that is true for every good row."""

    @classmethod
    def fields(cls) -> dict[str, Column]:
        """Return all columns, keys first, in their order in the file."""
        return {**cls.keys, **cls.columns}

    @classmethod
    def empty(cls) -> pd.DataFrame:
        """Return the table without rows, typed."""
        return pd.DataFrame({name: pd.Series([], dtype=c.dtype) for name, c in cls.fields().items()})

    @classmethod
    def check(cls, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with columns in order, typed, sorted by key, or raise ValueError."""
        missing = [name for name in cls.fields() if name not in frame.columns]
        extra = [name for name in frame.columns if name not in cls.fields()]
        if missing or extra:
            raise ValueError(f"table {cls.name}: missing columns {missing}, unknown columns {extra}")
        typed = _normalise(frame[list(cls.fields())], cls.fields())
        for name, column in cls.fields().items():
            for demand, met in column.demands(typed[name]):
                if not met.all():
                    raise ValueError(
                        f"table {cls.name}: column {name} {demand}, got {typed.loc[~met, name].tolist()[0]!r}"
                    )
        for sentence, rule in cls.rules.items():
            bad = typed[~rule(typed)]
            if len(bad):
                raise ValueError(
                    f"table {cls.name}: {sentence} does not hold, first in {bad.iloc[0].to_dict()}"
                )
        if typed.duplicated(list(cls.keys)).any():
            raise ValueError(f"table {cls.name}: rows with the same key {list(cls.keys)}")
        return typed.sort_values(list(cls.keys), kind="stable", ignore_index=True)

    @classmethod
    def save(cls, frame: pd.DataFrame, path: str | Path) -> None:
        """Check the frame and write it in one step: a reader sees the whole table or none."""
        _write(cls.check(frame), Path(path), cls.name)

    @classmethod
    def load(cls, *paths: str | Path, columns: list[str] | None = None) -> pd.DataFrame:
        """Read and check files of this table; with `columns` only those, without rules between columns."""
        frames = [_read(Path(path), cls.name, columns) for path in paths]
        if not frames:
            return cls.empty() if columns is None else cls.empty()[columns]
        frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        return frame if columns is not None else cls.check(frame)


def _normalise(frame: pd.DataFrame, fields: dict[str, Column]) -> pd.DataFrame:
    """Cast to the stated types; turn -0.0 into 0.0, so that equal tables are equal bytes."""
    typed = frame.astype({name: column.dtype for name, column in fields.items()})
    for name, column in fields.items():
        if column.dtype == "float64":
            typed[name] = typed[name] + 0.0
    return typed


def _write(frame: pd.DataFrame, path: Path, name: str) -> None:
    table = pyarrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(
        {"phaze": json.dumps({"table": name, "version": VERSION})}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pyarrow.parquet.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path, name: str, columns: list[str] | None) -> pd.DataFrame:
    try:
        table = pyarrow.parquet.read_table(
            path, columns=columns, page_checksum_verification=True, partitioning=None
        )
    except (OSError, pyarrow.ArrowException) as error:
        raise PhazeError(
            f"{path}: cannot be read as table {name}: {error}; delete it and run again"
        ) from error
    found = json.loads((table.schema.metadata or {}).get(b"phaze", b"{}"))
    if found != {"table": name, "version": VERSION}:
        raise PhazeError(
            f"{path}: holds {found or 'no phaze table'}, expected table {name} of version {VERSION}; "
            "delete it and run again"
        )
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    return frame


def table_name(path: str | Path) -> str:
    """Return the name of the table that a file says it holds, empty if it holds none."""
    try:
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowException) as error:
        raise PhazeError(f"{path}: cannot be read as a table: {error}") from error
    return str(json.loads(metadata.get(b"phaze", b"{}")).get("table", ""))
