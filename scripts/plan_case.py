"""Plan a profiled input with every planner of a case, on clusters of one memory size and batch."""

from phaze import tables
from phaze.base.job import run_script
from phaze.formulas.piper.baselines import CONTENDERS
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.study import plan_point
from phaze.spec.planning import PlanPoint


def main(source: str, outputs: dict[str, str], *, case: str, name: str, point: PlanPoint) -> None:
    """Read the input, and write the plans with their stages, and the curves."""
    layers = read_instance(source).layers()
    plans = plan_point(case, name, layers, point, CONTENDERS)
    for table, path in outputs.items():
        tables.TABLES[table].save(plans[table], path)


if __name__ == "__main__":
    run_script(main, snakemake)
