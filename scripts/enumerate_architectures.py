"""Write the architectures of a shard: grid architectures within the area limit, and named ones."""

from phaze import tables
from phaze.base.job import logged
from phaze.base.units import UM2_PER_MM2
from phaze.cost.space import area_um2, describe_named, enumerate_grid, enumerate_smaller
from phaze.spec.architecture import Architecture, Grid, Technology


def main(
    out: str,
    *,
    shard: str,
    grid: dict[str, object] | None,
    named: list[dict[str, object]],
    smaller: list[float],
    area_limit: float | dict[str, object],
    technology: dict[str, object],
) -> None:
    """Write the architectures of a shard.

    An area limit is in mm2, or an architecture, whose area is the limit. With `smaller` limits, the members
    are those that only the smaller limits add.
    """
    figures = Technology.parse(technology, "technology").area_um2
    asked = [Architecture.parse(a, "architecture") for a in named]
    if isinstance(area_limit, dict):
        limit_um2 = area_um2(Architecture.parse(area_limit, "area_limit"), figures)
    else:
        limit_um2 = area_limit * UM2_PER_MM2
    if smaller:
        limits = [limit * UM2_PER_MM2 for limit in smaller]
        frame = enumerate_smaller(Grid.parse(grid, "grid"), figures, limit_um2, limits, shard)
    elif grid is not None:
        frame = enumerate_grid(Grid.parse(grid, "grid"), figures, limit_um2, shard, asked)
    else:
        frame = describe_named(asked, figures, shard)
    tables.Architectures.save(frame, out)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.output[0],
            shard=snakemake.wildcards.shard,
            grid=snakemake.params.members.get("grid"),
            named=snakemake.params.members.get("named", []),
            smaller=snakemake.params.members.get("smaller", []),
            area_limit=snakemake.params.area_limit,
            technology=snakemake.params.technology,
        )
