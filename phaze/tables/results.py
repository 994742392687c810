"""Results across models: the common architecture, variations, and the tables of the report."""

from phaze.tables.base import Table, count, flag, real, text
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
from phaze.tables.plans import PLANNERS
from phaze.tables.stages import Placements


class Commons(Table):
    """Candidates for the common architecture with their mean throughput over the models, and the choice."""

    keys = {"architecture": ARCHITECTURE, "hbm_gib": real("HBM capacity")}
    columns = {
        "mean": real("mean of the models' throughputs, 0 if it does not train all that can be trained"),
        "area_um2": real("area of the chip"),
        "best_of_hbm": flag("best with this HBM capacity"),
        "smallest_of_hbm": flag("smallest area within the tolerance of that"),
        "chosen": flag("best of the smallest HBM capacity within the tolerance of the best of all"),
    }


class Fronts(Table):
    """Exact Pareto front of a model over its whole space: time per batch, area, and energy per sample."""

    keys = {
        "model": MODEL,
        "area_limit_um2": real("largest area of the space"),
        "architecture": ARCHITECTURE,
        "hbm_gib": real("HBM capacity"),
        "layout": LAYOUT,
        "recompute": flag("activations are recomputed"),
    }
    columns = {
        "area_um2": real("area of the chip"),
        "time_per_batch_s": real("time per global batch"),
        "samples_per_s": real("throughput"),
        "samples_per_s_per_mm2": real("throughput per area of one chip"),
        "joules_per_sample": real("energy of training a sample"),
        "objectives": flag("no other is better in throughput, throughput per area and energy per sample"),
        "throughput": flag("largest throughput"),
        "throughput_per_area": flag("largest throughput per area"),
        "energy": flag("least energy per sample"),
    }


class Sensitivities(Table):
    """Best placement of the winners and the baseline under every variation of the cluster."""

    keys = {"variation": text("name of the variation, as in report.sensitivity"), **PLACED}
    columns = Placements.columns
    rules = Placements.rules


_DESIGN = {"model": MODEL, "design": text("which accelerator, and whose placement, as in Figure 4")}
_ACCELERATOR = {"design": text("which accelerator: per-model, common, or a named one")}
_CHOICE = {**SIZED, "layout": LAYOUT, "recompute": flag("activations are recomputed"), **CUT}
_OUTCOME = {
    "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
    "bound_s": real("the same with the bounds of unproven layers", finite=False),
    "samples_per_s": real("throughput"),
    "area_um2": real("area of the chip"),
}


class Results(Table):
    """Best placement per model on the baseline, the named, the per-model and the common architecture."""

    keys = _DESIGN
    columns = {
        "planner": CHOSEN_BY,
        "status": text("result", "placed", "infeasible"),
        "reason": text("why there is no placement, empty if placed"),
        **_CHOICE,
        **_OUTCOME,
        "devices_used": count("devices used"),
        "tokens_per_s": real("throughput"),
        **MFUS,
        **SAMPLE_ENERGIES,
        "speedup": real(
            "throughput relative to the baseline with the experts' placement, 0 if that is infeasible"
        ),
        "binding": text("what limits the throughput"),
    }


class Recommendations(Table):
    """Plan with the least simulated time among those with certified, equal and experts' stages.

    Includes the loss of the certified plan relative to it.
    """

    keys = _DESIGN
    columns = {
        "architecture": ARCHITECTURE,
        "hbm_gib": real("HBM capacity"),
        "planner": text("whose plan is recommended", *PLANNERS),
        "tensor": text("tensor model parallel widths of its stages in their order, each once"),
        "data": text("data parallel widths of its stages in their order, each once"),
        "stages": count("pipeline depth s", 1),
        "microbatch": count("samples in a microbatch b", 1),
        "memory": text("what happens to activations", "stash", "recompute", "mixed"),
        "bound_by": text("what takes most of the critical path"),
        "planned_s": real("its time per batch as planned"),
        "simulated_s": real("its time per batch as simulated"),
        "samples_per_s": real("its throughput as simulated"),
        "speedup": real("the same over the experts' plan on the baseline as simulated, 0 without one"),
        "certified_planned_s": real("time per batch of the certified plan as planned"),
        "certified_simulated_s": real("the same as simulated"),
        "equal_s": real("simulated time per batch of equal stages, infinite without", finite=False),
        "expert_s": real("the same of the experts' stages", finite=False),
        "piper_s": real("the same of Piper's plan, which does not flush", finite=False),
        "lost": real("simulated time of the certified plan over the least of those that flush, less 1"),
        "unexplained": real("part of it by which the certified plan is also planned to take longer"),
    }
    rules = {
        "none of the plans that flush is simulated to be faster than a recommended one": lambda f: (
            f["simulated_s"] <= f[["certified_simulated_s", "equal_s", "expert_s"]].min(axis=1) * (1 + 1e-9)
        ),
    }


class Gains(Table):
    """Geometric mean gain over the baseline under every reading, with one planner for both."""

    keys = {"reading": text("name of the reading, `study` for the study's own settings"), **_ACCELERATOR}
    columns = {
        "note": text("what the reading assumes"),
        "baseline": ARCHITECTURE,
        "gain": real("geometric mean over the models of its throughput over the baseline's, as planned"),
        "models": count("models in the mean", 1),
        "of_study": real("the same over the gain under the study's own settings, 0 without one"),
    }


class Comparisons(Table):
    """Results of every scenario of the study."""

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

    keys = {"model": MODEL, "rank": count("place by time per batch, area, name", 1)}
    columns = {
        **_CHOICE,
        **_OUTCOME,
        "relative": real("throughput relative to the best"),
        "smallest_area": flag("smallest area within the tolerance of the best"),
    }


class Breakdowns(Table):
    """Time per batch in the slowest stage: passes, transfers, pipeline fill, gradient synchronisation."""

    keys = _DESIGN
    columns = {
        "useful_s": real("model FLOPs as in PaLM at the peak of all tensor cores, a part of the passes"),
        "forward_s": real("forward passes of the slowest stage"),
        "backward_s": real("backward passes with recomputation of the slowest stage"),
        "transfer_s": real("exposed transfers of the slowest stage"),
        "fill_s": real("filling and draining the pipeline"),
        "sync_s": real("gradient synchronisation"),
    }


class Bindings(Table):
    """Limit of every operator on the best architecture, as scheduled."""

    keys = {"model": MODEL, **OPERATOR}
    columns = {
        "name": text("readable name"),
        "core": text("core type that runs it", *CORES),
        "all_cores": flag("scheduled on all cores of its type"),
        "limit": text("what binds", *LIMITS, "none"),
        "latency_s": real("as scheduled"),
        "share": real("of the busy time of all layers of the model, both passes"),
    }


class Energies(Table):
    """Energy per trained sample by part of the accelerator."""

    keys = {**_DESIGN, "part": text("part", *ENERGIES, "leakage")}
    columns = {"joules_per_sample": real("energy"), "share": real("of the whole")}


class Areas(Table):
    """Area of the accelerators of the results by part."""

    keys = {**_DESIGN, "part": text("part", "tensor", "vector", "l2", "glb")}
    columns = {"area_um2": real("area"), "share": real("of the chip")}


class Complexities(Table):
    """Size of every model at its smallest TMP width, counted as in Table 4 of the paper."""

    keys = {"model": MODEL}
    columns = {
        "layout": LAYOUT,
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
    """Best placement of every model's best architecture under every variation of the cluster."""

    keys = {"variation": text("name of the variation, as in report.sensitivity"), "model": MODEL}
    columns = {
        **_CHOICE,
        **_OUTCOME,
        "relative": real("throughput relative to the study's"),
        "speedup": real("throughput relative to the baseline with the experts' placement, 0 without one"),
    }


class Times(Table):
    """Wall and processor time of every stage, summed over jobs."""

    keys = {"model": MODEL, "stage": text("verb of the stage")}
    columns = {
        "jobs": count("jobs"),
        "wall_s": real("wall time of the jobs, summed"),
        "cpu_s": real("processor time of the jobs, summed"),
        "peak_bytes": real("largest resident memory of a job"),
    }


class Proofs(Table):
    """Schedules by status, with the number that needed core assignment and that beat running all cores."""

    keys = {"model": MODEL}
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
    """Claims of the publication as checks: published and own figure, and whether the claim holds."""

    keys = {"claim": count("order")}
    columns = {
        "statement": text("the claim"),
        "source": text("where it is printed"),
        "published": text("their figure"),
        "ours": text("our figure"),
        "holds": flag("holds for our results"),
    }


class Checks(Table):
    """Checks that the results are complete, feasible, consistent, and not worse than the experts'."""

    keys = {"check": text("what must hold")}
    columns = {
        "passed": flag("holds for every row"),
        "rows": count("rows checked"),
        "failures": count("rows for which it does not hold"),
        "example": text("the first of them, empty if none"),
    }
