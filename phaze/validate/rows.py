"""Read the rows of a user's table of runs in CSV, and write runs as such rows."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, get_args

import yaml

from phaze.base.errors import PhazeError
from phaze.base.files import refuse_endless, write_text
from phaze.base.nearest import choices
from phaze.base.printed import short
from phaze.layout import (
    COMPUTE_NAMES,
    OPTIMIZERS,
    READERS,
    Layout,
    Precision,
    Zero,
    compute_of,
    load_of,
)
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.pricing.runs import GRADIENT_BYTES, Gradients, Run
from phaze.runtimes.layout_string import layout_string, stages_of
from phaze.runtimes.megatron_software import Software
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.shared_rules import expert_widths
from phaze.spec.files import is_path, within
from phaze.spec.memory import MemoryKind
from phaze.spec.model import Model
from phaze.spec.models import load_transformer
from phaze.spec.recipes import STACK as RECIPES
from phaze.spec.recipes import month_of, release_of
from phaze.spec.systems import load_stack

if TYPE_CHECKING:
    import pandas as pd

WORDS = {
    "schedule": tuple(name for name, schedule in SCHEDULES.items() if schedule.in_runs),
    "optimizer": OPTIMIZERS,
    "precision": get_args(Precision),
    "gradients": get_args(Gradients),
    "outcome": ("ok", "oom"),
    "memory_kind": get_args(MemoryKind),
}
OVERLAPS = ("tp", "dp", "pp", "ep")
ABOUT = (
    "system", "stack", "release", "date", "outcome", "overlap_dp", "measured_s", "measured_gib", "memory_kind"
)  # fmt: skip
"""Columns for a run's machine and results, which are not fields of the run; also an old name of `overlap`."""
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_FIELDS = {field.name: field for field in fields(Layout)}
_NAMES = [name for name in _FIELDS if name != "vp"]
_NAMES.insert(_NAMES.index("zero"), "vp")
LAYOUT = {"chunks" if name == "vp" else name: name for name in _NAMES}
"""Layout field of each column, in the order in which a row is written."""
READ = LAYOUT | {"capacity": "load"}
"""Layout field of each column, including aliases that are only read."""
DERIVED = ("layout", "spec", "division", "recomputed")
"""Fields of a run that depend on several columns, or on a file that a column names."""
PARSED = {field.name: field for field in fields(Run) if field.name not in DERIVED} | {
    column: _FIELDS[name] for column, name in READ.items()
}
INDIRECT = ("model", "vp", "pipeline_layout")
"""Columns that are not fields of a run: a file, an alias of `chunks`, and the layers of every stage."""
COLUMNS = (*PARSED, *INDIRECT, *ABOUT)
"""All columns that are read."""
SIZES = ("hidden", "heads", "layers", "vocab")
"""Model sizes given as columns, which a named model also defines."""
REQUIRED = ("hidden", "heads", "layers", "seq", "vocab", "gpus", "global_batch")
"""Required columns; all others may be missing, or empty in a row."""
MICROBATCHES = ("1", "2", "4", "8")
"""Microbatch sizes tried if the column is empty; the fastest prediction that fits is used."""
MOST = 2**31
_OF_COLUMNS = {"overlap": None, "gradient_bytes": None, "vboost": None}
"""Properties of a stack that columns of a row override."""


@dataclass(frozen=True)
class RunRow:
    """Row of a table: the runs that it may describe, or its error."""

    runs: tuple[Run, ...]
    """One run, or several if the microbatch or the number of chunks is unspecified."""
    problem: str = ""
    system: str = ""
    """Name or path of the system; empty for the command's system."""
    stack: str = ""
    """Name or path of the software stack; empty for the system's own stack."""
    date: str = ""
    """Month of the run or of its software, such as 2025-04; empty: that of the stack."""
    release: str = ""
    """Release of the stack, whose recipe adds settings; empty for the stack file as it is."""
    measured_s: float | None = None
    measured_gib: float | None = None
    """Peak memory, on the device that uses the most."""
    memory_kind: str = ""
    """Kind of memory in `measured_gib`: allocated, reserved, device; empty for the stack's default."""
    outcome: str = "ok"
    """`ok`, or `oom` if the run ran out of memory."""

    @property
    def has_experts(self) -> bool:
        """True if the model is a mixture of experts."""
        return any(run.spec is not None and run.spec.experts is not None for run in self.runs)


def read_rows(path: Path) -> tuple[pd.DataFrame, tuple[RunRow, ...]]:
    """Read a table of runs, as text and as parsed rows; PhazeError if the file has another format."""
    import pandas as pd

    texts = read_texts(path)
    return pd.DataFrame(texts.lines, columns=texts.columns, dtype=str), texts.rows


@dataclass(frozen=True)
class RunTexts:
    """Table of runs as text: the names of its columns, and the cells of its lines."""

    path: Path
    columns: list[str]
    lines: list[list[str]]

    @property
    def rows(self) -> tuple[RunRow, ...]:
        """Parsed rows; PhazeError if a required column is missing."""
        from_model = SIZES if "model" in self.columns else ()
        missing = [name for name in REQUIRED if name not in self.columns and name not in from_model]
        if missing:
            raise PhazeError(
                f"{self.path}: columns {', '.join(missing)} are missing; required are {', '.join(REQUIRED)}"
            )
        cells = (dict(zip(self.columns, line, strict=True)) for line in self.lines)
        return tuple(read_row(texts, self.path.parent) for texts in cells)


def read_texts(path: Path) -> RunTexts:
    """Read a table of runs as text, its rows not parsed; PhazeError if the file is no table."""
    try:
        refuse_endless(path)
        # Excel and others begin UTF-8 files with a byte order mark
        with path.open(encoding="utf-8-sig", newline="") as file:
            names, *lines = _lines(file)
        return _with_header(path, [name.strip() for name in names], lines)
    except (OSError, ValueError, csv.Error) as error:
        raise PhazeError(f"{path}: cannot be read as CSV: {' '.join(str(error).split())}") from error


def _lines(file: TextIO) -> list[list[str]]:
    """Cells of all lines but blank ones, as many as the first line has; ValueError if a line has more."""
    reader = csv.reader(file, skipinitialspace=True, strict=True)
    lines: list[list[str]] = []
    for cells in reader:
        if cells in ([], [""]):
            continue
        width = len(lines[0]) if lines else len(cells)
        if len(cells) > width:
            raise ValueError(f"Expected {width} fields in line {reader.line_num}, saw {len(cells)}")
        lines.append([*cells, *[""] * (width - len(cells))])
    if not lines:
        raise ValueError("No columns to parse from file")
    return lines


def _with_header(path: Path, names: list[str], lines: list[list[str]]) -> RunTexts:
    """Table without columns that have no name; ValueError for a repeated name."""
    repeated = [name for name, times in Counter(filter(None, names)).items() if times > 1]
    if repeated:
        raise ValueError(f"columns {', '.join(repeated)} appear twice")
    named = [index for index, name in enumerate(names) if name]
    return RunTexts(path, [names[i] for i in named], [[line[i] for i in named] for line in lines])


def unknown_columns(table: pd.DataFrame) -> list[str]:
    """Columns that do not describe a run: columns of the user's own, or misspelt names."""
    return [name for name in table.columns if name not in COLUMNS]


def read_row(texts: Mapping[str, str], folder: Path = Path()) -> RunRow:
    """Parse a row from the cells of its columns; an empty cell counts as missing.

    Model paths are relative to `folder`.
    """
    cells = {name: text.strip() for name, text in texts.items() if text.strip()}
    try:
        release = release_of(cells["release"]) if "release" in cells else ""
        stack = cells.get("stack", RECIPES if release else "")
        if stack == RECIPES:  # the defaults of its recipes; those of Megatron-Core are tp, and false
            wide = str(cells.get("tp", "1") != "1").lower()
            cells = {"etp": "1", "sequence_parallel": wide, **cells}
        if release:
            cells = dict(_with_compute(cells))
            if cells.get("compute", "").lower() == "fp8":
                cells["compute"] = "fp8-cs"  # FP8 of a release is scaled by the current maximum
        return RunRow(
            possible_runs(cells, folder),
            system=cells.get("system", ""),
            stack=stack,
            release=release,
            date=month_of(cells["date"]) if "date" in cells else "",
            measured_s=_measured("measured_s", cells),
            measured_gib=_measured("measured_gib", cells),
            memory_kind=_word("memory_kind", cells["memory_kind"]) if "memory_kind" in cells else "",
            outcome=_word("outcome", cells.get("outcome", "ok")),
        )
    except PhazeError as error:
        return RunRow((), str(error))


def possible_runs(cells: Mapping[str, str], folder: Path = Path()) -> tuple[Run, ...]:
    """All runs that a row may describe, including invalid ones."""
    cells = _with_sizes(cells, folder)
    division = stages_of(cells["pipeline_layout"]) if "pipeline_layout" in cells else ()
    cells = _with_compute(_with_chunks(cells, len(division)))
    microbatches = MICROBATCHES if "microbatch" not in cells else (cells["microbatch"],)
    runs = []
    for microbatch in microbatches:
        run = _parse_run({**cells, "microbatch": microbatch}, folder, division)
        if "chunks" in cells or not SCHEDULES[run.schedule].chunked:
            runs.append(run)
        else:
            runs += [replace(run, layout=replace(run.layout, vp=v)) for v in _chunks(run)]
    # Only some runtimes require whole rounds: if no choice has them, all choices count.
    return tuple(list(filter(_fills_rounds, runs)) or runs)


def _fills_rounds(run: Run) -> bool:
    """True if the microbatches are a multiple of pp, which some runtimes require of chunked schedules."""
    count = run.global_batch // max(run.layout.microbatch * run.layout.dp, 1)
    return not SCHEDULES[run.schedule].chunked or count % run.layout.pp == 0


def _chunks(run: Run) -> list[int]:
    """Chunk counts that the schedule allows and that divide the blocks of every stage evenly."""
    pp, (least, most) = run.layout.pp, SCHEDULES[run.schedule].chunks
    if least == most:
        return [least]
    return [v for v in range(least, run.layers // pp + 1) if run.layers % (pp * v) == 0] or [least]


def _measured(name: str, cells: Mapping[str, str]) -> float | None:
    return _positive(name, cells[name]) if name in cells else None


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise PhazeError(f"{name} must be a number > 0, got {short(text)}")
    return value


def _with_sizes(cells: Mapping[str, str], folder: Path) -> Mapping[str, str]:
    """Fill in the sizes of the model that a row names; PhazeError if the row contradicts them."""
    if "model" not in cells:
        return cells
    spec = _load_spec(cells["model"], folder)
    sizes = {"hidden": spec.hidden, "heads": spec.heads, "layers": spec.layers, "vocab": spec.vocabulary}
    for name, size in sizes.items():
        if _positive_int(name, cells.get(name, str(size))) != size:
            raise PhazeError(f"{name} must be {size} or empty with model {cells['model']}, got {cells[name]}")
    if shaped := [name for name in ("kv_heads", "ffn", "gated") if name in cells]:
        raise PhazeError(f"{shaped[0]} must be empty with model {cells['model']}, got {cells[shaped[0]]}")
    return {**cells, **{name: str(size) for name, size in sizes.items()}}


def _load_spec(name: str, folder: Path) -> Model:
    """Load a transformer by its name in config/models, or from a file in the table's folder."""
    by_path = is_path(name) or name.endswith(".json")
    return load_transformer(str(within(folder, folder / name)) if by_path else name, "model")


def _with_compute(cells: Mapping[str, str]) -> Mapping[str, str]:
    """Move a row's precision to column `compute` if it names a compute format, as in `plan --precision`."""
    name = cells.get("precision", "").lower().replace("_", "-")
    if name in WORDS["precision"] or name not in COMPUTE_NAMES:
        return cells
    compute = cells.get("compute", name)
    if compute_of(compute) != compute_of(name):
        raise PhazeError(f"precision and compute must agree, got {short(name)} and {short(compute)}")
    return {**{key: text for key, text in cells.items() if key != "precision"}, "compute": compute}


def _with_chunks(cells: Mapping[str, str], listed: int) -> Mapping[str, str]:
    """Set a row's number of chunks from `vp` or from the `listed` stages of its pipeline layout."""
    # Each stream of a bidirectional schedule has all layers, so the layout lists one copy of them.
    copies = SCHEDULES[cells["schedule"]].streams if cells.get("schedule") in SCHEDULES else 1
    stages = copies * listed
    pp = _positive_int("pp", cells.get("pp", "1"))
    if stages % pp:
        raise PhazeError(f"pipeline_layout must have a multiple of pp {pp} stages, got {stages}")
    texts = {"vp": cells.get("vp", ""), "pipeline_layout": str(stages // pp) if stages else ""}
    chunks = cells.get("chunks", "")
    for name, text in texts.items():
        if chunks and text and _positive_int(name, text) != _positive_int("chunks", chunks):
            raise PhazeError(f"{name} and chunks must agree, got {short(text)} and {short(chunks)}")
        chunks = chunks or text
    return {**cells, "chunks": chunks} if chunks else cells


def _parse_run(cells: Mapping[str, str], folder: Path, division: tuple[str, ...]) -> Run:
    for name in REQUIRED:
        if name not in cells:
            raise PhazeError(f"{name} must be given")
    if "load" in cells and "capacity" in cells:
        raise PhazeError("give load or capacity, not both: a capacity is a load of this factor")
    recompute, _, blocks = cells.get("recompute", "none").partition(":")
    texts = {**cells, "recompute": recompute}
    values: dict[str, object] = {name: _reader(name)(name, texts[name]) for name in PARSED if name in texts}
    layout = {READ[name]: values.pop(name) for name in list(values) if name in READ}
    if "overlap" not in cells and "overlap_dp" in cells:
        # Tables of older versions have a flag for the only overlap that there was.
        values["overlap"] = ("dp",) if _flag("overlap_dp", cells["overlap_dp"]) else ()
    # Megatron-Core interleaves as soon as a device group has several chunks.
    if "schedule" not in cells and layout.get("vp", 1) != 1:
        values["schedule"] = "interleaved"
    if "model" in cells:
        values["spec"] = spec = _load_spec(cells["model"], folder)
        values.setdefault("mtp", spec.mtp)
        # Megatron-Core's default of --expert-tensor-parallel-size
        tp, ep = (_positive_int(name, cells.get(name, "1")) for name in ("tp", "ep"))
        layout = {**expert_widths(spec, tp, ep), **layout}
    elif values.get("mtp"):
        raise PhazeError(f"mtp must be 0 without model, got {cells['mtp']}")
    if division:
        values["division"] = division
    if blocks:
        values["recomputed"] = _recomputed_blocks(recompute, blocks)
    return Run(**values, layout=_layout(layout, cells))  # type: ignore[arg-type]


def _layout(fields: Mapping[str, object], cells: Mapping[str, str]) -> Layout:
    """Build a row's layout; dp defaults to the number of devices over the product of the other widths."""
    layout = Layout(**fields)  # type: ignore[arg-type]
    if "dp" in cells:
        return layout
    return replace(layout, dp=max(_positive_int("gpus", cells["gpus"]) // layout.devices, 1))


def _recomputed_blocks(recompute: str, blocks: str) -> int:
    """Number of recomputed blocks per stage, from an option such as `full:4`."""
    if recompute.lower() != "full":
        raise PhazeError(
            f"recompute: only full accepts a number of blocks, got {short(recompute)}:{short(blocks)}"
        )
    return _positive_int("recompute: blocks of full", blocks)


def _reader(name: str) -> Callable[[str, str], object]:
    if name in WORDS:
        return _word
    if name == "overlap":
        return _overlap
    if name in READERS or name == "capacity":
        return _option
    if name in ("flash_attention", "vboost") or isinstance(PARSED[name].default, bool):
        return _flag
    if name in ("mtp", "lora"):
        return _natural
    return _zero if name == "zero" else _positive_int


def _option(name: str, text: str) -> str:
    """Parse a layout option; an expert capacity factor becomes an expert load of the same factor."""
    return load_of(f"{_positive(name, text):f}") if name == "capacity" else READERS[name](text.lower())


def _natural(name: str, text: str) -> int:
    return 0 if text == "0" else _positive_int(name, text)


def _word(name: str, text: str) -> str:
    if text.lower() not in WORDS[name]:
        near = choices(text, WORDS[name], "config/formats.md")
        raise PhazeError(f"{name} must be one of {near}, got {short(text)}")
    return text.lower()


def _overlap(name: str, text: str) -> tuple[str, ...]:
    parts = tuple(part.strip().lower() for part in text.split("+"))
    if parts == ("none",):
        return ()
    if unknown := [part for part in parts if part not in OVERLAPS]:
        raise PhazeError(
            f"{name} must be none, or of {', '.join(OVERLAPS)} joined by +, got {short(unknown[0])}"
        )
    return parts


def _flag(name: str, text: str) -> bool:
    if text.lower() not in FLAGS:
        raise PhazeError(f"{name} must be one of {', '.join(FLAGS)}, got {short(text)}")
    return FLAGS[text.lower()]


def _zero(name: str, text: str) -> int:
    if text not in map(str, get_args(Zero)):
        raise PhazeError(f"{name} must be 0, 1, 2 or 3, got {short(text)}")
    return int(text)


def _positive_int(name: str, text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (1 <= number <= MOST and number == int(number)):
        raise PhazeError(f"{name} must be a whole number from 1 to {MOST}, got {short(text)}")
    return int(number)


assert all(PARSED[name].default is MISSING for name in REQUIRED)


def write_run(recipe: Recipe, system: str, stack: str, software: Software, out: Path) -> None:
    """Write a table of one run, its model spec next to it, and its software stack if needed.

    The stack is written if it differs from the named one in a property that has no column. Raises PhazeError
    if stages recompute different numbers of blocks: a row has one number.
    """
    spec, row = model_file(out), _cells_of(recipe, software)
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    stack_fields = software.stack.model_dump(mode="json")
    if {**stack_fields, **_OF_COLUMNS} != {**load_stack(stack).model_dump(mode="json"), **_OF_COLUMNS}:
        stack_path = out.with_name(f"{out.stem}-stack.yaml")
        stack = str(stack_path.resolve())
        write_text(stack_path, yaml.safe_dump(stack_fields, sort_keys=False))
    cells = {"model": spec.name, "system": system, "stack": stack, **row}
    table.writerows([list(cells), list(cells.values())])
    fields = recipe.model.model_dump(mode="json", exclude_none=True, exclude={"lora"})
    write_text(spec, yaml.safe_dump(fields, sort_keys=False))
    write_text(out, text.getvalue())


def model_file(out: Path) -> Path:
    """Path of the model spec that is written with a table."""
    return out.with_suffix(".yaml")


def _cells_of(recipe: Recipe, software: Software) -> dict[str, str]:
    layout, model, stack = recipe.layout, recipe.model, software.stack
    cells = {
        "seq": recipe.sequence,
        "gpus": layout.devices,
        "global_batch": recipe.global_batch,
        "schedule": recipe.schedule,
        "flash_attention": software.flash,
        "gradients": {size: word for word, size in GRADIENT_BYTES.items()}[stack.gradient_bytes],
        "vboost": stack.vboost,
        "overlap": software.overlap(recipe),  # a row rejects an overlap that its layout lacks
        "mtp": model.mtp,
        "lora": model.lora or 0,
        "pipeline_layout": layout_string(recipe.blocks, model.mtp),
        **{column: getattr(layout, name) for column, name in LAYOUT.items()},
        "recompute": _recompute_option(recipe),
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in cells.items()
    }


def _recompute_option(recipe: Recipe) -> str:
    """Recompute option, with a number of blocks per stage if not all blocks are recomputed."""
    recomputed, blocks = recipe.recomputed, recipe.blocks
    if recipe.layout.recompute != "full" or recomputed == blocks:
        return recipe.layout.recompute
    most = max(recomputed)
    if most == 0 or recomputed != tuple(min(most, count) for count in blocks):
        raise PhazeError(
            "recompute: a row has one number of blocks for all stages, got "
            f"{', '.join(map(str, recomputed))} of {', '.join(map(str, blocks))}"
        )
    return f"full:{most}"
