"""Write the page of the chosen chips of a study, with its tables."""

from pathlib import Path

from phaze.base.job import run_script
from phaze.pages.page import write_report
from phaze.report.chips import ChipInputs, LadderStep, build_chip_report
from phaze.spec.chip_choice import ChipChoice, ChipForModels
from phaze.spec.chip_study import ChipStudy
from phaze.spec.documents import read_as
from phaze.spec.training_plan import TrainingPlan
from phaze.tables.chips import ChipBounds


def main(
    choices: list[str],
    bounds: list[str],
    plans: list[str],
    built: list[str],
    outputs: dict[str, str],
    *,
    chips: ChipStudy,
) -> None:
    """Build the page from the choices of all scenarios and the plans of the ladder, and write it."""
    inputs = ChipInputs(
        study=chips,
        choices={Path(path).stem: read_as(ChipChoice, path) for path in choices},
        bounds={Path(path).stem: ChipBounds.load(path) for path in bounds},
        steps=[
            LadderStep(read_as(TrainingPlan, plan), read_as(ChipForModels, other))
            for plan, other in zip(plans, built, strict=True)
        ],
    )
    write_report(build_chip_report(inputs), Path(outputs["page"]).parent)


if __name__ == "__main__":
    run_script(main, snakemake, logs_params=False)
