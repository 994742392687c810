"""Results of a study's readings: best plans of its named architectures under other settings."""

from phaze.tables.base import Table, count, flag, real, text
from phaze.tables.columns import CHOSEN_BY, CUT, FITS, LAYOUT, MFUS, MODEL, SIZED

READING = text("name of the reading, `study` for the study's own settings")


class Readings(Table):
    """Best plan of every named architecture and HBM size under a reading, and the experts' plan."""

    keys = {
        "reading": READING,
        "model": MODEL,
        **SIZED,
        "planner": CHOSEN_BY,
    }
    columns = {
        **FITS,
        "layout": LAYOUT,
        **CUT,
        "recompute": flag("whether activations are recomputed"),
        "devices_used": count("devices used"),
        "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
        "samples_per_s": real("throughput"),
        **MFUS,
        "binding": text("limit of the throughput"),
    }


class ReadingFigures(Table):
    """Printed figures of the publication, compared with every reading: placements, utilisations, means."""

    keys = {
        "reading": READING,
        "kind": text("kind of figure", "placement", "mfu", "mean"),
        "model": text(
            "workload; for a mean `all`, or `undecided` for workloads that no single assumption decides"
        ),
        "of": text("accelerator and planner of the placement, or name of the mean"),
    }
    columns = {
        "printed": text("as printed"),
        "ours": text("figure under the reading, empty if nothing fits"),
        "ratio": real("our figure over the printed one; 0 for placements, and if nothing fits"),
        "agrees": flag("equal {p, d, t}; or a utilisation within a quarter, or a mean within a tenth"),
        "in_full": flag("for placements: microbatch, recomputation and HBM are equal, too"),
    }


class ReadingScores(Table):
    """Agreement of every reading with the publication: placements, deviation of utilisations, means."""

    keys = {"reading": READING}
    columns = {
        "note": text("assumptions of the reading"),
        "placements": count("printed placements with equal {p, d, t}"),
        "in_full": count("placements with equal {p, d, t}, microbatch, recomputation and HBM"),
        "printed_placements": count("printed placements"),
        "mfu_factor": real(
            "exp of the root mean square of log(ours / printed) over all utilisations; 0 for none"
        ),
        "printed_mfus": count("compared printed utilisations"),
        "per_model": real(
            "geometric mean of each workload's printed accelerator over the baseline with the "
            "experts' placement"
        ),
        "common": real(
            "geometric mean of the printed common accelerator over the baseline with the experts' placement"
        ),
        "common_over_baseline": real(
            "geometric mean of the printed common accelerator over the baseline with searched placements"
        ),
        "common_over_family": real(
            "geometric mean of the printed common accelerator over the other printed accelerators"
        ),
    }
