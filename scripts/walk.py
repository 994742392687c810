"""Search by descending area (Algorithm 1 of the paper), scheduling and placing every visited architecture."""

from phaze import tables
from phaze.base.job import run_script
from phaze.search.cosearch import Problem
from phaze.search.throughputs import walk_models
from phaze.spec.settings import ScreenSettings


def main(
    files: dict[str, list[str]], out: str, *, model: str, problem: Problem, screen: ScreenSettings
) -> None:
    """Visit architectures by descending area until the throughput falls, and write the visits."""
    visits = walk_models(
        {model: problem.read_subject(files)},
        {model: 1.0},
        tables.Architectures.searched(tables.Architectures.load(*files["architectures"])),
        problem,
        screen,
        name=model,
    )
    tables.Visits.save(visits, out)


if __name__ == "__main__":
    run_script(main, snakemake)
