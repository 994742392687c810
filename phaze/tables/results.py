"""Results across models: the common architecture, variations, and the tables of the report."""

from phaze.spec.rows import ClaimTexts
from phaze.tables.base import Table, columns_of, count, flag, real, text
from phaze.tables.columns import (
    ARCHITECTURE,
    CHOSEN_BY,
    CORES,
    CUT,
    ENERGIES,
    LAYOUT,
    LIMITS,
    MFUS,
    MODEL,
    OPERATOR,
    PLACED,
    SAMPLE_ENERGIES,
    SIZED,
)
from phaze.tables.stages import Placements

_DESIGN = {"model": MODEL, "design": text("accelerator and planner of the placement, as in Figure 4")}
_ACCELERATOR = {"design": text("accelerator: per-model, common, or a named one")}
_CHOICE = {**SIZED, "layout": LAYOUT, "recompute": flag("whether activations are recomputed"), **CUT}
_OUTCOME = {
    "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
    "bound_s": real("time per global batch with the bounds of unproven layers", finite=False),
    "samples_per_s": real("throughput"),
    "area_um2": real("area of the chip"),
}


class Commons(Table):
    """Candidates for the common architecture with their mean throughput; the chosen one is marked."""

    keys = {"architecture": ARCHITECTURE, "hbm_gib": real("HBM capacity")}
    columns = {
        "mean": real("mean throughput of the models; 0 unless it trains all that any architecture trains"),
        "area_um2": real("area of the chip"),
        "best_of_hbm": flag("best with this HBM capacity"),
        "smallest_of_hbm": flag("smallest area within the tolerance of the best with this HBM capacity"),
        "chosen": flag("best of the smallest HBM capacity within the tolerance of the overall best"),
    }


class Fronts(Table):
    """Exact Pareto front of a model over its whole space: time per batch, area, and energy per sample."""

    keys = {
        "model": MODEL,
        "area_limit_um2": real("area limit of the space"),
        "architecture": ARCHITECTURE,
        "hbm_gib": real("HBM capacity"),
        "layout": LAYOUT,
        "recompute": flag("whether activations are recomputed"),
    }
    columns = {
        "area_um2": real("area of the chip"),
        "time_per_batch_s": real("time per global batch"),
        "samples_per_s": real("throughput"),
        "samples_per_s_per_mm2": real("throughput per area of one chip"),
        "joules_per_sample": real("energy of training a sample"),
        "objectives": flag("whether none is better in throughput, throughput per area and energy per sample"),
        "throughput": flag("largest throughput"),
        "throughput_per_area": flag("largest throughput per area"),
        "energy": flag("smallest energy per sample"),
    }


class Sensitivities(Table):
    """Best placement of the best architectures and the baseline under every variation of the cluster."""

    keys = {"variation": text("name of the variation, as in report.sensitivity"), **PLACED}
    columns = Placements.columns
    rules = Placements.rules


class Results(Table):
    """Best placement of every model on the baseline, named, per-model and common architectures."""

    keys = _DESIGN
    columns = {
        "planner": CHOSEN_BY,
        "status": text("result", "placed", "infeasible"),
        "reason": text("reason for a missing placement, empty if placed"),
        **_CHOICE,
        **_OUTCOME,
        "devices_used": count("devices used"),
        "tokens_per_s": real("throughput"),
        **MFUS,
        **SAMPLE_ENERGIES,
        "speedup": real("throughput over the baseline with the experts' placement; 0 if infeasible"),
        "binding": text("limit of the throughput"),
    }


class Gains(Table):
    """Geometric mean gain over the baseline under every interpretation, with the same planner for both."""

    keys = {"reading": text("name of the reading, `study` for the study's own settings"), **_ACCELERATOR}
    columns = {
        "note": text("assumptions of the reading"),
        "baseline": ARCHITECTURE,
        "gain": real("geometric mean over the models of throughput over the baseline's, as planned"),
        "models": count("models in the mean", 1),
        "of_study": real("gain over the gain under the study's own settings, 0 without one"),
    }


class Comparisons(Table):
    """Results of all scenarios of the study, side by side."""

    keys = {"scenario": text("name of the scenario"), **_DESIGN}
    columns = Results.columns


class Memories(Table):
    """Throughput of the best architecture by HBM capacity, and the chosen capacity."""

    keys = {"model": MODEL, "hbm_gib": real("HBM capacity")}
    columns = {
        **{name: column for name, column in _CHOICE.items() if name != "hbm_gib"},
        **_OUTCOME,
        "relative": real("throughput relative to the best capacity"),
        "chosen": flag("smallest within the tolerance of the best"),
    }


class Rankings(Table):
    """Best architectures of every model, with the smallest one within the tolerance of the best."""

    keys = {"model": MODEL, "rank": count("rank by time per batch, area, name", 1)}
    columns = {
        **_CHOICE,
        **_OUTCOME,
        "relative": real("throughput relative to the best"),
        "smallest_area": flag("smallest area within the tolerance of the best"),
    }


class Breakdowns(Table):
    """Time per batch in the slowest stage: forward and backward passes, transfers, fill, gradient sync."""

    keys = _DESIGN
    columns = {
        "useful_s": real("PaLM's model FLOPs at the peak of all tensor cores, a part of the passes"),
        "forward_s": real("forward passes of the slowest stage"),
        "backward_s": real("backward passes with recomputation of the slowest stage"),
        "transfer_s": real("exposed transfers of the slowest stage"),
        "fill_s": real("fill and drain of the pipeline"),
        "sync_s": real("gradient synchronisation"),
    }


class Bindings(Table):
    """Limiting resource of every operator on the best architecture, as scheduled."""

    keys = {"model": MODEL, **OPERATOR}
    columns = {
        "name": text("readable name"),
        "core": text("core type of the operator", *CORES),
        "all_cores": flag("whether it is scheduled on all cores of its type"),
        "limit": text("limit of the operator", *LIMITS, "none"),
        "latency_s": real("scheduled latency"),
        "share": real("share of the busy time of all layers of the model, both passes"),
    }


class Energies(Table):
    """Energy per trained sample by part of the accelerator."""

    keys = {**_DESIGN, "part": text("part", *ENERGIES, "leakage")}
    columns = {"joules_per_sample": real("energy"), "share": real("of the whole")}


class Areas(Table):
    """Area of every accelerator in the results, by part."""

    keys = {**_DESIGN, "part": text("part", "tensor", "vector", "l2", "glb", "other")}
    columns = {"area_um2": real("area"), "share": real("of the chip")}


class Complexities(Table):
    """Size of every model at its smallest TMP width, counted as in Table 4 of the paper."""

    keys = {"model": MODEL}
    columns = {
        "layout": LAYOUT,
        "layers": count("blocks"),
        "operators": count("operators of the forward pass of a block before fusion"),
        "parameters": count("parameters of the model as published, tied ones counted once"),
        "held_parameters": count(
            "parameters of all layers of one tensor-parallel rank, with a tied head's copy"
        ),
        "block_parameter_bytes": real("weights of a block"),
        "block_activation_bytes": real("stashed activations of a block"),
        "block_tensor_flops": real("matrix multiplication FLOPs of the forward pass of a block"),
        "block_vector_flops": real("other FLOPs of the forward pass of a block"),
        "activation_bytes": real("stashed activations of the whole model"),
        "tensor_flops": real("matrix multiplication FLOPs of the forward pass of the whole model"),
        "vector_flops": real("other FLOPs of the forward pass of the whole model"),
    }


class Variations(Table):
    """Best placement of every model's best architecture under every variation of the cluster."""

    keys = {"variation": text("name of the variation, as in report.sensitivity"), "model": MODEL}
    columns = {
        **_CHOICE,
        **_OUTCOME,
        "relative": real("throughput relative to the study's"),
        "speedup": real("throughput relative to the baseline with the experts' placement, 0 without one"),
    }


class Times(Table):
    """Wall time and CPU time of every stage, summed over jobs."""

    keys = {"model": MODEL, "stage": text("verb of the stage")}
    columns = {
        "jobs": count("jobs"),
        "wall_s": real("total wall time of the jobs"),
        "cpu_s": real("total processor time of the jobs"),
        "peak_bytes": real("peak resident memory of a job"),
    }


class Proofs(Table):
    """Number of schedules that are proven, that need core assignment, and that beat all-core schedules."""

    keys = {"model": MODEL}
    columns = {
        "solves": count("layers scheduled"),
        "optimal": count("layers proven optimal"),
        "feasible": count("layers with a gap at the node limit"),
        "timed_out": count("layers with a gap at the wall-time limit"),
        "programs": count("layers that needed a program; bounds decided the others"),
        "z_needed": count("layers that needed core assignment"),
        "branching": count("layers with schedules faster than every operator on all cores"),
        "largest_gap": real("(objective - bound) / objective"),
    }


class Claims(Table):
    """Claims of the publication, each with the published figure, our figure, and whether the claim holds."""

    keys = {"claim": count("order")}
    columns = {**columns_of(ClaimTexts), "holds": flag("whether it holds for our results")}


class Checks(Table):
    """Checks that results are complete, feasible, consistent, and no worse than hand-designed placements."""

    keys = {"check": text("condition")}
    columns = {
        "passed": flag("whether it holds for every row"),
        "rows": count("rows checked"),
        "failures": count("rows that violate it"),
        "example": text("first violating row, empty if none"),
    }
