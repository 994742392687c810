"""Plans on the devices of networks, before and after topology-aware mapping."""

from phaze.tables.base import Table, count, flag, real, text
from phaze.tables.plans import PLAN

MAP_WAYS = ("cs-map", "p2p-map", "blocks-of-2", "blocks-of-4", "local-search")
"""How a plan comes to its devices."""
BY_HAND = MAP_WAYS[:2]
"""The default orders: replicas of a stage beside each other (all-reduce first), or stages of a lane."""

_MAPPED = {**PLAN, "system": text("name of the system whose network it is")}


class PlanMaps(Table):
    """Every mapping of a plan that was tried, simulated."""

    name = "plan_maps"
    about = "plans on the devices of networks: a simulated batch under every mapping that was tried"
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
    """The devices of every plan under the chosen mapping."""

    name = "plan_devices"
    about = "devices of every slice of every replica of a plan under the chosen mapping"
    keys = {
        **_MAPPED,
        "stage": count("stage, from the first"),
        "replica": count("replica r of the stage, in the order of its ring"),
        "slice": count("place in the tensor parallel group"),
    }
    columns = {"device": count("device, numbered as the network numbers them")}
