"""Plan a model with every planner, on its best, the common and the baseline architecture."""

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2
from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.formulas.side_by_side import plan_model
from phaze.search.cosearch import Problem, look_up_architectures
from phaze.search.winners import ChipChoice, Outcome, choose_chips


def main(
    files: dict[str, list[str]],
    outputs: dict[str, str],
    *,
    problem: Problem,
    area_limit: float | dict[str, object],
    choice: dict[str, object],
    planner: str,
) -> None:
    """Schedule the chosen architectures, and write plans and their stages.

    All planners plan on the winner, the common architecture and the baseline. If the planner of the study is
    not Phaze's, it also plans on all other architectures that may be its answer.
    """
    common = tables.Commons.load(*files["commons"]).query("chosen")[["architecture", "hbm_gib"]]
    chips_of_study = tables.Architectures.load(*files["architectures"])
    cluster = Outcome(
        problem.scenario,
        area_limit_um2(area_limit, problem.technology),
        chips_of_study,
        tables.Placements.load(*files["placements"]),
        common=next(common.itertuples(index=False, name=None), None),
    )
    chips = choose_chips(cluster, ChipChoice.parse(choice, "study"))
    requests = [PlansAsked(*chip, tables.PLANNERS) for chip in chips.compared]
    requests += [PlansAsked(*chip, (planner,)) for chip in chips.others if planner != "phaze"]
    planned = chips_of_study[
        chips_of_study["architecture"].isin({request.architecture for request in requests})
    ]
    plans, stages = tables.Plans.empty(), tables.PlanStages.empty()
    if len(planned):
        subject = problem.read_subject(files)
        solves = look_up_architectures(subject, planned, problem, ["solves"])["solves"]
        conditions = problem.conditions(subject)
        tasks = read_tasks(
            subject.layers, subject.graph, solves, planned, requests, conditions, subject.expert
        )
        plans, stages = plan_model(tasks)
    tables.Plans.save(plans, outputs["plans"])
    tables.PlanStages.save(stages, outputs["plan_stages"])


if __name__ == "__main__":
    run_script(main, snakemake)
