"""Place a model on its best architecture of the grid and the common one under the settings of a reading."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.report.inputs import Cluster
from phaze.report.winners import choose_winner
from phaze.search.cosearch import read_plans
from phaze.search.problem import Problem, area_limit_um2
from phaze.spec.model import parse_model
from phaze.tables.store import EvaluationStore


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    reading: str,
    name: str,
    model: dict[str, object],
    widths: list[int],
    problem: dict[str, object],
    area_limit: float | dict[str, object],
    tolerance: float,
    solutions: str,
    evaluations: EvaluationStore,
) -> None:
    """Look the winners up in the study's placements, and place the model on those that have no name."""
    asked = Problem.parse(problem, "study")
    known = tables.Architectures.load(*files["architectures"])
    commons = tables.Commons.load(*files["commons"])
    placements = tables.Placements.load(*files["placements"])
    limit = area_limit_um2(area_limit, asked.technology)
    winner = choose_winner(Cluster(asked.scenario, limit, known, placements), tolerance)
    names = set(commons.loc[commons["chosen"], "architecture"])
    names |= set() if winner is None else {winner["architecture"]}
    chosen = known[known["architecture"].isin(names) & ~known["named"]]
    found = tables.Readings.empty()
    if len(chosen):
        subject = asked.extract_subject(parse_model(model | {"name": name}, name), widths)
        found = read_plans(reading, subject, chosen, asked.terms(solutions, evaluations))
    tables.Readings.save(found, out)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            {table: list(files) for table, files in snakemake.input.items()},
            snakemake.output[0],
            reading=snakemake.wildcards.reading,
            name=snakemake.wildcards.model,
            model=snakemake.params.model,
            widths=snakemake.params.widths,
            problem=snakemake.params.problem,
            area_limit=snakemake.params.area_limit,
            tolerance=snakemake.params.tolerance,
            solutions=snakemake.params.solutions,
            evaluations=EvaluationStore(Path(snakemake.params.evaluations), snakemake.params.code),
        )
