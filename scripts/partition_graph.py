"""Partition the operators of a model into stages."""

from pathlib import Path

from phaze.base.job import logged
from phaze.base.units import GIB
from phaze.partition.study import cut_point
from phaze.spec.documents import read_as, text_of, write_checked
from phaze.spec.map_study import StagesPoint
from phaze.spec.operators import StoredOperators


def main(source: str, out: str, *, point: dict[str, object], bandwidth_gib_per_s: float) -> None:
    """Read a graph of operators, partition it, and write the stages."""
    graph = read_as(StoredOperators, Path(source))
    found = cut_point(graph, StagesPoint.parse(point, source), bandwidth_gib_per_s * GIB)
    write_checked(text_of(found), Path(out))


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.input[0],
            snakemake.output[0],
            point=snakemake.params.point,
            bandwidth_gib_per_s=snakemake.params.bandwidth,
        )
