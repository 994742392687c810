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
        "recompute": flag("activations are recomputed"),
        "devices_used": count("devices used"),
        "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
        "samples_per_s": real("throughput"),
        **MFUS,
        "binding": text("what limits the throughput"),
    }


class ReadingFigures(Table):
    """Printed figures of the publication, compared with every reading: placements, utilisations, means."""

    keys = {
        "reading": READING,
        "kind": text("what it is", "placement", "mfu", "mean"),
        "model": text("workload; of a mean `all`, or `undecided` for those that no one assumption decides"),
        "of": text("accelerator and whose placement, or which mean"),
    }
    columns = {
        "printed": text("as printed"),
        "ours": text("under the reading, empty if nothing fits"),
        "ratio": real("ours over the printed; 0 for placements, and if nothing fits"),
        "agrees": flag("equal {p, d, t}; a utilisation within a quarter, a mean within a tenth"),
        "in_full": flag("of a placement: equal microbatch, recomputation and HBM, too"),
    }


class ReadingScores(Table):
    """Agreement of every reading with the publication: placements, deviation of utilisations, means."""

    keys = {"reading": READING}
    columns = {
        "note": text("what the reading assumes"),
        "placements": count("printed placements with equal {p, d, t}"),
        "in_full": count("of these with equal microbatch, recomputation and HBM"),
        "printed_placements": count("printed placements"),
        "mfu_factor": real(
            "exp of the root mean square of log(ours / printed) of all utilisations; 0 for none"
        ),
        "printed_mfus": count("printed utilisations that are compared"),
        "per_model": real(
            "geometric mean: each workload's printed accelerator over the baseline with its experts"
        ),
        "common": real("the printed common accelerator over the same"),
        "common_over_baseline": real("the same over the baseline with searched placements"),
        "common_over_family": real("the same over the other printed accelerators"),
    }
