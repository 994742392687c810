"""Write the page of the plans: figures, tables, claims of the publication, and checks."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.report.plans.build import build_plan_report
from phaze.report.plans.inputs import PlanInputs
from phaze.report.report import write_report
from phaze.spec.planning import Plans
from phaze.spec.published_plans import PublishedPlans


def main(
    folder: Path,
    files: dict[str, list[str]],
    *,
    plans: dict[str, object],
    published: dict[str, object] | None,
) -> None:
    """Read the tables of all cases, write the page into `folder`."""
    loaded = {name: tables.TABLES[name].load(*paths) for name, paths in files.items()}
    inputs = PlanInputs(
        plans=Plans.parse(plans, "plans"),
        cases=loaded["cases"],
        pipelines=loaded["pipelines"],
        curves=loaded["curves"],
        durations=loaded["durations"],
        published=None if published is None else PublishedPlans.parse(published, "published"),
    )
    write_report(build_plan_report(inputs), folder)


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        main(
            Path(snakemake.output.page).parent,
            {name: list(paths) for name, paths in snakemake.input.items()},
            plans=snakemake.params.plans,
            published=snakemake.params.published,
        )
