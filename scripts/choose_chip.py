"""Choose the chip for all models of a scenario from their searches."""

from math import inf
from pathlib import Path

from phaze.base.job import run_script
from phaze.plan.answer.chip_study import Searched, choice_of
from phaze.spec.chip_choice import ChipForModels
from phaze.spec.chip_study import ChipPoint
from phaze.spec.documents import read_as, write_document
from phaze.spec.training_plan import TrainingPlan
from phaze.tables.chips import ChipBounds


def main(
    usual_technology: str,
    plans: list[str],
    bounds: list[str],
    others: list[str],
    out: str,
    *,
    points: dict[str, dict[str, object]],
    seconds: float | None,
) -> None:
    """Compare the best chips of all models, and write the choice with its plans and bounds."""
    searches = [
        Searched(
            search=search,
            point=ChipPoint.parse(point, f"chips: {search}"),
            plan=read_as(TrainingPlan, plan),
            bounds=ChipBounds.load(table),
            others=tuple(read_as(ChipForModels, path) for path in others if Path(path).parent.name == search),
        )
        for (search, point), plan, table in zip(points.items(), plans, bounds, strict=True)
    ]
    choice = choice_of(searches, seconds or inf, Path(usual_technology).parent.parent)
    write_document(choice, Path(out))


if __name__ == "__main__":
    run_script(main, snakemake)
