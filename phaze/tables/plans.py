"""Prices of placements, results under interpretations of a paper, and plans for profiled inputs."""

from phaze.spec.names import PLANNERS as CASE_PLANNERS
from phaze.tables.base import Table, count, flag, real, text
from phaze.tables.columns import (
    CHOSEN_BY,
    CUT,
    FITS,
    IN_FLIGHT,
    LAYOUT,
    MFUS,
    MODEL,
    SIZED,
    STAGE_WIDTHS,
)

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


class Simulations(Table):
    """Price of the best placements: step time and memory of their plans, next to the formula's time."""

    keys = {"model": MODEL, **SIZED, "planner": CHOSEN_BY}
    columns = {
        "layout": LAYOUT,
        "recompute": flag("whether activations are recomputed"),
        **CUT,
        "schedule": text("pipeline schedule", "1f1b", "gpipe"),
        "planned_s": real("time per batch by the planner's formula"),
        "simulated_s": real("time per batch by the price of the plan, simulated event by event"),
        "samples_per_s": real("throughput as simulated"),
        "passes_share": real("share of device time in passes, with recomputation and collectives in layers"),
        "communication_share": real("share of device time in transfers and gradient synchronisation"),
        "update_share": real("share of device time in the optimizer step"),
        "bubble_share": real("share of device time in which devices wait for other stages"),
        "peak_bytes": real("peak memory of any device"),
        "fullest_stage": count("stage with peak memory"),
        "fits": flag("whether the peak memory is within the HBM"),
        "bound_by": text("largest part of the critical path"),
        "bound_stage": count("stage with the largest part of bound_by"),
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
