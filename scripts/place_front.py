"""Find the Pareto front of a model over the whole search space."""

from typing import TypedDict

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2
from phaze.search.cosearch import Problem
from phaze.search.front import find_front, spaces_of

COLUMNS = ["architecture", "hbm_gib", "layout", "recompute", "lower_s", "lower_j"]


class FrontSpace(TypedDict):
    """Area limits of the fronts, and the minimum area as a share of the limit."""

    area_limits: list[float | dict[str, object]]
    minimum_area_share: float | None


def main(
    files: dict[str, list[str]], outputs: dict[str, str], *, problem: Problem, space: FrontSpace
) -> None:
    """Read the screens of all points and shards, and write the front and all placements evaluated for it."""
    limits_um2 = [area_limit_um2(limit, problem.technology) for limit in space["area_limits"]]
    chips = tables.Architectures.searched(tables.Architectures.load(*files["architectures"]))
    front = find_front(
        problem.read_subject(files),
        (tables.Screens.load(path, columns=COLUMNS) for path in files["screens"]),
        chips,
        problem,
        spaces_of(chips, limits_um2, space["minimum_area_share"]),
    )
    for table, path in outputs.items():
        tables.TABLES[table].save(getattr(front, table), path)


if __name__ == "__main__":
    run_script(main, snakemake)
