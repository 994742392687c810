"""Simulations on tiled accelerators, separate from the models of the study."""

from phaze.tables.base import Table, count, flag, real, text

_RUN = {
    "case": text("name of the case"),
    "system": text("system of tiles"),
    "model": text("model"),
    "layout": text("where stages lie", "line", "s-shaped", "own"),
    "placed": text("neighbours on the mesh: tensor-parallel ranks near or far", "near", "far"),
    "tensor": count("tensor-parallel ranks of a replica, N_m", 1),
    "microbatches": count("microbatches in a batch", 1),
}


class TiledRuns(Table):
    """Pipelined transformers on groups of tiles: batch time, utilisation, and the limiting resource."""

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
        "layer_bytes": real("bytes all-reduced by a layer in a batch (PALM, Equation 6)"),
        "sent_bytes": real("bytes that all nodes send"),
        "received_bytes": real("bytes received by all nodes"),
    }
    rules = {
        "nothing sent is lost": lambda f: (
            (f["sent_bytes"] - f["received_bytes"]).abs() <= 1e-9 * f["sent_bytes"]
        ),
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
    """Rows of PALM's Tables I, IV and V, compared with ours."""

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
    """Readings of PALM's open points, each compared with the paper's figures that it yields."""

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
        "no mean above the worst": lambda f: f["mean_error"] <= f["worst_error"] * (1 + 1e-9),
    }
