"""Schedule and place a model on every candidate for the common architecture."""

from phaze import tables
from phaze.base.job import logged
from phaze.search.cosearch import Problem, look_up_architectures
from phaze.workload.workload import TABLES


def main(
    files: dict[str, list[str]],
    architectures: str,
    outputs: dict[str, str],
    *,
    problem: Problem,
) -> None:
    """Evaluate the model on all candidates, with all its TMP widths and microbatches."""
    found = look_up_architectures(
        problem.read_subject(files),
        tables.Architectures.load(architectures),
        problem,
        list(outputs),
    )
    for table, path in outputs.items():
        tables.TABLES[table].save(found[table], path)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            {table: list(snakemake.input[table]) for table in TABLES} | {"graph": [snakemake.input.graph]},
            snakemake.input.architectures,
            dict(snakemake.output.items()),
            problem=Problem.of(dict(snakemake.params)),
        )
