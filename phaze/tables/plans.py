"""What the planners make of the same architectures."""

from phaze.tables.base import Table, count, flag, real, text
from phaze.tables.columns import ARCHITECTURE, MODEL

PLANNERS = ("phaze", "piper", "equal", "expert")
"""Who may plan: Phaze's planner, Piper's, equal stages, and the experts' widths."""

PLAN = {
    "model": MODEL,
    "architecture": ARCHITECTURE,
    "hbm_gib": real("HBM capacity"),
    "planner": text("who planned", *PLANNERS),
}
"""Columns that say which plan it is."""


TIMED = [
    "schedule", "microbatch", "microbatches", "time_per_sample_s", "sync_s", "all_reduce_factor",
    "network_bandwidth_bytes_per_s", "hbm_bandwidth_bytes_per_s",
]  # fmt: skip
"""Columns of a plan that a simulation needs besides its stages."""


class Plans(Table):
    """The best plan of every planner."""

    name = "plans"
    about = "the best plan of every planner for a model on an architecture, and what Piper's model says of it"
    keys = PLAN
    columns = {
        "status": text("result", "placed", "infeasible"),
        "reason": text("why there is no plan, empty if placed"),
        "network_bandwidth_bytes_per_s": real("between any two devices, as the planner assumes"),
        "hbm_bandwidth_bytes_per_s": real("of the HBM of a device, as the planner assumes"),
        "flushes": flag("the pipeline is flushed after every batch, as its planner assumes"),
        "schedule": text("how microbatches pass the stages", "1f1b", "gpipe", "2bw", "none"),
        "microbatch": count("samples in a microbatch b"),
        "microbatches": count("microbatches in a batch, over all replicas"),
        "tensor": text("tensor model parallel widths of the stages in their order, each once"),
        "data": text("data parallel widths of the stages in their order, each once"),
        "memory": text("what happens to activations", "stash", "recompute", "mixed", "none"),
        "stages": count("pipeline depth s"),
        "devices_used": count("devices used"),
        "degree": count("sum of the data parallel widths of the stages"),
        "time_per_sample_s": real("time for each sample of a batch; infinite if infeasible", finite=False),
        "sync_s": real("of a batch's time, the exchange of gradients after it; 0 without a flush"),
        "all_reduce_factor": real("what the planner charges an all-reduce, times (n - 1)/n of its tensor"),
        "samples_per_s": real("throughput"),
        "piper_time_per_sample_s": real("the same under Piper's model, infinite if unfit", finite=False),
        "piper_reason": text("why Piper's space does not hold the plan, empty if it does"),
    }
    rules = {
        "a plan that Piper's model does not admit says why": lambda f: (
            (f["piper_time_per_sample_s"] < float("inf")) | (f["piper_reason"] != "")
        ),
    }


class PlanStages(Table):
    """The stages of every plan."""

    name = "plan_stages"
    about = "stages of every plan: layers, widths, what recomputes, time and memory with headroom"
    keys = {**PLAN, "stage": count("stage, from the first")}
    columns = {
        "first_layer": count("position of the first layer"),
        "last_layer": count("position of the last layer"),
        "data": count("data parallel width d", 1),
        "tensor": count("devices of a replica: the TMP width t, or 1 where no layer is split", 1),
        "recomputed": count("layers that recompute"),
        "in_flight": count("microbatches whose activations each device keeps, the one at work included", 1),
        "time_per_sample_s": real("time for each sample, without bubbles"),
        "forward_s": real("forward pass of one microbatch on a replica"),
        "recompute_s": real("forward passes run again, those of layers that recompute"),
        "backward_s": real("backward pass without them"),
        "arriving_bytes": real("tensors that enter the stage with a microbatch, all of them"),
        "longest_arriving_bytes": real("the largest of them"),
        "departing_bytes": real("tensors that leave the stage, whose gradients come back"),
        "longest_departing_bytes": real("the largest of them"),
        "weight_bytes": real("weights on each device: what replicas synchronise"),
        "fixed_bytes": real("memory of each device that is there all the time"),
        "stash_bytes": real("memory kept for each microbatch in flight, the one at work included"),
        "work_bytes": real("memory beside that for the microbatch at work"),
        "forward_hbm_bytes": real("HBM traffic of each device in the forward pass of one microbatch"),
        "recompute_hbm_bytes": real("the same of what runs again"),
        "backward_hbm_bytes": real("the same of the backward pass"),
        "forward_reduced_bytes": real("tensors that the slices all-reduce in the forward pass, on each"),
        "recompute_reduced_bytes": real("the same of what runs again"),
        "backward_reduced_bytes": real("the same of the backward pass"),
        "memory_bytes": real("memory of each device"),
        "headroom_bytes": real("HBM left"),
    }
