"""Find the Pareto front of a model over the whole search space."""

from phaze import tables
from phaze.base.job import logged
from phaze.cost.space import area_limit_um2
from phaze.search.cosearch import Problem
from phaze.search.front import find_front, spaces_of
from phaze.workload.workload import TABLES

COLUMNS = ["architecture", "hbm_gib", "layout", "recompute", "lower_s", "lower_j"]


def main(
    files: dict[str, list[str]],
    screens: list[str],
    architectures: list[str],
    outputs: dict[str, str],
    *,
    problem: Problem,
    area_limits: list[float | dict[str, object]],
    minimum_area_share: float | None,
) -> None:
    """Read the screens of all points and shards, and write the front and all placements evaluated for it."""
    chips = tables.Architectures.searched(tables.Architectures.load(*architectures))
    found = find_front(
        problem.read_subject(files),
        (tables.Screens.load(path, columns=COLUMNS) for path in screens),
        chips,
        problem,
        spaces_of(
            chips, [area_limit_um2(limit, problem.technology) for limit in area_limits], minimum_area_share
        ),
    )
    for table, path in outputs.items():
        tables.TABLES[table].save(getattr(found, table), path)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            {table: list(snakemake.input[table]) for table in TABLES} | {"graph": [snakemake.input.graph]},
            list(snakemake.input.screens),
            list(snakemake.input.architectures),
            dict(snakemake.output.items()),
            problem=Problem.of(dict(snakemake.params)),
            area_limits=snakemake.params.space["area_limits"],
            minimum_area_share=snakemake.params.space["minimum_area_share"],
        )
