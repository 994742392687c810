"""Training plans over all layouts of a runtime, and their proofs."""

from typing import get_args

from phaze.layout import Zero
from phaze.spec.training_plan import Rank
from phaze.tables.base import Table, count, flag, real, text
from phaze.tables.columns import MFU

_SIZE = {
    "model": text("model"),
    "system": text("system with a device and levels"),
    "devices": count("devices that train", 1),
    "ranking": text("time that ranks layouts", *get_args(Rank)),
}


class RankedLayouts(Table):
    """Plans of a model on a system of one size, fastest first."""

    keys = {**_SIZE, "rank": count("place by time, from 1", 1)}
    columns = {
        "time_s": real("expected time of a step"),
        "prudent_s": real("prudent time of a step"),
        "time_s_low": real(
            "least time that runs like it are to take; infinite without such runs", finite=False
        ),
        "time_s_high": real(
            "longest time that runs like it are to take; infinite without them", finite=False
        ),
        "tokens_per_s_per_device": real("throughput of a device"),
        "mfu": MFU,
        "fullest_gib": real("memory of the fullest device"),
        "bubble_share": real("share of device time in which devices wait for other stages"),
        "exposed_communication_share": real("share of device time in which devices only communicate"),
        "bound_by": text("what takes most of the device time"),
        "tp": count("tensor parallel", 1),
        "cp": count("context parallel", 1),
        "pp": count("pipeline parallel", 1),
        "vp": count("virtual stages of a rank", 1),
        "dp": count("data parallel", 1),
        "microbatch": count("samples of a microbatch", 1),
        "sequence_parallel": flag("whether tensor parallel ranks cut the sequence between layers"),
        "zero": count("what replicas share of the states, 0 to 3"),
        "recompute": text("what runs forward again"),
        "recomputed_layers": count("blocks that run forward again in full"),
        "schedule": text("order of the passes"),
        "pipeline_layout": text("blocks of every virtual stage, as Megatron-Core's layout string"),
    }
    rules = {
        "the time lies in its interval": lambda f: (f["time_s_low"] <= f["time_s_high"]) & (f["time_s"] > 0),
        "zero is 0 to 3": lambda f: f["zero"] <= max(get_args(Zero)),
    }


class LayoutProofs(Table):
    """Outcome of all layouts of a model on a system of one size."""

    keys = dict(_SIZE)
    columns = {
        "status": text("whether a plan was found", "planned", "unfit"),
        "layouts": count("layouts in all"),
        "illegal": count("that the runtime cannot run"),
        "same": count("that do the same as another one"),
        "unfit": count("that have not enough memory"),
        "bounded": count("excluded by a bound of their time"),
        "simulated": count("of which divisions were simulated"),
        "divisions": count("divisions that were simulated"),
        "hbm_gib": real("memory of a device"),
        "bound_s": real("time that no layout goes below", finite=False),
        "gap": real("share of the best plan's time by which a better one could be faster"),
        "reason": text("why nothing fits, empty if a plan was found"),
    }
    rules = {
        "every layout is accounted for": lambda f: (
            f["layouts"] == f[["illegal", "same", "unfit", "bounded", "simulated"]].sum(axis=1)
        ),
    }
