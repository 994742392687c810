"""The tables through which the stages talk: one class a table, checked on every write and every read.

A table is a pandas frame in memory and a Parquet file on disk. Its class states the columns with their types, the
key, the ranges and the rules between columns. Files are byte-deterministic: rows sorted by key, `-0.0`
normalised, no timestamps; they are written to a temporary name and renamed, so that no reader ever sees half a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pandera.pandas as pa
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

    def schema(self) -> pa.Column:
        """Return the pandera column."""
        checks = []
        if self.minimum is not None:
            checks.append(pa.Check.ge(self.minimum))
        if self.values:
            checks.append(pa.Check.isin(self.values))
        if self.dtype == "float64" and self.finite:
            checks.append(pa.Check(np.isfinite, error="must be finite"))
        return pa.Column(self.dtype, checks=checks, nullable=False)


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
        """Return the frame in canonical form (columns in order, typed, sorted by key), or raise ValueError."""
        missing = [name for name in cls.fields() if name not in frame.columns]
        extra = [name for name in frame.columns if name not in cls.fields()]
        if missing or extra:
            raise ValueError(f"table {cls.name}: missing columns {missing}, unknown columns {extra}")
        typed = _normalise(frame[list(cls.fields())], cls.fields())
        schema = pa.DataFrameSchema({name: column.schema() for name, column in cls.fields().items()})
        try:
            typed = schema.validate(typed)
        except pa.errors.SchemaError as error:
            raise ValueError(f"table {cls.name}: {error}") from error
        for sentence, rule in cls.rules.items():
            bad = typed[~rule(typed)]
            if len(bad):
                raise ValueError(f"table {cls.name}: {sentence} does not hold, first in {bad.iloc[0].to_dict()}")
        if typed.duplicated(list(cls.keys)).any():
            raise ValueError(f"table {cls.name}: rows with the same key {list(cls.keys)}")
        return typed.sort_values(list(cls.keys), kind="stable", ignore_index=True)

    @classmethod
    def save(cls, frame: pd.DataFrame, path: str | Path) -> None:
        """Check the frame and write it in one step: a reader sees the whole table or none."""
        _write(cls.check(frame), Path(path), cls.name)

    @classmethod
    def load(cls, *paths: str | Path, columns: list[str] | None = None) -> pd.DataFrame:
        """Read and check one or more files of this table; with `columns` only those, unchecked between columns."""
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
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path, name: str, columns: list[str] | None) -> pd.DataFrame:
    try:
        table = pyarrow.parquet.read_table(
            path, columns=columns, page_checksum_verification=True, partitioning=None
        )
    except (OSError, pyarrow.ArrowException) as error:
        raise PhazeError(f"{path}: cannot be read as table {name}: {error}; delete it and run again") from error
    found = json.loads((table.schema.metadata or {}).get(b"phaze", b"{}"))
    if found != {"table": name, "version": VERSION}:
        raise PhazeError(
            f"{path}: holds {found or 'no phaze table'}, expected table {name} of version {VERSION}; "
            "delete it and run again"
        )
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    return frame


_MODEL = text("name of the workload")
_TENSOR = count("tensor model parallel width t", 1)
_MICROBATCH = count("samples in a microbatch b", 1)
_LAYER = text("distinct layer: embedding, block, head")
_DIRECTION = text("pass", "forward", "backward")
_ARCHITECTURE = text("name of the architecture")
_POINT = {"model": _MODEL, "tensor": _TENSOR, "microbatch": _MICROBATCH}
_OPERATOR = {"layer": _LAYER, "direction": _DIRECTION, "operator": count("topological index within layer and pass")}
_CORES = ("tensor", "vector", "fused", "network", "none")
_LIMITS = ("compute", "vector", "global_buffer", "hbm", "network")
_ENERGIES = ("mac", "register", "l2", "glb", "hbm", "link")


class Operators(Table):
    """Operators of every distinct layer, after fusion."""

    name = "operators"
    about = "operators of every distinct layer, forward and backward, with their core type, work and bytes"
    keys = {**_POINT, **_OPERATOR}
    columns = {
        "name": text("readable name"),
        "core": text("core type that runs it", *_CORES),
        "work": count("id of equal work within the file, -1 for no-ops", -1),
        "tensor_flops": real("FLOPs of matrix multiplications"),
        "vector_flops": real("FLOPs of everything else"),
        "input_bytes": real("activations read"),
        "parameter_bytes": real("parameters read"),
        "output_bytes": real("activations written"),
        "stashed_bytes": real("activations kept for the backward pass"),
    }
    rules = {"only no-ops have no work": lambda f: (f["work"] < 0) == (f["core"] == "none")}


class Parts(Table):
    """Primitives inside a distinct (fused) operator: what the estimate needs, and nothing else."""

    name = "parts"
    about = "primitives inside each distinct work: one row a matrix multiplication, vector operation or collective"
    keys = {**_POINT, "work": count("id of equal work within the file"), "part": count("order inside the work")}
    columns = {
        "core": text("core type of the whole work", *_CORES[:4]),
        "kind": text("matmul, all_reduce, or a key of the vector cycle tables"),
        "role": text("pass of the primitive", "forward", "backward", "data_gradient", "weight_gradient"),
        "batch": count("independent products of a matmul, 0 otherwise"),
        "m": count("rows of the left operand"),
        "k": count("contracted dimension"),
        "n": count("columns of the right operand"),
        "elements": count("output elements of a vector operation or collective"),
        "streamed_bytes": real("HBM bytes beside a matmul's operands and result"),
        "network_bytes": real("bytes of the tensor that a collective combines"),
    }


class Edges(Table):
    """Data flow between the operators of a distinct layer."""

    name = "edges"
    about = "data flow between operators of a distinct layer"
    keys = {
        **_POINT,
        "layer": _LAYER,
        "direction": _DIRECTION,
        "source": count("operator that writes"),
        "target": count("operator that reads"),
    }
    columns = {"bytes": real("bytes passed")}
    rules = {"operators are in topological order": lambda f: f["source"] < f["target"]}


class Layers(Table):
    """Distinct layers with what memory and pipeline need to know of them."""

    name = "layers"
    about = "distinct layers: parameters, activations, bytes on their pipeline edges, FLOPs"
    keys = {**_POINT, "layer": _LAYER}
    columns = {
        "parameters": count("parameters of one slice"),
        "parameter_bytes": real("weights of one slice"),
        "activation_bytes": real("forward activations stashed for one microbatch, one slice"),
        "input_bytes": real("activations that arrive over the pipeline"),
        "output_bytes": real("activations passed on over the pipeline"),
        "tensor_parallel": flag("is split over the t devices"),
        "forward_tensor_flops": real("matrix multiplication FLOPs of the forward pass, one slice"),
        "forward_vector_flops": real("other FLOPs of the forward pass, one slice"),
        "operators": count("operators of the forward pass before fusion"),
    }


class Graphs(Table):
    """The layer graph of a model as a chain of runs."""

    name = "graphs"
    about = "layer graph of a model: a chain of runs of equal layers"
    keys = {"model": _MODEL, "position": count("position of the run in the chain")}
    columns = {"layer": _LAYER, "count": count("equal layers in the run", 1)}


class Architectures(Table):
    """Architectures of a shard with their areas and core designs."""

    name = "architectures"
    about = "architectures of a shard: cores, buffers, area, and the ids of their core designs"
    keys = {"shard": text("shard"), "architecture": _ARCHITECTURE}
    columns = {
        "num_tc": count("tensor cores", 1),
        "num_vc": count("vector cores", 1),
        "pe_x": count("rows of a tensor core", 1),
        "pe_y": count("columns of a tensor core", 1),
        "pe_vc": count("lanes of a vector core", 1),
        "glb_bytes": count("global buffer", 1),
        "glb_words_per_cycle": real("global buffer bandwidth"),
        "l2_tc_bytes": count("L2 buffer of a tensor core", 1),
        "l2_vc_bytes": count("L2 buffer of a vector core", 1),
        "area_um2": real("area of the chip"),
        "tensor_um2": real("multiply-accumulate units of the tensor cores"),
        "vector_um2": real("lanes of the vector cores"),
        "l2_um2": real("L2 buffers"),
        "glb_um2": real("global buffer"),
        "area_interpolated": flag("some buffer size lies between the published areas"),
        "named": flag("asked for by name: kept whatever the screen says"),
        "tensor_design": count("id of the tensor-core design in estimates"),
        "vector_design": count("id of the vector-core design in estimates"),
        "fused_design": count("id of the fused-core design in estimates"),
    }


class Estimates(Table):
    """Latency and energy of every distinct work on every core design."""

    name = "estimates"
    about = "latency and dynamic energy of every work on one core and on all cores of every design"
    keys = {**_POINT, "work": count("id of the work"), "design": count("id of the core design")}
    columns = {
        "latency_s": real("on one core (l)"),
        "latency_all_s": real("on all cores of the type (l-hat)"),
        "limit": text("what binds on one core", *_LIMITS),
        "limit_all": text("what binds on all cores", *_LIMITS),
        **{f"{part}_j": real(f"{part} energy on one core") for part in _ENERGIES},
        **{f"{part}_all_j": real(f"{part} energy on all cores") for part in _ENERGIES},
    }
    rules = {"all cores are never slower than one": lambda f: f["latency_all_s"] <= f["latency_s"]}


class Screens(Table):
    """Bounds on the time per batch of every architecture of a shard."""

    name = "screens"
    about = "lower bound and feasible value of the time per batch, for every architecture, HBM size and recompute"
    keys = {
        **_POINT,
        "architecture": _ARCHITECTURE,
        "hbm_gib": real("HBM capacity"),
        "recompute": flag("activations are recomputed"),
    }
    columns = {
        "lower_s": real("no placement is faster; infinite if none fits", finite=False),
        "feasible_s": real("some placement is this fast; infinite if none fits", finite=False),
        "kept": flag("could be among the best of its shard, or is named"),
    }
    rules = {"the lower bound is not above the feasible value": lambda f: f["lower_s"] <= f["feasible_s"]}


_LAYER_OF = {**_POINT, "architecture": _ARCHITECTURE, "layer": _LAYER, "direction": _DIRECTION}


class Solves(Table):
    """How well the schedule of every layer is known, and who proved it."""

    name = "solves"
    about = "objective, bound and gap of the schedule of every layer, with the solver that proved it"
    keys = _LAYER_OF
    columns = {
        "status": text("what is known", "optimal", "feasible", "timed_out"),
        "objective_s": real("latency of the verified schedule"),
        "bound_s": real("no schedule is shorter"),
        "gap": real("(objective - bound) / objective"),
        "method": text("bounds meet, or a program was solved", "bounds", "program"),
        "solver": text("solver of the hardest component, 'none' without one"),
        "version": text("its version"),
        "formulation": text("formulation of the program", "paper", "sparse", "none"),
        "operators": count("operators scheduled"),
        "components": count("series components that needed a program"),
        "variables": count("variables of all programs"),
        "constraints": count("constraints of all programs"),
        "z_needed": flag("core assignment had to enter the program"),
        "all_cores_s": real("latency of running every operator on all cores"),
    }
    rules = {"the bound is not above the objective": lambda f: f["bound_s"] <= f["objective_s"]}


class Schedules(Table):
    """When and where every operator of a kept architecture runs."""

    name = "schedules"
    about = "core, start and end of every operator in the best schedule found"
    keys = {**_LAYER_OF, "operator": count("operator")}
    columns = {
        "resource": text("core type", *_CORES),
        "core": count("index of the core, -1 for all cores", -1),
        "start_s": real("start"),
        "end_s": real("end"),
    }
    rules = {"no operator ends before it starts": lambda f: f["start_s"] <= f["end_s"]}


_PLACED = {
    **_POINT,
    "architecture": _ARCHITECTURE,
    "hbm_gib": real("HBM capacity"),
    "recompute": flag("activations are recomputed"),
    "planner": text("who chose the placement", "phaze", "expert", "expert-even"),
}


class Placements(Table):
    """The best placement of a model on every kept architecture."""

    name = "placements"
    about = "best placement for every kept architecture, HBM size and recompute, or why there is none"
    keys = _PLACED
    columns = {
        "status": text("result", "placed", "infeasible"),
        "reason": text("the limit that binds and by how much, empty if placed"),
        "data": count("data parallel width d"),
        "stages": count("pipeline depth s"),
        "devices_used": count("devices used"),
        "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
        "bound_s": real("the same with the bounds of unproven layers", finite=False),
        "max_load_s": real("time of the slowest stage for one microbatch", finite=False),
        "sync_s": real("gradient synchronisation of the first stage", finite=False),
        "samples_per_s": real("throughput"),
        "tokens_per_s": real("throughput"),
        "mfu": real("model FLOPs utilisation (PaLM, Appendix B)"),
        "binding": text("what limits the throughput"),
    }
    rules = {"the bound is not above the time": lambda f: f["bound_s"] <= f["time_per_batch_s"]}


class Stages(Table):
    """The stages of every placement with their load and memory."""

    name = "stages"
    about = "stages of every placement: layers, devices, load and memory with headroom"
    keys = {**_PLACED, "stage": count("stage, from the first")}
    columns = {
        "first_layer": count("position of the first layer"),
        "last_layer": count("position of the last layer"),
        "devices": count("devices of one pipeline", 1),
        "forward_s": real("forward pass of one microbatch"),
        "backward_s": real("backward pass with recomputation"),
        "transfer_s": real("exposed transfers between stages"),
        "load_s": real("all of it"),
        "weight_bytes": real("weights"),
        "gradient_bytes": real("gradients"),
        "optimizer_bytes": real("optimizer state"),
        "activation_bytes": real("activations of the microbatch at work"),
        "stashed_bytes": real("data kept for microbatches in flight"),
        "memory_bytes": real("all of it"),
        "headroom_bytes": real("HBM left"),
    }


class Visits(Table):
    """The walk down the areas: what the hysteresis strategy looked at, in order."""

    name = "visits"
    about = "architectures that the walk down the areas visits, in order, with the throughput it found"
    keys = {"model": _MODEL, "step": count("place in the walk")}
    columns = {
        "architecture": _ARCHITECTURE,
        "hbm_gib": real("HBM capacity of its best placement, 0 without one"),
        "area_um2": real("area of the chip"),
        "band": count("area band; architectures of a band count as one area"),
        "pes": count("multiply-accumulate units of a tensor core, pe_x * pe_y", 1),
        "samples_per_s": real("exact throughput, 0 if the model fits nowhere"),
        "best_so_far": real("largest throughput of this and all earlier steps"),
        "level": count("smallest hysteresis whose walk visits it", 1),
    }
    rules = {"the best so far is not below this one": lambda f: f["best_so_far"] >= f["samples_per_s"]}


class Commons(Table):
    """Candidates for the common architecture of all models, with the mean of their throughputs."""

    name = "commons"
    about = "candidates for the common architecture: mean of the models' throughputs, and which one is chosen"
    keys = {"architecture": _ARCHITECTURE, "hbm_gib": real("HBM capacity")}
    columns = {
        "mean": real("mean of the models' throughputs, 0 if it does not train all that can be trained"),
        "area_um2": real("area of the chip"),
        "best_of_hbm": flag("best with this HBM capacity"),
        "smallest_of_hbm": flag("smallest area within the tolerance of that"),
        "chosen": flag("best of the smallest HBM capacity within the tolerance of the best of all"),
    }


class Sensitivities(Table):
    """Placements of the winners and the baseline under other bandwidths."""

    name = "sensitivities"
    about = "best placement of the winners and the baseline under every variation of the cluster"
    keys = {"variation": text("name of the variation, as in report.sensitivity"), **_PLACED}
    columns = Placements.columns
    rules = Placements.rules


_DESIGN = {"model": _MODEL, "design": text("which accelerator, and whose placement, as in Figure 4")}
_CHOICE = {
    "architecture": _ARCHITECTURE,
    "hbm_gib": real("HBM capacity"),
    "tensor": _TENSOR,
    "microbatch": _MICROBATCH,
    "recompute": flag("activations are recomputed"),
    "data": count("data parallel width d"),
    "stages": count("pipeline depth s"),
}
_OUTCOME = {
    "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
    "bound_s": real("the same with the bounds of unproven layers", finite=False),
    "samples_per_s": real("throughput"),
    "area_um2": real("area of the chip"),
}


class Results(Table):
    """What a study answers: the best placement of every model on every kind of accelerator."""

    name = "results"
    about = "per model the best placement on the baseline, the named, the per-model and the common architecture"
    keys = _DESIGN
    columns = {
        "planner": text("who chose the placement", "phaze", "expert", "expert-even"),
        "status": text("result", "placed", "infeasible"),
        "reason": text("why there is no placement, empty if placed"),
        **_CHOICE,
        **_OUTCOME,
        "devices_used": count("devices used"),
        "tokens_per_s": real("throughput"),
        "mfu": real("model FLOPs utilisation (PaLM, Appendix B)"),
        "speedup": real("throughput relative to the baseline with the experts' placement, 0 if that is infeasible"),
        "binding": text("what limits the throughput"),
    }


class Comparisons(Table):
    """The results of every scenario of a study."""

    name = "comparisons"
    about = "the results of every scenario of the study"
    keys = {"scenario": text("name of the scenario"), **_DESIGN}
    columns = Results.columns


class Memories(Table):
    """What every HBM capacity gives on the best architecture of a model."""

    name = "memories"
    about = "throughput of the best architecture with every HBM capacity, and the capacity that is chosen"
    keys = {"model": _MODEL, "hbm_gib": real("HBM capacity")}
    columns = {
        **{name: column for name, column in _CHOICE.items() if name != "hbm_gib"},
        **_OUTCOME,
        "relative": real("throughput relative to the best capacity"),
        "chosen": flag("smallest within the tolerance of the best"),
    }


class Rankings(Table):
    """The best architectures of every model."""

    name = "rankings"
    about = "the best architectures of every model, and the smallest one within the tolerance of the best"
    keys = {"model": _MODEL, "rank": count("place by time per batch, area, name", 1)}
    columns = {
        **_CHOICE,
        **_OUTCOME,
        "relative": real("throughput relative to the best"),
        "smallest_area": flag("smallest area within the tolerance of the best"),
    }


class Breakdowns(Table):
    """Where the time of a batch goes."""

    name = "breakdowns"
    about = "time per batch in the slowest stage: passes, transfers, pipeline fill, gradient synchronisation"
    keys = _DESIGN
    columns = {
        "useful_s": real("model FLOPs at the peak of all tensor cores of the cluster, a part of the passes"),
        "forward_s": real("forward passes of the slowest stage"),
        "backward_s": real("backward passes with recomputation of the slowest stage"),
        "transfer_s": real("exposed transfers of the slowest stage"),
        "fill_s": real("filling and draining the pipeline"),
        "sync_s": real("gradient synchronisation"),
    }


class Bindings(Table):
    """What binds every operator of the best placement of a model."""

    name = "bindings"
    about = "what binds every operator on the best architecture, as scheduled"
    keys = {"model": _MODEL, **_OPERATOR}
    columns = {
        "name": text("readable name"),
        "core": text("core type that runs it", *_CORES),
        "all_cores": flag("scheduled on all cores of its type"),
        "limit": text("what binds", *_LIMITS, "none"),
        "latency_s": real("as scheduled"),
        "share": real("of the busy time of all layers of the model, both passes"),
    }


class Energies(Table):
    """Energy of a sample, by part of the accelerator."""

    name = "energies"
    about = "energy per trained sample by part of the accelerator"
    keys = {**_DESIGN, "part": text("part", *_ENERGIES, "leakage")}
    columns = {"joules_per_sample": real("energy"), "share": real("of the whole")}


class Areas(Table):
    """Area of an accelerator, by part."""

    name = "areas"
    about = "area of the accelerators of the results by part"
    keys = {**_DESIGN, "part": text("part", "tensor", "vector", "l2", "glb")}
    columns = {"area_um2": real("area"), "share": real("of the chip")}


class Complexities(Table):
    """Size of the models, as Table 4 of the paper counts it."""

    name = "complexities"
    about = "layers, operators, parameters, activations and FLOPs of every model without tensor parallelism"
    keys = {"model": _MODEL}
    columns = {
        "tensor": count("smallest TMP width of the study, which the sizes are counted with", 1),
        "microbatch": _MICROBATCH,
        "layers": count("blocks"),
        "operators": count("operators of the forward pass of a block before fusion"),
        "parameters": count("parameters of the model as published, tied ones once"),
        "held_parameters": count("parameters that all layers of one slice hold, a tied head's copy included"),
        "block_parameter_bytes": real("weights of a block"),
        "block_activation_bytes": real("stashed activations of a block"),
        "block_tensor_flops": real("matrix multiplication FLOPs of the forward pass of a block"),
        "block_vector_flops": real("other FLOPs of the forward pass of a block"),
        "activation_bytes": real("stashed activations of the whole model"),
        "tensor_flops": real("matrix multiplication FLOPs of the forward pass of the whole model"),
        "vector_flops": real("other FLOPs of the forward pass of the whole model"),
    }


class Variations(Table):
    """What the winners make of other bandwidths."""

    name = "variations"
    about = "the best placement of every model's best architecture under every variation of the cluster"
    keys = {"variation": text("name of the variation, as in report.sensitivity"), "model": _MODEL}
    columns = {
        **_CHOICE,
        **_OUTCOME,
        "relative": real("throughput relative to the study's"),
        "speedup": real("throughput relative to the baseline with the experts' placement, 0 without one"),
    }


class Walks(Table):
    """What the walk down the areas chooses at every hysteresis level."""

    name = "walks"
    about = "what the walk down the areas chooses at every hysteresis level (Figure 9)"
    keys = {"model": _MODEL, "hysteresis": count("areas in a row that must be worse", 1)}
    columns = {
        "architecture": _ARCHITECTURE,
        "area_um2": real("its area"),
        "samples_per_s": real("its throughput"),
        "visited": count("architectures visited"),
    }


class Times(Table):
    """How long the stages of a study took."""

    name = "times"
    about = "wall and processor time of every stage, summed over jobs"
    keys = {"model": _MODEL, "stage": text("verb of the stage")}
    columns = {
        "jobs": count("jobs"),
        "wall_s": real("wall time of the jobs, summed"),
        "cpu_s": real("processor time of the jobs, summed"),
        "peak_bytes": real("largest resident memory of a job"),
    }


class Proofs(Table):
    """How well the layers of a model are scheduled."""

    name = "proofs"
    about = "schedules by status, how many needed core assignment, and how many beat running all cores"
    keys = {"model": _MODEL}
    columns = {
        "solves": count("layers scheduled"),
        "optimal": count("proven optimal"),
        "feasible": count("with a gap at the node limit"),
        "timed_out": count("with a gap at the wall limit"),
        "programs": count("that needed a program; of the others the bounds met"),
        "z_needed": count("that needed core assignment"),
        "branching": count("faster than every operator on all cores"),
        "largest_gap": real("(objective - bound) / objective"),
    }


class Claims(Table):
    """Claims of a publication, checked against the results."""

    name = "claims"
    about = "claims of the publication as checks: theirs, ours, and whether the claim holds here"
    keys = {"claim": count("order")}
    columns = {
        "statement": text("the claim"),
        "source": text("where it is printed"),
        "published": text("their figure"),
        "ours": text("our figure"),
        "holds": flag("holds for our results"),
    }


class Checks(Table):
    """Checks of a user's own results."""

    name = "checks"
    about = "checks of the results: complete, feasible, consistent, not worse than the experts"
    keys = {"check": text("what must hold")}
    columns = {
        "passed": flag("holds for every row"),
        "rows": count("rows checked"),
        "failures": count("rows for which it does not hold"),
        "example": text("the first of them, empty if none"),
    }


TABLES: dict[str, type[Table]] = {
    table.name: table
    for table in (
        Operators, Parts, Edges, Layers, Graphs, Architectures, Estimates,
        Screens, Solves, Schedules, Placements, Stages, Visits, Commons, Sensitivities, Results, Comparisons,
        Memories, Rankings, Breakdowns, Bindings, Energies, Areas, Complexities, Variations, Walks, Times, Proofs, Claims, Checks,
    )
}  # fmt: skip
"""Every table by name."""


def read_any(path: str | Path) -> pd.DataFrame:
    """Return the table in a file, whichever it is."""
    try:
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowException) as error:
        raise PhazeError(f"{path}: cannot be read as a table: {error}") from error
    name = json.loads(metadata.get(b"phaze", b"{}")).get("table")
    if name not in TABLES:
        raise PhazeError(f"{path}: holds no phaze table")
    return TABLES[name].load(path)
