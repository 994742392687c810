"""Write the architectures of a shard: grid architectures within the area limit, and named ones."""

from phaze import tables
from phaze.base.job import run_script
from phaze.base.units import UM2_PER_MM2
from phaze.cost.space import area_um2, describe_named, enumerate_grid, enumerate_smaller
from phaze.spec.architecture import Architecture, AreaFigures, Grid


def main(
    out: str,
    *,
    shard: str,
    members: dict[str, dict[str, object]],
    area_limit: float | dict[str, object] | None,
    area_figures: AreaFigures,
) -> None:
    """Write the architectures of a shard.

    An area limit is in mm2, or an architecture, whose area is the limit; none applies without a grid. With
    `smaller` limits, the members are those that only the smaller limits add.
    """
    named = [Architecture.parse(chip, "architecture") for chip in members.get("named", {}).values()]
    if area_limit is None:
        tables.Architectures.save(describe_named(named, area_figures, shard), out)
        return
    if isinstance(area_limit, dict):
        limit_um2 = area_um2(Architecture.parse(area_limit, "area_limit"), area_figures)
    else:
        limit_um2 = area_limit * UM2_PER_MM2
    grid = Grid.parse(members["grid"], "grid")
    if smaller := members.get("smaller"):
        limits = [float(str(limit)) * UM2_PER_MM2 for limit in smaller]
        frame = enumerate_smaller(grid, area_figures, limit_um2, limits, shard)
    else:
        frame = enumerate_grid(grid, area_figures, limit_um2, shard, named)
    tables.Architectures.save(frame, out)


if __name__ == "__main__":
    run_script(main, snakemake)
