"""Find the best schedule of every distinct layer on every kept architecture of a shard."""

from pathlib import Path

from phaze import tables
from phaze.base.job import run_script
from phaze.base.store import Store
from phaze.schedule.stage import schedule_layers
from phaze.spec.settings import ScheduleSettings

CHIPS = ["architecture", "num_tc", "num_vc", "tensor_design", "vector_design", "fused_design"]


def main(
    inputs: dict[str, str], outputs: dict[str, str], *, schedule: ScheduleSettings, solutions: str
) -> None:
    """Schedule the architectures kept by the screen, and write solves and schedules."""
    solves, schedules = schedule_layers(
        tables.Operators.load(inputs["operators"]),
        tables.Edges.load(inputs["edges"]),
        tables.Estimates.load(inputs["estimates"]),
        tables.Architectures.load(inputs["architectures"], columns=CHIPS),
        tables.Screens.load(inputs["screens"], columns=["architecture", "kept"]),
        schedule,
        Store(Path(solutions)),
    )
    tables.Solves.save(solves, outputs["solves"])
    tables.Schedules.save(schedules, outputs["schedules"])


if __name__ == "__main__":
    run_script(main, snakemake)
