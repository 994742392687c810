"""Results of cases that use none of the study's models: mappings to devices, simulations on tiles."""

from phaze.spec.mapping import StoredSearch
from phaze.spec.names import MAP_METHODS, PARTITIONERS
from phaze.tables.base import Table, columns_of, count, flag, real, text

OWN_WAYS = MAP_METHODS[:4]
"""Our search methods; the other methods are heuristics."""

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
_RUN = {
    "case": text("name of the case"),
    "system": text("system of tiles"),
    "model": text("model"),
    "layout": text("where stages lie", "line", "s-shaped", "own"),
    "placed": text("neighbours on the mesh: tensor-parallel ranks near or far", "near", "far"),
    "tensor": count("tensor-parallel ranks of a replica, N_m", 1),
    "microbatches": count("microbatches in a batch", 1),
}


class Mappings(Table):
    """Simulated training step under the mapping found by each method."""

    keys = {**_KEYS, "way": text("mapping method", *MAP_METHODS)}
    columns = {
        "step_s": real("simulated step time"),
        "shared_step_s": real("step time with contention at the ports of nodes, where the topology has them"),
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
        # Both sides are sums of times in different orders, hence the tolerance.
        "a bound is not above the value": lambda f: f["bound_s"] <= f["value_s"] * (1 + 1e-9),
        "a step takes at least its computing": lambda f: f["step_s"] >= f["compute_s"] * (1 - 1e-9),
        "sharing takes no less": lambda f: f["shared_step_s"] >= f["step_s"] * (1 - 1e-9),
        "holding devices takes no less": lambda f: f["held_step_s"] >= f["step_s"] * (1 - 1e-9),
    }


class MappedDevices(Table):
    """Device of every stage and replica, for the first seed of a topology.

    Contains our mapping with the shortest step, and the mappings of the heuristics.
    """

    keys = {
        **_KEYS,
        "way": text("mapping method", *MAP_METHODS),
        "stage": count("stage s, from the input"),
        "replica": count("replica r, in the order of the ring"),
    }
    columns = {"device": count("device d")}


class SearchGaps(Table):
    """Longest stage time found by local search alone, next to the best known time and the lower bound."""

    keys = {
        **_KEYS,
        "counted": text("parts of the stage time that the objective counts", "p2p", "allreduce", "exact"),
    }
    columns = {
        "local_s": real("longest stage time of the local search, from random mappings and nearby devices"),
        "least_s": real("smallest longest stage time found by it or by a search with Algorithm 1"),
        "bound_s": real("lower bound on the longest stage time of all mappings"),
        "proven": flag("whether least_s is proven optimal"),
    }
    rules = {
        # The search and the bound add up the same times in different orders, hence the tolerance.
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
        "paper_over_heuristics": real("better of the paper's instantiations over the better heuristic"),
        "searched_over_heuristics": real("best of three instantiations over the better of CS and p2p map"),
        "by_sizes_over_consecutive": real("instantiation chosen by message sizes over CS map"),
        "least_over_heuristics": real("best of our methods over the better of CS and p2p map, worst seed"),
        "seeds": count("number of seeds of the topology", 1),
    }


class FiguresRead(Table):
    """Speed-ups under each interpretation of a paper's open details, next to the published values."""

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


class TiledRuns(Table):
    """Pipelined models on groups of tiles: batch time, utilisation, and the limiting resource."""

    keys = _RUN
    columns = {
        "data": count("replicas of a stage, N_d", 1),
        "stages": count("stages", 1),
        "batch": count("samples in a batch", 1),
        "time_s": real("time of a batch"),
        "samples_per_s": real("throughput"),
        "alone_s": real("time without communication and memory access"),
        "uncontended_s": real("time if links and ports carry concurrent transfers without contention"),
        "compute_share": real("share of the time for which stages work, recomputation included"),
        "model_share": real("FLOPs without recomputation over those of all tiles in the time"),
        "link_busy_s": real("mean time for which a link is busy"),
        "most_link_share": real("share of the time for which the busiest link is busy"),
        "dram_share": real("mean share of the time for which memory ports are busy"),
        "most_dram_share": real("share of the time for which the busiest port is busy"),
        "bound_by": text("what is busy longest", "compute", "links", "dram", "pipeline"),
        "strategy": text("distinct data that stay in SRAM, by stage"),
        "layer_bytes": real("bytes that a layer exchanges per tile in a batch (PALM, Equation 6)"),
        "sent_bytes": real("bytes that all nodes send"),
        "received_bytes": real("bytes received by all nodes"),
        "recomputed": count("stages that recompute their activations"),
        "tile_bytes": real("peak memory of a tile, in SRAM and DRAM"),
        "dram_bytes": real("memory of all stages that does not stay in SRAM"),
    }
    rules = {
        "nothing sent is lost": lambda f: (
            (f["sent_bytes"] - f["received_bytes"]).abs() <= 1e-9 * f["sent_bytes"]
        )
    }


class TiledJobs(Table):
    """Jobs of the pipeline stages on tiles, with their times."""

    keys = {**_RUN, "resource": count("worker, then ports"), "number": count("order of execution")}
    columns = {
        "kind": text("what it is"),
        "stage": count("stage"),
        "microbatch": count("microbatch, or batch"),
        "start_s": real("when it starts"),
        "end_s": real("when it is over"),
        "held_bytes": real("memory of each tile of the stage during the job"),
    }


class TiledLinks(Table):
    """Links between tiles: bytes per batch and busy share."""

    keys = {**_RUN, "link": count("number of the link")}
    columns = {
        "source_row": count("row of the sending tile"),
        "source_column": count("its column"),
        "target_row": count("row of the receiving tile"),
        "target_column": count("its column"),
        "bytes": real("bytes in a batch"),
        "busy_share": real("share of the time for which it is busy"),
    }


class TiledBesides(Table):
    """Rows of PALM's Tables I, IV and V, compared with our values."""

    keys = {
        "table": text("table of the paper"),
        "case": text("its row"),
        "reading": text("interpretation, if several are possible"),
    }
    columns = {
        "unit": text("unit of the numbers"),
        "published": real("published figure printed by the paper"),
        "palm": real("figure simulated by the authors, 0 without one"),
        "measured": real("figure from times measured in full, 0 if the paper's already is"),
        "ours": real("ours"),
        "explanation": text("origin of our figure, and reason for the difference"),
    }


class TiledNetworks(Table):
    """Network-only cases (PALM, Figures 6, 7 and 12), each with its reference."""

    keys = {
        "figure": count("figure of the paper"),
        "reading": text("how the figure is read"),
        "setting": text("simulated case and its options"),
    }
    columns = {
        "group": text("settings compared with one printed number"),
        "seconds": real("simulated time: with contention, or of strategy 1"),
        "other_s": real("time compared with it: of the formula, or of strategy 2"),
        "value": real("figure shown: relative shortfall of the formula, or gain", None),
    }


class TiledReadings(Table):
    """Interpretations of details that PALM leaves open, each compared with the paper's figures."""

    keys = {"number": count("order on the page")}
    columns = {
        "printed_in": text("table or figure of the paper"),
        "reading": text("how it is read"),
        "figures": count("printed figures to which the reading applies", 1),
        "mean_error": real("mean absolute relative error"),
        "worst_error": real("largest absolute relative error"),
        "statements": count("statements without a figure that are tested with the reading"),
        "held": count("statements that hold"),
        "theirs": flag("whether it is a setting of the paper's authors alone"),
        "ours": text("figures found; if few, one per printed figure"),
        "printed": text("number of printed figures"),
    }
    rules = {
        "no more hold than are tested": lambda f: f["held"] <= f["statements"],
        # A mean of equal errors may be rounded above each of them.
        "no mean above the worst": lambda f: f["mean_error"] <= f["worst_error"] * (1 + 1e-9),
    }
