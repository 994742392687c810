"""Plans of the planners on equal architectures, their simulation, and their mapping onto networks."""

from phaze.spec.names import MODEL_PLANNERS
from phaze.tables.base import Table, count, flag, real, text
from phaze.tables.columns import MODEL, SIZED

PLANNERS = MODEL_PLANNERS

PLAN = {
    "model": MODEL,
    **SIZED,
    "planner": text("who planned", *PLANNERS),
}
"""Columns that identify a plan."""


TIMED = [
    "schedule", "microbatch", "microbatches", "time_per_sample_s", "sync_s", "all_reduce_factor",
    "network_bandwidth_bytes_per_s", "hbm_bandwidth_bytes_per_s",
]  # fmt: skip
"""Columns of a plan that a simulation needs in addition to its stages."""


class Plans(Table):
    """Best plan of every planner for a model on an architecture, with its time under Piper's model."""

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
    """Stages of every plan: layers, widths, recomputation, time, and memory with headroom."""

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


MAP_WAYS = ("cs-map", "p2p-map", "blocks-of-2", "blocks-of-4", "local-search")
"""Methods of mapping a plan to devices."""
BY_HAND = MAP_WAYS[:2]
"""Default orders: replicas of a stage next to each other (all-reduce first), or stages of a lane."""

_MAPPED = {**PLAN, "system": text("name of the system whose network it is")}


class PlanMaps(Table):
    """Plans mapped to the devices of networks: a simulated batch under every mapping that was tried."""

    keys = {**_MAPPED, "way": text("how the mapping was found", *MAP_WAYS)}
    columns = {
        "network": text("what the network is"),
        "devices": count("devices of the part of the system that is used", 1),
        "lanes": count("pipelines that run beside each other: replicas R of the mapping", 1),
        "workers": count("workers of a lane: stages S of the mapping", 1),
        "unit": count("devices of a worker, which have consecutive numbers", 1),
        "alone_s": real("a simulated batch on a network that takes no time"),
        "estimated_s": real("a batch as the search counts it, without contention"),
        "simulated_s": real("a simulated batch with contention"),
        "chosen": flag("has the shortest simulated batch, the first of several"),
    }


class PlanDevices(Table):
    """Devices of every tensor-parallel rank of every replica of a plan under the chosen mapping."""

    keys = {
        **_MAPPED,
        "stage": count("stage, from the first"),
        "replica": count("replica r of the stage, in the order of its ring"),
        "slice": count("place in the tensor parallel group"),
    }
    columns = {"device": count("device, numbered as the network numbers them")}


class Simulations(Table):
    """Simulation of every plan: time per batch, compared with the planned time, and the limiting resource."""

    keys = PLAN
    columns = {
        "schedule": text("how microbatches pass the stages", "1f1b", "gpipe", "2bw"),
        "planned_s": real("the planner's time per batch"),
        "assumed_s": real("the same simulated as the planner assumes it"),
        "simulated_s": real("simulated time per batch, all of it; without flush in the long run"),
        "samples_per_s": real("throughput"),
        "compute_share": real("device time spent on passes, with recomputation"),
        "exposed_communication_share": real("what transfers and synchronisation add to the time"),
        "bubble_share": real("the rest, in which devices wait for other stages", None),
        "hbm_share": real("what passes move to and from HBM, of what the HBM of all devices could"),
        "link_share": real("what links carry in one direction, of what those of all devices could"),
        "peak_bytes": real("most memory that a device ever holds"),
        "fullest_stage": count("its stage"),
        "bound_by": text("what takes most of the critical path"),
        "bound_stage": count("stage with the largest part of that"),
    }


class SimulationStages(Table):
    """Stages of every simulated plan: busy device time, microbatches in flight, peak memory."""

    keys = {**PLAN, "stage": count("stage, from the first")}
    columns = {
        "busy_s": real("a device's passes in a batch, on average over the replicas"),
        "busy_share": real("the same of the simulated time"),
        "hbm_share": real("what passes move to and from a device's HBM, of what it could"),
        "link_share": real("what a device's link carries in one direction, of what it could"),
        "slices_link_share": real("of it all-reduces between slices of a replica (tensor parallelism)"),
        "stages_link_share": real("of it tensors between stages (pipeline)"),
        "replicas_link_share": real("of it gradients between replicas (data parallelism)"),
        "in_flight": count("most microbatches that a device holds at once", 1),
        "peak_bytes": real("most memory that a device holds"),
        "headroom_bytes": real("HBM left", None),
    }
