"""Measure how far mappings found by local search alone are from the best known mappings."""

from pathlib import Path

import pandas as pd

from phaze import tables
from phaze.base.job import logged
from phaze.map.ensemble import Chains
from phaze.map.search import SearchLimits
from phaze.map.study import gap_rows
from phaze.spec.documents import read_as
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.stages import StoredStages


def main(
    source: str,
    output: str,
    *,
    point: dict[str, object],
    topology: tuple[str, dict[str, object]],
    settings: dict[str, int],
) -> None:
    """Read the stages, and write the optimality gaps of the local search."""
    name, sizes = topology
    gaps = gap_rows(
        read_as(StoredStages, Path(source)),
        StagesPoint.parse(point, source),
        (name, MapTopology.parse(sizes, f"maps.topologies.{name}")),
        Chains(settings["seed"], settings["gap_steps"]),
        SearchLimits(tries=settings["tries"]),
    )
    tables.SearchGaps.save(pd.DataFrame(gaps), output)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.input[0],
            snakemake.output[0],
            point=snakemake.params.point,
            topology=(snakemake.wildcards.topology, snakemake.params.topology),
            settings=snakemake.params.settings,
        )
