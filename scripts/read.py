"""Place a model on named architectures under the settings of a reading."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.cost.space import describe_named
from phaze.search.cosearch import read_plans
from phaze.search.problem import Problem
from phaze.spec.architecture import Architecture
from phaze.spec.model import parse_model
from phaze.tables.store import EvaluationStore


def main(
    out: str,
    *,
    reading: str,
    name: str,
    model: dict[str, object],
    widths: list[int],
    problem: dict[str, object],
    architectures: list[dict[str, object]],
    solutions: str,
    evaluations: EvaluationStore,
) -> None:
    """Extract the model, and evaluate the architectures over all its TMP widths and microbatches."""
    asked = Problem.parse(problem, "study")
    subject = asked.extract_subject(parse_model(model | {"name": name}, name), widths)
    chips = [Architecture.parse(chip, "architectures") for chip in architectures]
    named = describe_named(chips, asked.technology.area_um2, "named")
    found = read_plans(reading, subject, named, asked.terms(solutions, evaluations))
    tables.Readings.save(found, out)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.output[0],
            reading=snakemake.wildcards.reading,
            name=snakemake.wildcards.model,
            model=snakemake.params.model,
            widths=snakemake.params.widths,
            problem=snakemake.params.problem,
            architectures=snakemake.params.architectures,
            solutions=snakemake.params.solutions,
            evaluations=EvaluationStore(Path(snakemake.params.evaluations), snakemake.params.code),
        )
