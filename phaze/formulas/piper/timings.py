"""Read and write the timings of a model's layers as CSV, one row per layer and configuration.

    layer,microbatch,t,recompute,kind,forward_s,backward_s,bytes
    block,1,2,none,tensor,0.0031,0.0058,201326592

Column `microbatch` may be missing (1), all others are needed; see `LayerTiming` for their meaning.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.base.files import read_text
from phaze.base.nearest import choices
from phaze.formulas.piper.requests import PiperRequest
from phaze.spec.planner_rows import LayerTiming

COLUMNS = tuple(field.alias or name for name, field in LayerTiming.model_fields.items())
REQUIRED = tuple(name for name in COLUMNS if name != "microbatch")
SHOWN = 10
"""Maximum number of mistakes that an error message lists."""
NUMBERS = ("microbatch", "t", "forward_s", "backward_s", "bytes")


def timings_text(rows: Iterable[LayerTiming]) -> str:
    """CSV of timings; numbers keep all their digits."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump(by_alias=True) for row in rows)
    return text.getvalue()


def read_timings(path: Path) -> tuple[LayerTiming, ...]:
    """Read the timings of a CSV file; PhazeError names file, row, column and allowed values."""
    try:
        table = csv.DictReader(read_text(path).splitlines(), restval="", skipinitialspace=True)
        header, lines = [name.strip() for name in table.fieldnames or ()], list(table)
    except (OSError, ValueError, csv.Error) as error:
        raise PhazeError(f"{path}: cannot be read as CSV: {error}") from error
    missing, unknown = (
        [name for name in names if name not in others]
        for names, others in ((REQUIRED, header), (header, COLUMNS))
    )
    if missing or unknown or len({*header}) < len(header):
        wrong = (
            f"lacks columns {', '.join(missing)}"
            if missing
            else f"has columns {', '.join(unknown or header)}"
        )
        raise PhazeError(
            f"{path}: {wrong}; columns are {', '.join(COLUMNS)}, each once", "microbatch may be left out"
        )
    rows = []
    for number, line in enumerate(lines, 1):
        cells = {str(name).strip(): str(text).strip() for name, text in line.items() if name is not None}
        cells = {name: text for name, text in cells.items() if text}
        fields = {name: _number(text) if name in NUMBERS else text for name, text in cells.items()}
        rows.append(LayerTiming.parse(fields, f"{path}: row {number}"))
    if not rows:
        raise PhazeError(f"{path}: has no rows", f"give a row with {', '.join(COLUMNS)} for each layer")
    return tuple(rows)


def check_timings(rows: tuple[LayerTiming, ...], request: PiperRequest, path: Path) -> None:
    """Raise PhazeError for rows that do not fit the request's model, widths, runtime and batch."""
    mistakes = [f"{path}: row {number}: {wrong}" for number, wrong in _mistakes(rows, request)]
    if not mistakes:
        mistakes = [f"{path}: {wrong}" for wrong in _lacking(rows, request)]
    if mistakes:
        raise PhazeError("\n".join(mistakes[:SHOWN]), "--write-layers FILE writes rows that fit, to fill in")


def _mistakes(rows: tuple[LayerTiming, ...], request: PiperRequest) -> Iterator[tuple[int, str]]:
    task, runtime = request.question.task, request.question.runtime
    layers, recomputes = request.layer_names, runtime.recomputes(task.model)
    seen = set[tuple[object, ...]]()
    for number, row in enumerate(rows, 1):
        if row.layer not in layers:
            yield number, f"layer: {row.layer!r} is not a layer of {task.model.name}: {', '.join(layers)}"
        if row.recompute not in recomputes:
            allowed = choices(row.recompute, recomputes, f"the options of {runtime.name}")
            yield number, f"recompute: must be one of {allowed}, got {row.recompute!r}"
        kinds = [kind for t, kind in request.splits(row.microbatch) if t == row.t]
        if not kinds:
            allowed = ", ".join(map(str, request.widths()))
            yield number, f"t: must be one of {allowed}, which divide model, devices and node, got {row.t}"
        elif row.kind not in kinds:
            yield number, f"kind: must be {' or '.join(kinds)} on t = {row.t} devices, got {row.kind!r}"
        if task.global_batch % row.microbatch:
            yield number, f"microbatch: must divide the batch of {task.global_batch}, got {row.microbatch}"
        key = (row.layer, row.microbatch, row.t, row.recompute, row.kind)
        if key in seen:
            yield number, "repeats layer, microbatch, t, recompute and kind of an earlier row"
        seen.add(key)


def _lacking(rows: tuple[LayerTiming, ...], request: PiperRequest) -> Iterator[str]:
    timed = Counter((row.microbatch, row.layer) for row in rows)
    for size in sorted({row.microbatch for row in rows}):
        if absent := [name for name in request.layer_names if not timed[size, name]]:
            yield f"no row for layer {', '.join(absent)} with microbatch {size}"


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
