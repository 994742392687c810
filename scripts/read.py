"""Place a model under the settings of a reading, on named architectures or on the winners of the grid."""

from pathlib import Path

import pandas as pd

from phaze import tables
from phaze.base.job import logged
from phaze.base.store import Store
from phaze.cost.space import area_limit_um2, describe_named
from phaze.search.cosearch import Problem, read_plans
from phaze.search.winners import Outcome, choose_winner
from phaze.spec.architecture import Architecture
from phaze.spec.models import parse_model


def main(
    out: str,
    *,
    reading: str,
    name: str,
    model: dict[str, object],
    widths: list[int],
    problem: Problem,
    chips: pd.DataFrame,
    solutions: str,
    evaluations: Store,
) -> None:
    """Extract the model, and evaluate the architectures over all its TMP widths and microbatches."""
    found = tables.Readings.empty()
    if len(chips):
        subject = problem.extract_subject(parse_model(model | {"name": name}, name), widths)
        found = read_plans(reading, subject, chips, problem.terms(solutions, evaluations))
    tables.Readings.save(found, out)


def named(architectures: list[dict[str, object]], problem: Problem) -> pd.DataFrame:
    """Return table architectures of the named ones."""
    chips = [Architecture.parse(chip, "architectures") for chip in architectures]
    return describe_named(chips, problem.technology.area_um2, "named")


def winners(
    files: dict[str, list[str]],
    problem: Problem,
    area_limit: float | dict[str, object],
    tolerance: float,
) -> pd.DataFrame:
    """Return the best and the common architecture of the study, without named ones."""
    known = tables.Architectures.load(*files["architectures"])
    commons = tables.Commons.load(*files["commons"])
    limit_um2 = area_limit_um2(area_limit, problem.technology)
    placements = tables.Placements.load(*files["placements"])
    winner = choose_winner(Outcome(problem.scenario, limit_um2, known, placements), tolerance)
    names = set(commons.loc[commons["chosen"], "architecture"])
    names |= set() if winner is None else {winner["architecture"]}
    chosen: pd.DataFrame = known[known["architecture"].isin(names) & ~known["named"]]
    return chosen


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        problem = Problem.parse(snakemake.params.problem, "study")
        files = {table: list(paths) for table, paths in snakemake.input.items()}
        main(
            snakemake.output[0],
            reading=snakemake.wildcards.reading,
            name=snakemake.wildcards.model,
            model=snakemake.params.model,
            widths=snakemake.params.widths,
            problem=problem,
            chips=(
                winners(files, problem, snakemake.params.area_limit, snakemake.params.tolerance)
                if files
                else named(snakemake.params.architectures, problem)
            ),
            solutions=snakemake.params.solutions,
            evaluations=Store(Path(snakemake.params.evaluations), snakemake.params.code),
        )
