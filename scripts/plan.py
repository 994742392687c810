"""Plan a model on its winner, the common architecture and the baseline with every planner."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.report.inputs import Cluster
from phaze.report.planned import Choice
from phaze.report.planning import plan_subject
from phaze.search.problem import OPERATOR_TABLES, Problem, area_limit_um2
from phaze.tables.store import EvaluationStore


def main(
    files: dict[str, list[str]],
    outputs: dict[str, str],
    *,
    problem: dict[str, object],
    area_limit: float | dict[str, object],
    choice: dict[str, object],
    planner: str,
    solutions: str,
    evaluations: EvaluationStore,
) -> None:
    """Estimate and schedule the chosen architectures, write plans and their stages."""
    asked = Problem.parse(problem, "study")
    common = tables.Commons.load(*files["commons"]).query("chosen")[["architecture", "hbm_gib"]]
    cluster = Cluster(
        asked.scenario,
        area_limit_um2(area_limit, asked.technology),
        tables.Architectures.load(*files["architectures"]),
        tables.Placements.load(*files["placements"]),
        common=next(common.itertuples(index=False, name=None), None),
    )
    plans, stages = plan_subject(
        asked.read_subject(files),
        asked.terms(solutions, evaluations),
        cluster,
        Choice.parse(choice, "study"),
        planner,
    )
    tables.Plans.save(plans, outputs["plans"])
    tables.PlanStages.save(stages, outputs["plan_stages"])


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        lists = (*OPERATOR_TABLES, "placements", "architectures")
        singles = ("graph", "commons")
        main(
            {table: list(snakemake.input[table]) for table in lists}
            | {table: [snakemake.input[table]] for table in singles},
            dict(snakemake.output.items()),
            problem=snakemake.params.problem,
            area_limit=snakemake.params.area_limit,
            choice=snakemake.params.choice,
            planner=snakemake.params.planner,
            solutions=snakemake.params.solutions,
            evaluations=EvaluationStore(Path(snakemake.params.evaluations), snakemake.params.code),
        )
