"""Plans for architectures, for interpretations of a paper and for profiled inputs, and their simulations."""

from phaze.spec.names import MODEL_PLANNERS
from phaze.spec.names import PLANNERS as CASE_PLANNERS
from phaze.spec.rows import StageWork
from phaze.tables.base import Table, columns_of, count, flag, real, text
from phaze.tables.columns import (
    CHOSEN_BY,
    CUT,
    FITS,
    IN_FLIGHT,
    LAYOUT,
    MFUS,
    MODEL,
    SIZED,
    SPAN,
    STAGE_WIDTHS,
)

PLANNERS = MODEL_PLANNERS
PLAN = {"model": MODEL, **SIZED, "planner": text("who planned", *PLANNERS)}
"""Columns that identify a plan."""


TIMED = [
    "schedule", "microbatch", "microbatches", "time_per_sample_s", "sync_s", "all_reduce_factor",
    "network_bandwidth_bytes_per_s", "hbm_bandwidth_bytes_per_s",
]  # fmt: skip
"""Columns of a plan that a simulation needs in addition to its stages."""
MODES = ("program", "table-1")
_CASE = {
    "case": text("name of the case"),
    "blocks": count("number of repeated layers, 0 for the number in the input"),
    "memory_gib": real("memory of a device"),
    "microbatches": count("N, maximum sum of the data-parallel degrees", 1),
    "mode": text("mode of the plan: as the authors' program, or as the printed Table 1", *MODES),
    "planner": text("who plans", *CASE_PLANNERS),
}
_DEVICES = {"devices": count("devices K", 1)}
TIME = "time per sample in the input's unit of time; infinite without a plan"
READING = text("name of the reading, `study` for the study's own settings")


class Plans(Table):
    """Best plan of every planner for a model on an architecture, with the time that it claims."""

    keys = PLAN
    columns = {
        "status": text("result", "placed", "infeasible"),
        "reason": text("reason for a missing plan, empty if placed"),
        "network_bandwidth_bytes_per_s": real("bandwidth between any two devices, as assumed by the planner"),
        "hbm_bandwidth_bytes_per_s": real("HBM bandwidth of a device, as assumed by the planner"),
        "flushes": flag("whether the pipeline is flushed after every batch, as assumed by the planner"),
        "schedule": text("pipeline schedule", "1f1b", "gpipe", "2bw", "none"),
        "microbatch": count("samples in a microbatch b"),
        "microbatches": count("microbatches in a batch, over all replicas"),
        "tensor": text("distinct tensor-parallel widths of the stages, in order"),
        "data": text("distinct data-parallel widths of the stages, in order"),
        "memory": text("recompute or stash activations", "stash", "recompute", "mixed", "none"),
        "stages": count("pipeline depth s"),
        "devices_used": count("devices used"),
        "degree": count("sum of the data-parallel widths of the stages"),
        "time_per_sample_s": real("time per sample of a batch; infinite if infeasible", finite=False),
        "sync_s": real("gradient exchange after a batch, part of the batch time; 0 without a flush"),
        "all_reduce_factor": real("planner's factor of an all-reduce, times (n - 1)/n of its tensor"),
        "samples_per_s": real("throughput"),
    }


class PlanStages(Table):
    """Stages of every plan: layers, widths, recomputation, time, and memory with headroom."""

    keys = {**PLAN, "stage": count("stage number, from the first")}
    columns = {
        **SPAN,
        **STAGE_WIDTHS,
        "recomputed": count("recomputed layers"),
        **IN_FLIGHT,
        "time_per_sample_s": real("time per sample, without bubbles"),
        **columns_of(StageWork),
        "memory_bytes": real("memory of each device"),
        "headroom_bytes": real("free HBM"),
    }


class Simulations(Table):
    """Simulation of every plan: time per batch, compared with the planned time, and the limiting resource."""

    keys = PLAN
    columns = {
        "schedule": text("pipeline schedule", "1f1b", "gpipe", "2bw"),
        "planned_s": real("batch time of the planner"),
        "simulated_s": real("simulated batch time; in steady state without a flush"),
        "samples_per_s": real("throughput"),
        "compute_share": real("share of device time spent on passes, with recomputation"),
        "exposed_communication_share": real("share of time added by transfers and synchronisation"),
        "bubble_share": real("remaining share, in which devices wait for other stages", None),
        "hbm_share": real("HBM traffic of passes over the HBM bandwidth of all devices"),
        "link_share": real("link traffic in one direction over the bandwidth of all devices' links"),
        "peak_bytes": real("peak memory of any device"),
        "fullest_stage": count("stage with peak memory"),
        "bound_by": text("largest part of the critical path"),
        "bound_stage": count("stage with the largest part of bound_by"),
    }


class SimulationStages(Table):
    """Stages of every simulated plan: busy device time, microbatches in flight, peak memory."""

    keys = {**PLAN, "stage": count("stage number, from the first")}
    columns = {
        "busy_s": real("time of a device's passes in a batch, mean over the replicas"),
        "busy_share": real("busy_s over the simulated time"),
        "hbm_share": real("HBM traffic of passes over the HBM bandwidth of a device"),
        "link_share": real("link traffic in one direction over the link bandwidth of a device"),
        "slices_link_share": real("part of link_share for all-reduces between tensor-parallel ranks"),
        "stages_link_share": real("part of link_share for tensors between stages"),
        "replicas_link_share": real("part of link_share for gradients between replicas"),
        "in_flight": count("maximum number of microbatches stored by a device", 1),
        "peak_bytes": real("peak memory of a device"),
        "headroom_bytes": real("free HBM", None),
    }


class Cases(Table):
    """Best plan of every planner for an input on a cluster."""

    keys = {**_CASE, **_DEVICES}
    columns = {
        "input": text("name of the input"),
        "layers": count("layers of the input, including repeated ones", 1),
        "bandwidth_gib_per_s": real("bandwidth of a device"),
        "status": text("whether a plan exists", "planned", "infeasible"),
        "time_per_sample": real(TIME, finite=False),
        "devices_used": count("devices of all stages"),
        "degree": count("sum of the data-parallel degrees"),
        "stages": count("stages"),
    }
    rules = {
        "a plan uses at most all devices": lambda f: f["devices_used"] <= f["devices"],
        "degrees sum up to N at most": lambda f: f["degree"] <= f["microbatches"],
        "only a plan has a time": lambda f: (
            (f["status"] == "planned") == (f["time_per_sample"] < float("inf"))
        ),
    }


class Pipelines(Table):
    """Stages of the best plans, in the order of the data flow."""

    keys = {**_CASE, **_DEVICES, "stage": count("position in the pipeline, from the input")}
    columns = {
        "layers": text("names of its layers in the input"),
        **STAGE_WIDTHS,
        "configurations": text("number of layers in each configuration"),
        **IN_FLIGHT,
        "time_per_sample": real("time per sample in the input's unit of time"),
        "memory_bytes": real("memory in use on a device"),
    }


class Curves(Table):
    """Best time by number of devices, from a single run, with a row wherever the time improves."""

    keys = {**_CASE, "devices": count("fewest devices that reach the time, among the numbers considered", 1)}
    columns = {
        "input": text("name of the input"),
        "most_devices": count("largest number of devices considered", 1),
        "time_per_sample": real("time per sample in the input's unit of time, with at least these devices"),
    }


class Readings(Table):
    """Best plan and hand-designed plan by interpretation, named architecture and HBM size."""

    keys = {"reading": READING, "model": MODEL, **SIZED, "planner": CHOSEN_BY}
    columns = {
        **FITS,
        "layout": LAYOUT,
        **CUT,
        "recompute": flag("whether activations are recomputed"),
        "devices_used": count("devices used"),
        "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
        "samples_per_s": real("throughput"),
        **MFUS,
        "binding": text("limit of the throughput"),
    }


class ReadingFigures(Table):
    """Published placements, utilisations and mean gains, compared with ours under every interpretation."""

    keys = {
        "reading": READING,
        "kind": text("kind of figure", "placement", "mfu", "mean"),
        "model": text("workload; for a mean `all`, or `undecided`: those that no single assumption decides"),
        "of": text("accelerator and planner of the placement, or name of the mean"),
    }
    columns = {
        "printed": text("as printed"),
        "ours": text("figure under the reading, empty if nothing fits"),
        "ratio": real("our figure over the printed one; 0 for placements, and if nothing fits"),
        "agrees": flag("equal {p, d, t}; or a utilisation within a quarter, or a mean within a tenth"),
        "in_full": flag("for placements: microbatch, recomputation and HBM are equal, too"),
    }


class ReadingScores(Table):
    """Agreement of every interpretation with the paper: equal placements, utilisation errors, mean gains.

    The experts' baseline is the baseline accelerator with the experts' placement, the searched baseline the
    one with searched placements.
    """

    keys = {"reading": READING}
    columns = {
        "note": text("assumptions of the reading"),
        "placements": count("printed placements with equal {p, d, t}"),
        "in_full": count("placements with equal {p, d, t}, microbatch, recomputation and HBM"),
        "printed_placements": count("printed placements"),
        "mfu_factor": real("exp of the RMS of log(ours / printed) over all utilisations; 0 for none"),
        "printed_mfus": count("compared printed utilisations"),
        "per_model": real("geometric mean of each workload's accelerator over the experts' baseline"),
        "common": real("geometric mean of the printed common accelerator over the experts' baseline"),
        "common_over_baseline": real("geometric mean of the common accelerator over the searched baseline"),
        "common_over_family": real("geometric mean of the common accelerator over the other printed ones"),
    }
