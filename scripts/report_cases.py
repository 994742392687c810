"""Write the page of the plans: figures, tables, claims of the publication, and checks."""

import logging
from pathlib import Path

from phaze import tables
from phaze.job import logged
from phaze.report.plans import PlanInputs, build_plan_report, write_plan_report
from phaze.spec.planning import Plans
from phaze.spec.published_plans import PublishedPlans

log = logging.getLogger(__name__)


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
    report = build_plan_report(inputs)
    write_plan_report(report, folder)
    for failure in report.failures:
        log.warning("does not hold: %s", failure)


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        main(
            Path(snakemake.output.page).parent,
            {name: list(snakemake.input[name]) for name in ("cases", "pipelines", "curves", "durations")},
            plans=snakemake.params.plans,
            published=snakemake.params.published,
        )
