"""Search by descending area (Algorithm 1 of the paper), scheduling and placing every visited architecture."""

from phaze import tables
from phaze.base.job import logged
from phaze.search.cosearch import Problem
from phaze.search.throughputs import walk_models
from phaze.spec.settings import ScreenSettings
from phaze.workload.workload import TABLES


def main(
    files: dict[str, list[str]],
    architectures: list[str],
    out: str,
    *,
    model: str,
    problem: Problem,
    settings: dict[str, object],
) -> None:
    """Visit architectures by descending area until the throughput falls, and write the visits."""
    visits = walk_models(
        {model: problem.read_subject(files)},
        {model: 1.0},
        tables.Architectures.searched(tables.Architectures.load(*architectures)),
        problem,
        ScreenSettings.parse(settings, "screen"),
        name=model,
    )
    tables.Visits.save(visits, out)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            {table: list(snakemake.input[table]) for table in TABLES} | {"graph": [snakemake.input.graph]},
            list(snakemake.input.architectures),
            snakemake.output[0],
            model=snakemake.wildcards.model,
            problem=Problem.of(dict(snakemake.params)),
            settings=snakemake.params.screen,
        )
