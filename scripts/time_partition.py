"""Measure how long the steps of the paper's partition take."""

from pathlib import Path

import pandas as pd

from phaze import tables
from phaze.base.job import logged
from phaze.base.units import GIB
from phaze.partition.study import time_phases
from phaze.spec.documents import read_as
from phaze.spec.map_study import StagesPoint
from phaze.spec.operators import StoredOperators


def main(source: str, out: str, *, point: dict[str, object], bandwidth_gib_per_s: float) -> None:
    """Read the operators, write the times."""
    of = StagesPoint.parse(point, source)
    seconds = time_phases(read_as(StoredOperators, Path(source)), of, bandwidth_gib_per_s * GIB)
    rows = [{**of.model_dump(), "phase": phase, "seconds": value} for phase, value in seconds.items()]
    tables.PartitionDurations.save(pd.DataFrame(rows), out)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.input[0],
            snakemake.output[0],
            point=snakemake.params.point,
            bandwidth_gib_per_s=snakemake.params.bandwidth,
        )
