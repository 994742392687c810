"""Proof that an architecture is the best of a study: counts of its space, and points solved again."""

from phaze.tables.base import Table, count, real, text
from phaze.tables.columns import BOUNDS, MODEL, SETTING, SIZED

COMMON = "(common)"
"""Model name that stands for all models together."""

CAUSES = ("memory", "solved", "work", "path", "combined", "tied", "open")
"""Reasons that decide a point, the simplest first; only `open` points could still beat the best."""


class Certificates(Table):
    """Size of the space, points excluded by each bound, best value, and largest remaining bound.

    Together they prove that no point is better than the best: every point is in exactly one of the counts.
    """

    keys = {"model": text(f"name of the workload, {COMMON} for all of them together")}
    columns = {
        "architectures": count("architectures within the area limit, equal ones once"),
        "points": count("times TMP widths, microbatches, HBM sizes and recompute; HBM sizes alone if common"),
        "memory": count("excluded because nothing fits the memory"),
        "solved": count("scheduled and placed"),
        "work": count("excluded by the work of the operators over the cores"),
        "path": count("of the others excluded by the longest path through the operators"),
        "combined": count("of the others excluded by the bound of the screen"),
        "tied": count("no better than the best by the bound of the screen, but perhaps as good"),
        "open": count("neither excluded nor solved"),
        "contradictions": count("solved outside the bounds of the screen, or kept and not solved"),
        "architecture": text("the best architecture, empty if there is none"),
        "hbm_gib": real("its HBM capacity"),
        "best": real("its throughput in samples/s, for all workloads together the mean of the study"),
        "excluded": real(
            "largest bound on the throughput of what was not solved, 0 if all was", finite=False
        ),
        "bound": real("no point has more", finite=False),
        "schedules": count("schedules of layers behind what was solved"),
        "unproven": count("of which not proven"),
        "gap": real("largest (objective - bound) / objective of them"),
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
        "chosen": text("why it was looked at", "best", "nearest", "drawn"),
        "lower_s": real("lower bound of the screen", finite=False),
        "feasible_s": real("feasible time of the screen", finite=False),
        "plain_s": real("time with layers bounded by path and work, recomputed", finite=False),
        "bound_s": real("time with layers as short as path, work or a program prove them", finite=False),
        "exact_s": real("time with the verified schedules of its layers, placed again", finite=False),
        "best_s": real("time of the best of the certificate", finite=False),
        "programs": count("passes of layers that took a program to confirm"),
        "verdict": text(
            "what follows",
            "confirmed",
            "unproven",
            "beats the best",
            "fits the memory",
            "lower bound too high",
            "feasible time too low",
            "not as fast as claimed",
        ),
    }
