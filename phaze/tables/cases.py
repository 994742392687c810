"""Results of Piper's planner for an input of the study's plans, next to the planners it is compared with."""

from phaze.spec.names import PLANNERS
from phaze.tables.base import Table, count, real, text
from phaze.tables.columns import IN_FLIGHT, STAGE_WIDTHS

MODES = ("program", "table-1")

_CASE = {
    "case": text("name of the case"),
    "blocks": count("number of repeated layers, 0 for the number in the input"),
    "memory_gib": real("memory of a device"),
    "microbatches": count("N, maximum sum of the data-parallel degrees", 1),
    "mode": text("mode of the plan: as the authors' program, or as the printed Table 1", *MODES),
    "planner": text("who plans", *PLANNERS),
}
_DEVICES = {"devices": count("devices K", 1)}
TIME = "time per sample in the input's unit of time; infinite without a plan"


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
    """Best time by number of devices, with a row wherever it improves, from a single run."""

    keys = {**_CASE, "devices": count("fewest devices that reach the time, among the numbers considered", 1)}
    columns = {
        "input": text("name of the input"),
        "most_devices": count("largest number of devices considered", 1),
        "time_per_sample": real("time per sample in the input's unit of time, with at least these devices"),
    }
