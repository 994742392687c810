"""Results of mapping stages to the devices of topologies."""

from phaze.spec.names import PARTITIONERS
from phaze.tables.base import Table, count, flag, real, text

WAYS = ("p2p", "allreduce", "exact", "local-search", "cs-map", "p2p-map")
OWN_WAYS = WAYS[:4]
"""Search methods; the others are heuristics."""

POINT = {
    "graph": text("name of the graph"),
    "partitioner": text("who cut it", *PARTITIONERS),
    "hyper_operators": count("K", 1),
    "stages": count("stages S", 1),
    "replicas": count("replicas R", 1),
    "microbatches": count("microbatches MB of a step on each replica", 1),
}
_KEYS = {
    **POINT,
    "topology": text("name of the topology"),
    "seed": count("seed of the topology, 0 if it is not random"),
}


class Mappings(Table):
    """Simulated training step under the mapping found by each method."""

    keys = {**_KEYS, "way": text("how the mapping was found", *WAYS)}
    columns = {
        "step_s": real("simulated step"),
        "shared_step_s": real("the same where a node's devices share its port, if the topology says so"),
        "held_step_s": real("the same as step_s where a message holds both devices while it is under way"),
        "stage_time_s": real("longest stage time of passes, messages and all-reduce: objective (5)"),
        "compute_s": real("the step on a network that takes no time"),
        "samples_per_s": real("throughput of all replicas"),
        "counted": text("what of the stage time is judged here", "p2p", "allreduce", "exact"),
        "value_s": real("longest stage time of what is counted"),
        "bound_s": real("no mapping has a shorter one"),
        "proven": flag("the mapping is proven to be the best for what is counted"),
        "by_sizes": flag("the paper's choice between the two instantiations by their bytes"),
        "searched": flag("found by the way itself, not the initial upper bound"),
        "gave_up": flag("a target was given up at the limit of tries"),
        "tries": count("devices tried, 0 for heuristics and local search"),
    }
    rules = {
        "a bound is not above the value": lambda f: f["bound_s"] <= f["value_s"] * (1 + 1e-9),
        "a step takes at least its computing": lambda f: f["step_s"] >= f["compute_s"] * (1 - 1e-9),
        "sharing takes no less": lambda f: f["shared_step_s"] >= f["step_s"] * (1 - 1e-9),
        "holding devices takes no less": lambda f: f["held_step_s"] >= f["step_s"] * (1 - 1e-9),
    }


class MappedDevices(Table):
    """Devices of stages and replicas, for the first seed of a topology.

    Contains our mapping with the shortest step, and the mappings of the heuristics.
    """

    keys = {
        **_KEYS,
        "way": text("how the mapping was found", *WAYS),
        "stage": count("stage s, from the input"),
        "replica": count("replica r, in the order of the ring"),
    }
    columns = {"device": count("device d")}


class SearchGaps(Table):
    """Longest stage time by local search alone, compared with the best known one and the bound."""

    keys = {**_KEYS, "counted": text("what of the stage time is counted", "p2p", "allreduce", "exact")}
    columns = {
        "local_s": real("longest stage time of the local search, from random mappings and near devices"),
        "least_s": real("the least that it or a search by Algorithm 1 found"),
        "bound_s": real("no mapping has a shorter one"),
        "proven": flag("the least is proven to be the optimum"),
    }
    rules = {
        "a bound is not above a mapping": lambda f: f["bound_s"] <= f["least_s"] * (1 + 1e-9),
        "the least is not above that of the local search": lambda f: f["least_s"] <= f["local_s"],
    }


class SpeedUps(Table):
    """Speed-ups of the simulated step over manual mappings, medians over seeds."""

    keys = {name: column for name, column in _KEYS.items() if name != "seed"}
    columns = {
        "over_consecutive": real("all of ours over CS map"),
        "over_heuristics": real("all of ours over the better of CS and p2p map"),
        "paper_over_consecutive": real("the better of the paper's two instantiations over CS map"),
        "paper_over_heuristics": real("the same over the better of CS and p2p map"),
        "searched_over_heuristics": real(
            "the best of three instantiations over the better of CS and p2p map"
        ),
        "by_sizes_over_consecutive": real("the instantiation chosen by bytes over CS map"),
        "least_over_heuristics": real("all of ours over the better of CS and p2p map, for the worst seed"),
        "seeds": count("seeds of the topology", 1),
    }


class FiguresRead(Table):
    """Speed-ups under every reading of a publication's open points, compared with the printed ones."""

    keys = {
        "case": text("case of the study"),
        "reading": text("what is assumed"),
        "subject": text("topology or graph"),
        "figure": text("what is compared: over CS map, over both heuristics; or partitioner and mapping"),
        "shape": text("stages S x replicas R"),
    }
    columns = {
        "ours": real("speed-up of ours, the median over seeds"),
        "printed": real("the printed one, 0 where none is printed"),
    }
