"""Proof that an architecture is the best of a study: counts of its space, and points solved again."""

from phaze.tables.base import Table, count, real, text
from phaze.tables.columns import BOUNDS, MODEL, SETTING, SIZED

COMMON = "(common)"
"""Model name that denotes all models together."""

CAUSES = ("memory", "solved", "work", "path", "combined", "tied", "open")
"""Reasons that decide a point, the simplest first; only `open` points could still beat the best."""


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
        "best": real(
            "throughput of the best in samples/s; for all workloads together, the mean defined by the study"
        ),
        "excluded": real(
            "largest bound on the throughput of unsolved points, 0 if all were solved", finite=False
        ),
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
