"""Measure how far mappings found by local search alone are from the best known mappings."""

from pathlib import Path

import pandas as pd

from phaze import tables
from phaze.base.job import run_script
from phaze.map.ensemble import Chains
from phaze.map.search import SearchLimits
from phaze.map.study import gap_rows
from phaze.spec.documents import read_as
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.stages import StoredStages


def main(
    source: str,
    out: str,
    *,
    point: StagesPoint,
    topology: MapTopology,
    wildcards: dict[str, str],
    settings: dict[str, int],
) -> None:
    """Read the stages, and write the optimality gaps of the local search."""
    gaps = gap_rows(
        read_as(StoredStages, Path(source)),
        point,
        (wildcards["topology"], topology),
        Chains(settings["seed"], settings["gap_steps"]),
        SearchLimits(tries=settings["tries"]),
    )
    tables.SearchGaps.save(pd.DataFrame(gaps), out)


if __name__ == "__main__":
    run_script(main, snakemake)
