"""Schedule and place a model on every candidate for the common architecture."""

from phaze import tables
from phaze.base.job import run_script
from phaze.search.cosearch import Problem, look_up_architectures


def main(files: dict[str, list[str]], outputs: dict[str, str], *, problem: Problem) -> None:
    """Evaluate the model on all candidates, with all its TMP widths and microbatches."""
    evaluated = look_up_architectures(
        problem.read_subject(files),
        tables.Architectures.load(*files["architectures"]),
        problem,
        list(outputs),
    )
    for table, path in outputs.items():
        tables.TABLES[table].save(evaluated[table], path)


if __name__ == "__main__":
    run_script(main, snakemake)
