"""Simulate the plans of a model."""

from phaze import tables
from phaze.base.job import run_script
from phaze.base.store import Store
from phaze.formulas.replay import replay_plans


def main(
    plans: str,
    plan_stages: str,
    outputs: dict[str, str],
    *,
    store: Store,
) -> None:
    """Read plans and their stages, simulate them, and write the simulations."""
    simulations, stages = replay_plans(tables.Plans.load(plans), tables.PlanStages.load(plan_stages), store)
    tables.Simulations.save(simulations, outputs["simulations"])
    tables.SimulationStages.save(stages, outputs["simulation_stages"])


if __name__ == "__main__":
    run_script(main, snakemake)
