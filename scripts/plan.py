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
    known = tables.Architectures.load(*files["architectures"])
    cluster = Outcome(
        problem.scenario,
        area_limit_um2(area_limit, problem.technology),
        known,
        tables.Placements.load(*files["placements"]),
        common=next(common.itertuples(index=False, name=None), None),
    )
    chips = choose_chips(cluster, ChipChoice.parse(choice, "study"))
    asked = [PlansAsked(*chip, tables.PLANNERS) for chip in chips.compared]
    asked += [PlansAsked(*chip, (planner,)) for chip in chips.others if planner != "phaze"]
    wanted = known[known["architecture"].isin({one.architecture for one in asked})]
    plans, stages = tables.Plans.empty(), tables.PlanStages.empty()
    if len(wanted):
        subject = problem.read_subject(files)
        solves = look_up_architectures(subject, wanted, problem, ["solves"])["solves"]
        conditions = problem.conditions(subject)
        tasks = read_tasks(subject.layers, subject.graph, solves, wanted, asked, conditions, subject.expert)
        plans, stages = plan_model(tasks)
    tables.Plans.save(plans, outputs["plans"])
    tables.PlanStages.save(stages, outputs["plan_stages"])


if __name__ == "__main__":
    run_script(main, snakemake)
