"""Simulations on tiled accelerators, separate from the models of the study."""

from phaze.tables.base import Table, count, flag, real, text

_RUN = {
    "case": text("name of the case"),
    "system": text("system of tiles"),
    "model": text("model"),
    "layout": text("where stages lie", "line", "s-shaped", "own"),
    "placed": text("which groups lie close: slices of a replica near or far", "near", "far"),
    "tensor": count("slices of a replica, N_m", 1),
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
        "alone_s": real("the time if nothing were sent, fetched or stored"),
        "uncontended_s": real("the time if links and ports carried all that comes at once"),
        "compute_share": real("share of the time for which stages work, recomputation included"),
        "model_share": real("FLOPs without recomputation over those of all tiles in the time"),
        "link_busy_s": real("time for which a link is held, on average"),
        "most_link_share": real("share of the time for which the link held longest is"),
        "dram_share": real("share of the time for which ports of memories are held, on average"),
        "most_dram_share": real("share of the time for which the port held longest is"),
        "bound_by": text("what is busy longest", "compute", "links", "dram", "pipeline"),
        "strategy": text("what stays in SRAM, by stage, each once"),
        "layer_bytes": real("what a layer all-reduces in a batch (PALM, Equation 6)"),
        "sent_bytes": real("bytes that all nodes send"),
        "received_bytes": real("bytes that all nodes receive"),
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
        "held_bytes": real("memory of each tile of the stage while it is at work"),
    }


class TiledLinks(Table):
    """Links between tiles: bytes per batch and busy share."""

    keys = {**_RUN, "link": count("number of the link")}
    columns = {
        "source_row": count("row of the tile that sends"),
        "source_column": count("its column"),
        "target_row": count("row of the tile that receives"),
        "target_column": count("its column"),
        "bytes": real("bytes in a batch"),
        "busy_share": real("share of the time for which it is held"),
    }


class TiledBesides(Table):
    """Rows of PALM's Tables I, IV and V, compared with ours."""

    keys = {
        "table": text("table of the paper"),
        "case": text("its row"),
        "reading": text("how it is read, where it can be read in several ways"),
    }
    columns = {
        "unit": text("unit of the numbers"),
        "published": real("what the paper prints as published"),
        "palm": real("what its authors simulate, 0 where they do not"),
        "measured": real("the same from times that are measured with everything, 0 if the paper's is"),
        "ours": real("ours"),
        "explanation": text("how ours comes about, and why it differs"),
    }


class TiledNetworks(Table):
    """Network-only cases (PALM, Figures 6, 7 and 12), each with its reference."""

    keys = {
        "figure": count("figure of the paper"),
        "reading": text("how the figure is read"),
        "setting": text("what is simulated, and how"),
    }
    columns = {
        "group": text("settings that are compared with one printed number"),
        "seconds": real("the time simulated: with contention, or of strategy 1"),
        "other_s": real("what it is compared with: the formula, or strategy 2"),
        "value": real("what the figure shows: a share that the formula is short, or a gain", None),
    }


class TiledReadings(Table):
    """Readings of PALM's open points, each compared with the paper's figures that it yields."""

    keys = {"number": count("order on the page")}
    columns = {
        "printed_in": text("table or figure of the paper"),
        "reading": text("how it is read"),
        "figures": count("printed figures that the reading gives", 1),
        "mean_error": real("mean of the relative errors without their signs"),
        "worst_error": real("the largest of them"),
        "statements": count("statements of the paper without a figure that are tested with the reading"),
        "held": count("those that hold"),
        "theirs": flag("whether it is of the paper's authors, and nothing of ours"),
        "ours": text("figures found, one for each printed one where there are few"),
        "printed": text("figures printed"),
    }
    rules = {
        "no more hold than are tested": lambda f: f["held"] <= f["statements"],
        "no mean above the worst": lambda f: f["mean_error"] <= f["worst_error"] * (1 + 1e-9),
    }
