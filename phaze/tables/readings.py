"""What a study's readings give: the best plans of its named architectures under other settings."""

from phaze.tables.base import Table, count, flag, real, text
from phaze.tables.columns import ARCHITECTURE, MODEL

READING = text("name of the reading, `study` for the study's own settings")


class Readings(Table):
    """The best plan of every named architecture under every reading, and the experts'."""

    name = "readings"
    about = (
        "best plan of every named architecture and HBM size under the settings of a reading, and the experts'"
    )
    keys = {
        "reading": READING,
        "model": MODEL,
        "architecture": ARCHITECTURE,
        "hbm_gib": real("HBM capacity"),
        "planner": text("who chose the placement", "phaze", "expert", "expert-even"),
    }
    columns = {
        "status": text("result", "placed", "infeasible"),
        "reason": text("the limit that binds and by how much, empty if placed"),
        "tensor": count("tensor model parallel width t", 1),
        "data": count("data parallel width d"),
        "stages": count("pipeline depth s"),
        "microbatch": count("samples in a microbatch b", 1),
        "recompute": flag("activations are recomputed"),
        "devices_used": count("devices used"),
        "time_per_batch_s": real("time per global batch; infinite if infeasible", finite=False),
        "samples_per_s": real("throughput"),
        "mfu": real("model FLOPs utilisation (PaLM, Appendix B)"),
        "binding": text("what limits the throughput"),
    }
