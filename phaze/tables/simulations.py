"""What a simulation finds when it replays the plans."""

from phaze.tables.base import Table, count, real, text
from phaze.tables.plans import PLAN

PARTS = ("imbalance_s", "bubbles_s", "transfers_s", "synchronisation_s", "contention_s")
"""What the simulated time differs from the planner's by; negative where the planner assumes more."""


class Simulations(Table):
    """Every plan replayed."""

    name = "simulations"
    about = "every plan replayed event by event: its time per batch, and why it differs from the planner's"
    keys = PLAN
    columns = {
        "schedule": text("how microbatches pass the stages", "1f1b", "gpipe", "2bw"),
        "planned_s": real("the planner's time per batch"),
        "assumed_s": real("the same simulated as the planner assumes it"),
        "imbalance_s": real("stages take what they take, not all as long as the slowest", None),
        "bubbles_s": real("waits that the planner's formula does not have", None),
        "transfers_s": real("tensors are under way while devices go on, and may keep others waiting", None),
        "synchronisation_s": real(
            "gradients of all stages at 2 (d - 1)/d of the weights, not 4 (d - 1)/d", None
        ),
        "contention_s": real("all that is sent shares the links, and operators share the HBM", None),
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
    rules = {
        "the parts make up the difference": lambda f: (
            (f["planned_s"] + f[list(PARTS)].sum(axis=1) - f["simulated_s"]).abs() <= 1e-9 * f["planned_s"]
        ),
    }


class SimulationStages(Table):
    """The stages of every plan, replayed."""

    name = "simulation_stages"
    about = "stages of every plan replayed: device time at work, microbatches in flight, most memory"
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
