"""Find the best plan of a searched model on an architecture, or on the design nearest to it."""

from pathlib import Path

from phaze.base.job import run_script
from phaze.plan.answer.chip_study import Searched, on_other_chip
from phaze.spec.chip_study import ChipPoint
from phaze.spec.documents import read_as, write_document
from phaze.spec.training_plan import TrainingPlan
from phaze.tables.chips import ChipBounds


def main(
    usual_technology: str,
    plan: str,
    bounds: str,
    out: str,
    *,
    wildcards: dict[str, str],
    point: ChipPoint,
    nearest: bool,
) -> None:
    """Plan on the chip that the wildcard names, starting from the best plan of the search."""
    best = read_as(TrainingPlan, plan)
    search = Searched(wildcards["search"], point, best, ChipBounds.load(bounds))
    folder = Path(usual_technology).parent.parent
    write_document(on_other_chip(search, wildcards["chip"], nearest=nearest, folder=folder), Path(out))


if __name__ == "__main__":
    run_script(main, snakemake)
