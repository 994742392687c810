"""Search of the space: walks through decreasing areas, and the results of every search strategy."""

from phaze.tables.base import Table, count, real, text
from phaze.tables.columns import ARCHITECTURE, MODEL

SCOPES = ("whole", "least-microbatch", "recomputing")
"""Search scopes.

The whole space of the study; the smallest microbatch only, as in the paper's Figure 9; and also the largest
HBM and recomputation only, as in its Figure 8.
"""

MILESTONES = (10, 100, 1000)
"""Numbers of exact evaluations at which search strategies are compared."""

_SEARCHED = {
    "model": MODEL,
    "scope": text("dimensions that are searched in addition to the architecture", *SCOPES),
}


class Visits(Table):
    """Architectures visited by the walk through decreasing areas, in order, with their throughput."""

    keys = {"model": MODEL, "step": count("position in the walk")}
    columns = {
        "architecture": ARCHITECTURE,
        "hbm_gib": real("HBM capacity of its best placement, 0 without one"),
        "area_um2": real("area of the chip"),
        "band": count("area band, whose architectures count as one area"),
        "pes": count("multiply-accumulate units of a tensor core, pe_x * pe_y", 1),
        "samples_per_s": real("exact throughput, 0 if the model fits nowhere"),
        "best_so_far": real("largest throughput so far, including this step"),
        "level": count("smallest hysteresis whose walk visits it", 1),
    }
    rules = {"the best so far is not below this one": lambda f: f["best_so_far"] >= f["samples_per_s"]}


class Trials(Table):
    """Exact evaluations of every search strategy in order, with the best throughput found so far."""

    keys = {
        **_SEARCHED,
        "strategy": text("certified, hysteresis-1 to hysteresis-8, random, bayesian"),
        "seed": count("seed of the random numbers, 0 for deterministic strategies"),
        "evaluation": count("number of the exact evaluation", 1),
    }
    columns = {
        "architecture": ARCHITECTURE,
        "area_um2": real("area of the chip"),
        "samples_per_s": real("exact throughput, 0 if the model fits nowhere"),
        "best_samples_per_s": real("largest throughput so far, including this evaluation"),
    }
    rules = {"the best so far is not below this one": lambda f: f["best_samples_per_s"] >= f["samples_per_s"]}


class Walks(Table):
    """Architecture chosen by the walk at every hysteresis level (Figures 8 and 9)."""

    keys = {
        **_SEARCHED,
        "hysteresis": count("consecutive decreasing areas that end the walk", 1),
    }
    columns = {
        "architecture": ARCHITECTURE,
        "area_um2": real("area of the best visited architecture"),
        "samples_per_s": real("throughput of the best visited architecture"),
        "visited": count("architectures visited"),
    }


class Searches(Table):
    """Best result of every search strategy after a number of exact evaluations, relative to the optimum."""

    keys = {"model": MODEL, "strategy": text("search strategy, as in trials")}
    columns = {
        "seeds": count("number of runs", 1),
        "evaluations": count("exact evaluations of a run, median", 1),
        **{
            f"after_{evaluations}": real(
                f"best after {evaluations} evaluations or at the end, over the optimum, median"
            )
            for evaluations in MILESTONES
        },
        "final": real("best at the end over the optimum, median"),
        "near": real("evaluations to come within the tolerance, median; infinite if never", finite=False),
        "optimal": real("evaluations to reach the optimum, median; infinite if never", finite=False),
        "share_near": real("share of the runs that come within the tolerance"),
        "share_optimal": real("share of the runs that find the optimum"),
    }
