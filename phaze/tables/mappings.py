"""Results of mapping stages to the devices of topologies."""

from phaze.spec.mapping import StoredSearch
from phaze.spec.names import PARTITIONERS
from phaze.tables.base import Table, columns_of, count, flag, real, text

WAYS = ("p2p", "allreduce", "exact", "local-search", "cs-map", "p2p-map")
OWN_WAYS = WAYS[:4]
"""Search methods; the others are heuristics."""

POINT = {
    "graph": text("name of the graph"),
    "partitioner": text("partitioner", *PARTITIONERS),
    "hyper_operators": count("K", 1),
    "stages": count("stages S", 1),
    "replicas": count("replicas R", 1),
    "microbatches": count("microbatches MB per step and replica", 1),
}
_KEYS = {
    **POINT,
    "topology": text("name of the topology"),
    "seed": count("seed of the topology, 0 for topologies that are not random"),
}


class Mappings(Table):
    """Simulated training step under the mapping found by each method."""

    keys = {**_KEYS, "way": text("mapping method", *WAYS)}
    columns = {
        "step_s": real("simulated step time"),
        "shared_step_s": real(
            "step time if the devices of a node share its port; equal to step_s unless the topology "
            "defines this"
        ),
        "held_step_s": real("step time if a message in flight occupies both devices"),
        "stage_time_s": real("longest stage time of passes, messages and all-reduce: objective (5)"),
        "compute_s": real("step time without communication time"),
        "samples_per_s": real("samples per second of all replicas"),
        "counted": text("parts of the stage time that the objective counts", "p2p", "allreduce", "exact"),
        "value_s": real("longest stage time, from the counted parts"),
        "bound_s": real("lower bound on value_s of all mappings"),
        **columns_of(StoredSearch, "proven"),
        "by_sizes": flag("whether the paper would choose this instantiation by message sizes"),
        **columns_of(StoredSearch, "searched", "gave_up", "tries"),
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
        "way": text("mapping method", *WAYS),
        "stage": count("stage s, from the input"),
        "replica": count("replica r, in the order of the ring"),
    }
    columns = {"device": count("device d")}


class SearchGaps(Table):
    """Longest stage time by local search alone, compared with the best known one and the bound."""

    keys = {
        **_KEYS,
        "counted": text("parts of the stage time that the objective counts", "p2p", "allreduce", "exact"),
    }
    columns = {
        "local_s": real(
            "longest stage time of the local search, started from random mappings and nearby devices"
        ),
        "least_s": real("smallest longest stage time found by it or by a search with Algorithm 1"),
        "bound_s": real("lower bound on the longest stage time of all mappings"),
        "proven": flag("whether least_s is proven optimal"),
    }
    rules = {
        "a bound is not above a mapping": lambda f: f["bound_s"] <= f["least_s"] * (1 + 1e-9),
        "the least is not above that of the local search": lambda f: f["least_s"] <= f["local_s"],
    }


class SpeedUps(Table):
    """Speed-ups of the simulated step over manual mappings, medians over seeds."""

    keys = {name: column for name, column in _KEYS.items() if name != "seed"}
    columns = {
        "over_consecutive": real("best of our methods over CS map"),
        "over_heuristics": real("best of our methods over the better of CS and p2p map"),
        "paper_over_consecutive": real("better of the paper's two instantiations over CS map"),
        "paper_over_heuristics": real(
            "better of the paper's two instantiations over the better of CS and p2p map"
        ),
        "searched_over_heuristics": real("best of three instantiations over the better of CS and p2p map"),
        "by_sizes_over_consecutive": real("instantiation chosen by message sizes over CS map"),
        "least_over_heuristics": real(
            "best of our methods over the better of CS and p2p map, for the worst seed"
        ),
        "seeds": count("number of seeds of the topology", 1),
    }


class FiguresRead(Table):
    """Speed-ups under every reading of a publication's open points, compared with the printed ones."""

    keys = {
        "case": text("case of the study"),
        "reading": text("reading of the paper"),
        "subject": text("topology or graph"),
        "figure": text("comparison: over CS map, over both heuristics, or partitioner and mapping"),
        "shape": text("stages S x replicas R"),
    }
    columns = {
        "ours": real("our speed-up, median over seeds"),
        "printed": real("printed speed-up, 0 if none is printed"),
    }
