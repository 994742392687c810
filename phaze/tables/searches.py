"""Searches of the design space by descending area and other strategies, and proofs of the optimum."""

from phaze.tables.base import Table, count, real, text
from phaze.tables.columns import ARCHITECTURE, BOUNDS, MODEL, SETTING, SIZED

SCOPES = ("whole", "least-microbatch", "recomputing")
"""Scopes of a search: how much of the study's space it covers.

The whole space of the study; the smallest microbatch only, as in the paper's Figure 9; and also the largest
HBM and recomputation only, as in its Figure 8.
"""

MILESTONES = (10, 100, 1000)
"""Numbers of exact evaluations at which search strategies are compared."""

_SEARCHED = {
    "model": MODEL,
    "scope": text("dimensions that are searched in addition to the architecture", *SCOPES),
}
COMMON = "(common)"
"""Model name that denotes all models together."""
CAUSES = ("memory", "solved", "work", "path", "combined", "tied", "open")
"""Reasons that settle a design point, the simplest first; only `open` points could still beat the best."""


class Visits(Table):
    """Architectures in the order in which the descending-area search visited them, with throughput."""

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
        "strategy": text("certified, or hysteresis-1 to hysteresis-8"),
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
    """Architecture that the descending-area search chooses at each hysteresis level (Figures 8 and 9)."""

    keys = {**_SEARCHED, "hysteresis": count("consecutive decreasing areas that end the walk", 1)}
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
        "evaluations": count("exact evaluations", 1),
        **{
            f"after_{evaluations}": real(
                f"best after {evaluations} evaluations or at the end, over the optimum"
            )
            for evaluations in MILESTONES
        },
        "final": real("best at the end over the optimum"),
        "near": real("evaluations to come within the tolerance; infinite if never", finite=False),
        "optimal": real("evaluations to reach the optimum; infinite if never", finite=False),
    }


class Certificates(Table):
    """Size of the space, points excluded by each bound, best value, and largest remaining bound.

    Together they prove that no point is better than the best: every point is in exactly one of the counts.
    """

    keys = {"model": text(f"name of the workload, {COMMON} for all workloads together")}
    columns = {
        "architectures": count("distinct architectures within the area limit"),
        "points": count(
            "architectures times TMP widths, microbatches, HBM sizes and recompute choices; only "
            "times HBM sizes if common"
        ),
        "memory": count("points excluded because nothing fits in memory"),
        "solved": count("points scheduled and placed"),
        "work": count("points excluded by the work of the operators over the cores"),
        "path": count("other points excluded by the longest path through the operators"),
        "combined": count("other points excluded by the bound of the screen"),
        "tied": count("points whose bound of the screen equals the best: no better, possibly as good"),
        "open": count("points neither excluded nor solved"),
        "contradictions": count("points solved outside the bounds of the screen, or kept and not solved"),
        "architecture": text("best architecture, empty if nothing fits"),
        "hbm_gib": real("HBM capacity of the best"),
        "best": real("throughput of the best in samples/s; for all workloads the study's mean"),
        "excluded": real("largest throughput bound of unsolved points, 0 if all were solved", finite=False),
        "bound": real("upper bound on the throughput of all points", finite=False),
        "schedules": count("schedules of layers behind the solved points"),
        "unproven": count("schedules without a proof"),
        "gap": real("largest (objective - bound) / objective of these schedules"),
    }
    rules = {"the best is not above the bound": lambda f: f["best"] <= f["bound"]}


class Ranges(Table):
    """Minimum lower bound and minimum feasible time per batch over TMP widths, microbatches and recompute."""

    keys = {"model": MODEL, **SIZED}
    columns = BOUNDS
    rules = {"the lower bound is not above the feasible value": lambda f: f["lower_s"] <= f["feasible_s"]}


class Audits(Table):
    """Sample of excluded points, bounded and solved again to verify the certificate."""

    keys = SETTING
    columns = {
        "chosen": text("reason why the point was drawn", "best", "nearest", "drawn"),
        "lower_s": real("lower bound of the screen", finite=False),
        "feasible_s": real("feasible time of the screen", finite=False),
        "plain_s": real("time with layer bounds from path and work, computed again", finite=False),
        "bound_s": real("time with layer bounds from path, work or a program", finite=False),
        "exact_s": real("time with the verified schedules of its layers, placed again", finite=False),
        "best_s": real("best time of the certificate", finite=False),
        "programs": count("passes of layers that needed a program to confirm"),
        "verdict": text(
            "verdict on the point",
            "confirmed",
            "unproven",
            "beats the best",
            "fits the memory",
            "lower bound too high",
            "feasible time too low",
            "not as fast as claimed",
        ),
    }
