"""Definition of a table: typed columns with a key, checked when written, with a digest for reading.

A table is a pandas frame in memory and a Parquet file on disk. Its class states the columns with their types,
the key, the ranges and the rules between columns. Files are byte-deterministic: rows sorted by key, `-0.0`
normalised, no timestamps. They are written to a temporary name and renamed, so that no reader ever sees half
a table. A file contains the digest of its bytes, and a damaged file is refused. Contents are checked when
written, not when read. The checks are implemented here, because importing a validation library would take
longer than most of a job's work.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import ClassVar, get_args, get_type_hints

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from annotated_types import Gt

from phaze.base.arrays import Bools, Ints
from phaze.base.docstrings import documentation_of
from phaze.base.errors import PhazeError
from phaze.base.files import atomic_path, refuse_endless
from phaze.base.store import digest_of
from phaze.layout import Layout
from phaze.spec.noun import Noun

VERSION = "2"
"""Version of the table formats; files of other versions are refused."""
SEAL = b'"sha256": "'
BLANK = b"0" * 64
"""Placeholder for the digest while it is computed."""

Rule = Callable[[pd.DataFrame], pd.Series]
Where = Mapping[str, Sequence[str] | Sequence[int]]
"""Row filter: allowed values by column."""


@dataclass(frozen=True)
class Column:
    """Column of a table: its type, its description, and the allowed range or values."""

    dtype: str
    """'str', 'int64', 'float64' or 'bool'."""
    about: str
    minimum: float | None = None
    values: tuple[str, ...] = ()
    finite: bool = True
    """False if infinity has a meaning (for example the time of an infeasible placement)."""
    order: Callable[[str], Layout] | None = None
    """Sort key of a text column, if that is not the text itself."""

    def ranks(self, values: pd.Series) -> Ints:
        """Rank of every value among the distinct values, in the sort order of the column."""
        if self.order is None:
            return pd.factorize(values, sort=True)[0]
        codes, distinct = pd.factorize(values)
        places = {value: place for place, value in enumerate(sorted(distinct, key=self.order))}
        return np.array([places[value] for value in distinct], dtype=np.int64)[codes]

    def demands(self, values: pd.Series) -> Iterator[tuple[str, Bools]]:
        """Yield each requirement on the values, with a mask of the values that meet it."""
        array = values.array if self.dtype == "str" else values.to_numpy()
        if self.dtype in ("str", "float64"):
            yield "must not be missing", ~pd.isna(array)
        if self.minimum is not None:
            yield f"must be at least {self.minimum:g}", array >= self.minimum
        # The mask is made only if a value is wrong: usually a column has few distinct values.
        if self.values and not set(values.unique()) <= set(self.values):
            yield f"must be one of {', '.join(self.values)}", values.isin(self.values).to_numpy(np.bool_)
        if self.dtype == "float64" and self.finite:
            yield "must be finite", np.isfinite(array)


def text(about: str, *values: str) -> Column:
    """Text column, optionally restricted to the given values."""
    return Column("str", about, values=values)


def count(about: str, minimum: int = 0) -> Column:
    """Integer column."""
    return Column("int64", about, minimum=minimum)


def real(about: str, minimum: float | None = 0.0, *, finite: bool = True) -> Column:
    """Real column, by default finite and not negative."""
    return Column("float64", about, minimum=minimum, finite=finite)


def flag(about: str) -> Column:
    """Boolean column."""
    return Column("bool", about)


def columns_of(noun: type, *names: str) -> dict[str, Column]:
    """Columns for fields (by default all) of a Noun or dataclass, with types, minima and descriptions.

    A column has no missing values, whether or not the field may be None.
    """
    about = documentation_of(noun)
    types = {name: _without_none(kind) for name, kind in get_type_hints(noun).items()}
    nouns = noun.model_fields if issubclass(noun, Noun) else {}
    columns = {}
    for name in names or about:
        if types[name] is bool:
            columns[name] = flag(about[name])
        elif types[name] is int:
            # A field that must be > 0 gives a column from 1, any other integer one from 0.
            rules = nouns[name].metadata if name in nouns else ()
            columns[name] = count(about[name], int(any(isinstance(rule, Gt) for rule in rules)))
        elif types[name] is float:
            columns[name] = real(about[name])
        else:
            columns[name] = text(about[name], *get_args(types[name]))
    return columns


def _without_none(kind: object) -> object:
    """Type without None, for a field that may be None."""
    kinds = [member for member in get_args(kind) if member is not NoneType]
    return kinds[0] if len(kinds) == 1 and NoneType in get_args(kind) else kind


class Table:
    """Base class of tables; subclasses declare columns and rules, and describe the contents in docstrings."""

    name: ClassVar[str]
    """Plural noun derived from the class name; also the folder under results/."""
    keys: ClassVar[dict[str, Column]]
    columns: ClassVar[dict[str, Column]]
    rules: ClassVar[dict[str, Rule]] = {}
    """Rules between columns: a sentence, and a function of the frame that is true for every valid row."""

    def __init_subclass__(cls) -> None:
        if Table in cls.__bases__:
            cls.name = re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__).lower()
            TABLES[cls.name] = cls

    @classmethod
    def fields(cls) -> dict[str, Column]:
        """All columns, keys first, in their order in the file."""
        return {**cls.keys, **cls.columns}

    @classmethod
    def empty(cls) -> pd.DataFrame:
        """Typed table without rows."""
        return pd.DataFrame({name: pd.Series([], dtype=c.dtype) for name, c in cls.fields().items()})

    @classmethod
    def check(cls, frame: pd.DataFrame) -> pd.DataFrame:
        """Check a frame, and return it typed, ordered and sorted by key; ValueError if it breaks a rule."""
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
            good = rule(typed)
            if not good.all():
                raise ValueError(
                    f"table {cls.name}: {sentence} does not hold, first in {typed[~good].iloc[0].to_dict()}"
                )
        return cls._sorted(typed)

    @classmethod
    def save(cls, frame: pd.DataFrame, path: str | Path, *, checked: bool = False) -> None:
        """Check the frame, unless it has been `checked`, and write it atomically."""
        _write(frame if checked else cls.check(frame), Path(path), cls.name)

    @classmethod
    def load(
        cls, *paths: str | Path, columns: list[str] | None = None, where: Where | None = None
    ) -> pd.DataFrame:
        """Read files of this table, with all columns sorted by key, or only `columns` in file order.

        `where` selects rows by values of columns, which must be among the columns read. For large tables this
        is much faster than selecting afterwards.

        A file's digest shows that it is unchanged since it was checked on writing. With several files the
        keys are checked again. Raises PhazeError for a damaged file, another table, or another version of
        this one.
        """
        if unknown := set(columns or ()) - set(cls.fields()):
            raise ValueError(
                f"table {cls.name}: has no columns {sorted(unknown)}"
            )  # Parquet ignores unknown columns
        tables = [_read(Path(path), cls.name, list(cls.fields()), columns, where or {}) for path in paths]
        if not tables:
            return cls.empty() if columns is None else cls.empty()[columns]
        table = tables[0] if len(tables) == 1 else pyarrow.concat_tables(tables).combine_chunks()
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True, use_threads=False)
        # A single file is sorted already; a frame without its keys cannot be sorted.
        return frame if columns is not None or len(tables) == 1 else cls._sorted(frame)

    @classmethod
    def _sorted(cls, frame: pd.DataFrame) -> pd.DataFrame:
        """Frame sorted by key; raises ValueError for duplicate keys."""
        # Ranks replace values as sort keys, since layouts are ordered by their widths and not as text.
        codes = np.stack([column.ranks(frame[key]) for key, column in cls.keys.items()])
        order = np.lexsort(codes[::-1])
        ranked = codes[:, order]
        if (ranked[:, 1:] == ranked[:, :-1]).all(axis=0).any():
            raise ValueError(f"table {cls.name}: rows with the same key {list(cls.keys)}")
        ordered = bool((np.diff(order) == 1).all())
        return (frame if ordered else frame.iloc[order]).reset_index(drop=True)


TABLES: dict[str, type[Table]] = {}
"""Every imported table by name."""


def _normalise(frame: pd.DataFrame, fields: dict[str, Column]) -> pd.DataFrame:
    """Cast to the declared types, and turn -0.0 into 0.0, so that equal tables have identical bytes."""
    others = {name: column.dtype for name, column in fields.items() if frame[name].dtype != column.dtype}
    typed = frame.astype(others) if others else frame.copy(deep=False)
    for name, column in fields.items():
        # The sum of -0.0 and 0.0 is 0.0; the frame is copied, so the caller's columns stay as they are.
        values = typed[name].to_numpy() if column.dtype == "float64" else np.empty(0)
        if (np.signbit(values) & (values == 0.0)).any():
            typed[name] = values + 0.0
    return typed


def _write(frame: pd.DataFrame, path: Path, name: str) -> None:
    about = {"table": name, "version": VERSION, "sha256": BLANK.decode()}
    table = pyarrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    buffer = pyarrow.BufferOutputStream()
    with pyarrow.parquet.ParquetWriter(
        buffer, table.schema, compression="zstd", store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"phaze": json.dumps(about)})
    content = buffer.getvalue().to_pybytes()
    # The digest is in the metadata at the end; data before it may contain the same text. Digest and
    # placeholder have the same length, so no offset inside the file changes.
    at = content.rindex(SEAL) + len(SEAL)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content[:at] + _digest(content, at) + content[at + len(BLANK) :])


def _digest(content: bytes, at: int) -> bytes:
    """SHA-256 of a file in which the placeholder replaces the digest at offset `at`."""
    view = memoryview(content)
    digest = hashlib.sha256(view[:at])
    digest.update(BLANK)
    digest.update(view[at + len(BLANK) :])
    return digest.hexdigest().encode()


def _read(path: Path, name: str, fields: list[str], columns: list[str] | None, where: Where) -> pyarrow.Table:
    """Read a table file in a single thread, because a job has one core and a study's files are small."""
    try:
        refuse_endless(path)
        content = path.read_bytes()
        _refuse_damaged(content)
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content))
        _refuse_other_tables(file.schema_arrow, name, fields)
        if where:
            table = _read_selected(content, file.schema_arrow, columns, where)
        else:
            table = file.read(columns=columns, use_threads=False)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        raise PhazeError(
            f"{path}: cannot be read as table {name}: {reason}", "delete it and run again"
        ) from error
    return table


def _read_selected(
    content: bytes, schema: pyarrow.Schema, columns: list[str] | None, where: Where
) -> pyarrow.Table:
    """Rows selected by `where`; text is decoded for these rows only, because decoding is slow."""
    texts = [field.name for field in schema if pyarrow.types.is_string(field.type)]
    file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), read_dictionary=texts)
    table = file.read(columns=columns, use_threads=False)
    for column, values in where.items():
        # No values have no type of their own.
        kept = pyarrow.array(values, type=schema.field(column).type)
        table = table.filter(pyarrow.compute.is_in(table[column], value_set=kept))
    return table.cast(pyarrow.schema([schema.field(name) for name in table.column_names]))


def _refuse_damaged(content: bytes) -> None:
    """Raise ValueError if a file with a digest has changed since it was written."""
    at = content.rfind(SEAL) + len(SEAL)
    # A file of another program has no digest; `_refuse_other_tables` then names what is missing.
    if at >= len(SEAL) and content[at : at + len(BLANK)] != _digest(content, at):
        raise ValueError("it was damaged since it was written")


def _refuse_other_tables(schema: pyarrow.Schema, name: str, fields: list[str]) -> None:
    """Raise ValueError unless a file contains this table, in this version, with a digest."""
    about = _about(schema)
    identity = [str(about[key]) for key in ("table", "version") if key in about]
    if identity != [name, VERSION]:
        contents = f"table {' of version '.join(identity)}" if identity else "no phaze table"
        raise ValueError(f"it holds {contents}, expected table {name} of version {VERSION}")
    if "sha256" not in about:
        raise ValueError("it has no digest")
    if schema.names != fields:
        raise ValueError(f"it holds columns {schema.names}, expected {fields}")


def _about(schema: pyarrow.Schema) -> dict[str, object]:
    """Table, version and digest from a file's metadata; empty if the metadata is not a JSON object."""
    # Any program may write the key, so its content is not trusted to be an object.
    about = json.loads((schema.metadata or {}).get(b"phaze", b"{}"))
    return about if isinstance(about, dict) else {}


def content_digest(*frames: pd.DataFrame) -> str:
    """Digest of the values of several tables."""
    return digest_of([{str(name): frame[name].tolist() for name in frame} for frame in frames])


def are_among(names: pd.Series, distinct: pd.Index) -> Bools:
    """Mask of the names that are known; faster than pandas, which creates an object per name (2 us)."""
    result: Bools = places_among(names, distinct) >= 0
    return result


def places_among(names: pd.Series, distinct: pd.Index) -> Ints:
    """Index of each name in the distinct known names, -1 if unknown."""
    text = pyarrow.large_string()
    value_set = pyarrow.array(distinct.array, type=text)
    places = pyarrow.compute.index_in(pyarrow.array(names.array, type=text), value_set=value_set)
    result: Ints = places.fill_null(-1).to_numpy().astype(np.int64)
    return result


def table_name(path: str | Path) -> str:
    """Table name declared by a file, empty if it declares none."""
    try:
        refuse_endless(Path(path))
        return str(_about(pyarrow.parquet.read_schema(path)).get("table", ""))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise PhazeError(f"{path}: cannot be read as a table: {error}") from error
