"""Tables passed between the stages of a study."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools
from phaze.layout import LAYER_AXES
from phaze.spec.rows import OperatorBytes, PartSizes, StageLoad
from phaze.tables.base import Table, columns_of, count, flag, real, text
from phaze.tables.columns import (
    ARCHITECTURE,
    BOUNDS,
    CORES,
    CUT,
    DIRECTION,
    ENERGIES,
    FITS,
    LAYER,
    LAYER_OF,
    LIMITS,
    MFUS,
    MODEL,
    OPERATOR,
    PLACED,
    POINT,
    SAMPLE_ENERGIES,
    SETTING,
    SPAN,
    widths_of,
)


class Operators(Table):
    """Operators of every distinct layer after fusion, forward and backward: core type, work and bytes."""

    keys = {**POINT, **OPERATOR}
    columns = {
        **columns_of(OperatorBytes, "name"),
        "core": text("core type of the operator", *CORES),
        "work": count("id of distinct work within the file, -1 for no-ops", -1),
        "tensor_flops": real("FLOPs of matrix multiplications"),
        "vector_flops": real("other FLOPs"),
        **columns_of(
            OperatorBytes, "input_bytes", "parameter_bytes", "output_bytes", "stashed_bytes", "attention"
        ),
    }
    rules = {"only no-ops have no work": lambda f: (f["work"] < 0) == (f["core"] == "none")}


class Parts(Table):
    """Primitives of every distinct operator: matrix multiplications, vector operations, collectives.

    Contains exactly the inputs of estimate for a distinct (fused) operator.
    """

    keys = {
        **POINT,
        "work": count("id of distinct work within the file"),
        "part": count("position inside the work"),
    }
    columns = {
        "core": text("core type of the whole work", *CORES[:4]),
        **columns_of(PartSizes),
        "axis": text("axis of the collective's group, empty otherwise", "", *LAYER_AXES),
    }


class Edges(Table):
    """Data flow between operators of a distinct layer."""

    keys = {
        **POINT,
        "layer": LAYER,
        "direction": DIRECTION,
        "source": count("operator that writes"),
        "target": count("operator that reads"),
    }
    columns = {"bytes": real("bytes passed")}
    rules = {"operators are in topological order": lambda f: f["source"] < f["target"]}


class Layers(Table):
    """Distinct layers: parameters, activations, bytes passed between pipeline stages, and FLOPs."""

    keys = {**POINT, "layer": LAYER}
    columns = {
        "parameters": count("parameters of one tensor-parallel rank"),
        "expert_parameters": count(
            "parameters of experts, used by some tokens each; included in `parameters`"
        ),
        "embedding_parameters": count("parameters of lookup tables; included in `parameters`"),
        "tied_parameters": count("parameters of a tied head's own copy; included in `parameters`"),
        "parameter_bytes": real("weights of one tensor-parallel rank"),
        "activation_bytes": real("forward activations stashed for one microbatch, per tensor-parallel rank"),
        "attention_bytes": real("part of activation_bytes in the attention core"),
        "input_bytes": real("activations received from the previous pipeline stage"),
        "output_bytes": real("activations sent to the next pipeline stage"),
        "tensor_parallel": flag("whether it is split over the t devices"),
        "forward_tensor_flops": real("matrix FLOPs of the forward pass, per tensor-parallel rank"),
        "forward_vector_flops": real("other FLOPs of the forward pass, per tensor-parallel rank"),
        "operators": count("operators of the forward pass before fusion"),
    }


class Graphs(Table):
    """Layer graph of a model: a chain of runs of identical layers."""

    keys = {"model": MODEL, "position": count("position of the run in the chain")}
    columns = {"layer": LAYER, "count": count("equal layers in the run", 1)}


class Architectures(Table):
    """Architectures of a shard: cores, buffers, area, and the ids of their core designs."""

    keys = {"shard": text("shard"), "architecture": ARCHITECTURE}
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
        "clock_hz": real("clock of all cores; 0: that of the system"),
        "hbm_bandwidth_bytes_per_s": real("HBM bandwidth; 0: that of the system"),
        "area_um2": real("area of the chip"),
        "tensor_um2": real("multiply-accumulate units of the tensor cores"),
        "vector_um2": real("lanes of the vector cores"),
        "l2_um2": real("L2 buffers"),
        "glb_um2": real("global buffer"),
        "other_um2": real("interconnect, HBM interface, links, and the rest"),
        "area_interpolated": flag("whether a buffer size lies between the published areas"),
        "named": flag("whether it was requested by name, and is therefore kept"),
        "hbm_gib": real("HBM capacity; 0: every one that the study considers"),
        "tensor_design": count("id of the tensor-core design in estimates"),
        "vector_design": count("id of the vector-core design in estimates"),
        "fused_design": count("id of the fused-core design in estimates"),
    }

    @classmethod
    def searched(cls, rows: pd.DataFrame) -> pd.DataFrame:
        """Architectures that the search generated, without those requested by name."""
        return rows[~rows["named"]].reset_index(drop=True)

    @classmethod
    def may_have(cls, rows: pd.DataFrame, sizes: Iterable[float], hbm_gib: Iterable[float]) -> Bools:
        """Mask of the architectures that are placed with each HBM capacity, (capacities, architectures).

        An architecture has its own capacity, or else all of `sizes`.
        """
        capacity, considered = rows["hbm_gib"].to_numpy(float), set(sizes)
        return np.array(
            [np.where(capacity > 0, capacity == size, size in considered) for size in hbm_gib], np.bool_
        )

    @classmethod
    def distinct(cls, rows: pd.DataFrame) -> pd.DataFrame:
        """One row per combination of columns up to the area; searched rows are preferred to named ones."""
        kind = list(cls.columns)[: list(cls.columns).index("area_um2") + 1]
        return rows.sort_values(["named", "architecture"]).drop_duplicates(kind)


class Estimates(Table):
    """Latency and dynamic energy of every distinct operator on one core and on all cores of every design."""

    keys = {**POINT, "work": count("id of the work"), "design": count("id of the core design")}
    columns = {
        "latency_s": real("latency on one core (l)"),
        "latency_all_s": real("latency on all cores of the type (l-hat)"),
        "limit": text("what binds on one core", *LIMITS),
        "limit_all": text("what binds on all cores", *LIMITS),
        **{f"{part}_j": real(f"{part} energy on one core") for part in ENERGIES},
        **{f"{part}_all_j": real(f"{part} energy on all cores") for part in ENERGIES},
        "hbm_bytes": real("HBM traffic on one core"),
        "hbm_all_bytes": real("HBM traffic on all cores"),
    }
    rules = {"all cores are never slower than one": lambda f: f["latency_all_s"] <= f["latency_s"]}


class Screens(Table):
    """Bounds on time per batch and energy per sample by architecture, HBM size and recompute."""

    keys = SETTING
    columns = {
        **BOUNDS,
        "lower_j": real("lower bound on the energy per sample; infinite if none fits", finite=False),
        "kept": flag("whether it could be among the best of its shard, or is named"),
    }
    rules = {"the lower bound is not above the feasible value": lambda f: f["lower_s"] <= f["feasible_s"]}

    @classmethod
    def kept(cls, paths: Sequence[str], architectures: pd.DataFrame) -> pd.DataFrame:
        """Read the columns architecture and kept of a screen; without a file, all are kept."""
        if paths:
            return cls.load(*paths, columns=["architecture", "kept"])
        return architectures[["architecture"]].assign(kept=True)


class Solves(Table):
    """Objective, bound and gap of the schedule of every layer, with the solver that proved it."""

    keys = LAYER_OF
    columns = {
        "status": text("proof status", "optimal", "feasible", "timed_out"),
        "objective_s": real("latency of the verified schedule"),
        "bound_s": real("lower bound on the latency of all schedules"),
        "gap": real("(objective - bound) / objective"),
        "method": text("method of the proof: meeting bounds, or a program", "bounds", "program"),
        "solver": text("solver of the hardest component, 'none' without one"),
        "version": text("version of the solver"),
        "formulation": text("formulation of the program", "paper", "sparse", "none"),
        "operators": count("operators scheduled"),
        "components": count("series components that needed a program"),
        "variables": count("variables of all programs"),
        "constraints": count("constraints of all programs"),
        "z_needed": flag("whether core assignment had to enter the program"),
        "all_cores_s": real("latency of running every operator on all cores"),
        **{f"{part}_j": real(f"{part} energy of the schedule, on one slice") for part in ENERGIES},
        "hbm_bytes": real("HBM traffic of the schedule, per tensor-parallel rank"),
    }
    rules = {"the bound is not above the objective": lambda f: f["bound_s"] <= f["objective_s"]}


class Schedules(Table):
    """Core, start and end of every operator in the best schedule found."""

    keys = {**LAYER_OF, "operator": count("operator")}
    columns = {
        "resource": text("core type", *CORES),
        "core": count("index of the core, -1 for all cores", -1),
        "start_s": real("start"),
        "end_s": real("end"),
    }
    rules = {"no operator ends before it starts": lambda f: f["start_s"] <= f["end_s"]}


class Placements(Table):
    """Best placement per kept architecture, HBM size and recompute setting, or why none fits."""

    keys = PLACED
    columns = {
        **FITS,
        **CUT,
        "devices_used": count("devices used"),
        "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
        "bound_s": real("time per global batch with the bounds of unproven layers", finite=False),
        "max_load_s": real("time of the slowest stage for one microbatch", finite=False),
        "sync_s": real("gradient synchronisation of the first stage", finite=False),
        "samples_per_s": real("throughput"),
        "tokens_per_s": real("throughput"),
        **MFUS,
        **SAMPLE_ENERGIES,
        "binding": text("limit of the throughput"),
    }
    rules = {"the bound is not above the time": lambda f: f["bound_s"] <= f["time_per_batch_s"]}

    @classmethod
    def leanest_first(cls, rows: pd.DataFrame) -> pd.DataFrame:
        """Infeasible placements, sorted by their settings so that the closest to feasible come first.

        Placements short of memory come before those short of devices. Among them the order is by largest HBM,
        then recomputation, then widest t, then smallest microbatch.
        """
        widest, largest = -widths_of(rows, "tp"), -rows["hbm_gib"].to_numpy()
        # The last key of lexsort is the one to sort by first.
        keys = [
            widths_of(rows, "microbatch"),
            widest,
            ~rows["recompute"],
            largest,
            rows["binding"] != "memory",
        ]
        return rows.iloc[np.lexsort([np.asarray(key) for key in keys])]


class Stages(Table):
    """Stages of every placement: layers, devices, load and memory with headroom."""

    keys = {**PLACED, "stage": count("stage number, from the first")}
    columns = {
        **SPAN,
        "devices": count("devices of one pipeline", 1),
        **columns_of(StageLoad, "forward_s"),
        "backward_s": real("backward pass with recomputation"),
        "transfer_s": real("exposed transfers between stages"),
        **columns_of(StageLoad, "load_s"),
        "weight_bytes": real("weights"),
        "gradient_bytes": real("gradients"),
        "optimizer_bytes": real("optimizer state"),
        **columns_of(StageLoad, "activation_bytes", "stashed_bytes"),
        "memory_bytes": real("total memory"),
        "headroom_bytes": real("free HBM"),
    }
