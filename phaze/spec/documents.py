"""Strict JSON files for people and other programs; errors are reported one per line.

Files that one job of a study passes to the next end with a checksum, verified on reading: a flipped bit on
disk would otherwise go unnoticed. Plan files end with a checksum of every field, since not all of a plan can
be computed again without its search.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from phaze.base.errors import PhazeError
from phaze.base.files import refuse_unwritable, write_text
from phaze.base.printed import short
from phaze.spec.names import MOST
from phaze.spec.noun import mistakes
from phaze.spec.plain import Plain, read_json
from phaze.spec.values import Count, Positive, Size, Whole, repeated

CHECKSUM = "sha256"
"""Last key of a checksummed file: SHA-256 of the text without this key, or of every field by name."""
# 64 bits: checksums of fields are for slips of an editor, not against forgery.
SHORTENED = 16
"""Hexadecimal digits of a field's checksum."""
_END = "\n}\n"
Kind = TypeVar("Kind", bound=BaseModel)


class CamelCase(BaseModel):
    """Base of JSON objects with camelCase keys; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class ClusterInstance(CamelCase):
    """Cluster and batch of a planner's input instance."""

    max_memory_per_device: Positive
    max_devices: Count
    bandwidth: Positive
    mbs_in_batch: Count


class LayerEdge(CamelCase):
    """Tensor passed from one layer to another."""

    source_id: Whole
    dest_id: Whole
    communication_cost: Size


def read_as(kind: type[Kind], path: str | Path) -> Kind:
    """Read a JSON file as a given type; PhazeError names file, key, value and allowed values."""
    loaded = _read_object(Path(path))
    if "format" in kind.model_fields:
        (expected,) = get_args(kind.model_fields["format"].annotation)
        if (stated := loaded.get("format")) != expected:
            wrong = f"{path}: format: must be {expected}, got {short(stated)}"
            raise PhazeError(wrong, "see config/formats.md")
    try:
        # Only names of the format: the models would accept Python's names of fields as well.
        return kind.model_validate(loaded, by_alias=True, by_name=False)
    except ValidationError as error:
        raise mistakes(error, str(path), kind, "config/formats.md") from error


def text_of(stored: BaseModel) -> str:
    """JSON text of a document; fields that are None are omitted.

    A document that has the field `sha256` gets the checksums of all other fields there.
    """
    text = stored.model_dump_json(indent=1, exclude_none=True, exclude={CHECKSUM}) + "\n"
    if CHECKSUM not in type(stored).model_fields:
        return text
    # Of the values as a reader will parse them, however they were written.
    digests = {name: _field_digest(value) for name, value in json.loads(text).items()}
    return f'{text.removesuffix(_END)},\n "{CHECKSUM}": {json.dumps(digests)}{_END}'


def write_document(stored: BaseModel, path: Path) -> None:
    """Write a document atomically as JSON into an existing folder; PhazeError if that fails."""
    refuse_unwritable(path)
    write_text(path, text_of(stored))


def write_checked(text: str, path: Path) -> None:
    """Append a checksum to the text of a JSON object and write it; PhazeError if that fails."""
    write_text(path, f'{text.removesuffix(_END)},\n "{CHECKSUM}": "{_digest(text)}"{_END}')


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_width(width: str) -> None:
    """Raise ValueError unless a key is a valid tensor-parallel (TMP) width."""
    if re.fullmatch("[1-9][0-9]{0,6}", width) is None or int(width) > MOST:
        raise ValueError(f"TMP width {width!r} must be a positive whole number up to {MOST}, as a string")


def repeated_ids(ids: Iterable[int]) -> Iterator[str]:
    """Yield a message for each id that several layers share."""
    for layer, times in repeated(ids):
        yield f"id {layer} is given {times} times; ids must be unique"


def bad_edges(ids: set[int], edges: list[LayerEdge]) -> Iterator[str]:
    """Yield a message for each edge with an unknown end, from a layer to itself, or repeated."""
    for edge in edges:
        name = f"edge {edge.source_id} -> {edge.dest_id}"
        for key, end in (("sourceId", edge.source_id), ("destId", edge.dest_id)):
            if end not in ids:
                yield f"{name}: {key} {end} is not the id of a node"
        if edge.source_id == edge.dest_id:
            yield f"{name}: connects a layer to itself; the graph must not have cycles"
    for (source, target), times in repeated((e.source_id, e.dest_id) for e in edges):
        yield f"edge {source} -> {target} is given {times} times"


def _read_object(path: Path) -> dict[str, Plain]:
    loaded = read_json(path)
    if not isinstance(loaded, dict):
        raise PhazeError(f"{path}: must hold a JSON object, got {type(loaded).__name__}")
    checksum = loaded.pop(CHECKSUM, None)
    if isinstance(checksum, dict):
        _compare_fields(path, loaded, checksum)
    elif checksum is not None:
        _compare_checksum(path, checksum)
    return loaded


def _field_digest(value: Plain) -> str:
    """Checksum of a field, independent of the order of keys and of spaces."""
    return _digest(json.dumps(value, sort_keys=True))[:SHORTENED]


def _compare_fields(path: Path, loaded: dict[str, Plain], checksums: dict[str, Plain]) -> None:
    """Raise PhazeError, naming a field, if its content does not match its checksum."""
    for name in {**loaded, **checksums}:
        if name not in loaded or _field_digest(loaded[name]) != checksums.get(name):
            raise PhazeError(
                f"{path}: {name}: was changed since phaze wrote it",
                f"run the command that wrote it again, or delete the key {CHECKSUM}: what follows from the "
                "other fields is then computed again",
            )


def _compare_checksum(path: Path, checksum: Plain) -> None:
    # The digest is of the text and not of its values, so that any changed byte counts.
    text = path.read_text(encoding="utf-8").rpartition(f',\n "{CHECKSUM}": ')[0] + _END
    if _digest(text) != checksum:
        raise PhazeError(
            f"{path}: content does not match its {CHECKSUM}",
            "delete it and run again; if you edited it yourself, delete only that key",
        )
