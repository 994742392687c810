"""Write the architectures of a shard: grid architectures within the area limit, and named ones."""

from phaze import tables
from phaze.base.job import run_script
from phaze.base.units import UM2_PER_MM2
from phaze.cost.space import area_um2, describe_named, enumerate_grid, enumerate_smaller
from phaze.spec.architecture import Architecture, Grid, Technology


def main(
    out: str,
    *,
    shard: str,
    members: dict[str, list[object]],
    area_limit: float | dict[str, object],
    technology: Technology,
) -> None:
    """Write the architectures of a shard.

    An area limit is in mm2, or an architecture, whose area is the limit. With `smaller` limits, the members
    are those that only the smaller limits add.
    """
    figures, grid = technology.area_um2, members.get("grid")
    named = [Architecture.parse(chip, "architecture") for chip in members.get("named", [])]
    if isinstance(area_limit, dict):
        limit_um2 = area_um2(Architecture.parse(area_limit, "area_limit"), figures)
    else:
        limit_um2 = area_limit * UM2_PER_MM2
    if smaller := members.get("smaller"):
        limits = [float(str(limit)) * UM2_PER_MM2 for limit in smaller]
        frame = enumerate_smaller(Grid.parse(grid, "grid"), figures, limit_um2, limits, shard)
    elif grid is not None:
        frame = enumerate_grid(Grid.parse(grid, "grid"), figures, limit_um2, shard, named)
    else:
        frame = describe_named(named, figures, shard)
    tables.Architectures.save(frame, out)


if __name__ == "__main__":
    run_script(main, snakemake)
