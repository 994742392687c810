"""Find the best schedule of every distinct layer on every kept architecture of a shard."""

from pathlib import Path

from phaze import tables
from phaze.base.job import run_script
from phaze.base.store import Store
from phaze.cost.space import read_architectures
from phaze.schedule.stage import schedule_layers
from phaze.spec.architecture import AreaFigures
from phaze.spec.settings import ScheduleSettings

CHIPS = ["architecture", "num_tc", "num_vc", "tensor_design", "vector_design", "fused_design"]


def main(
    files: dict[str, list[str]],
    outputs: dict[str, str],
    *,
    chip: dict[str, object] | None,
    area_figures: AreaFigures,
    schedule: ScheduleSettings,
    solutions: str,
) -> None:
    """Schedule the architectures that the screen keeps, or all without one; write solves and schedules."""
    chips = read_architectures(files["architectures"], chip, area_figures, CHIPS)
    solves, schedules = schedule_layers(
        tables.Operators.load(*files["operators"]),
        tables.Edges.load(*files["edges"]),
        tables.Estimates.load(*files["estimates"]),
        chips,
        tables.Screens.kept(files["screens"], chips),
        schedule,
        Store(Path(solutions)),
    )
    tables.Solves.save(solves, outputs["solves"])
    tables.Schedules.save(schedules, outputs["schedules"])


if __name__ == "__main__":
    run_script(main, snakemake)
