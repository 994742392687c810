"""Partition the operators of a model into stages."""

from pathlib import Path

from phaze.base.job import run_script
from phaze.base.units import GIB
from phaze.partition.study import cut_point
from phaze.spec.documents import read_as, text_of, write_checked
from phaze.spec.map_study import StagesPoint
from phaze.spec.operators import StoredOperators


def main(source: str, out: str, *, point: StagesPoint, bandwidth: float) -> None:
    """Read a graph of operators, partition it, and write the stages."""
    graph = read_as(StoredOperators, Path(source))
    stages = cut_point(graph, point, bandwidth * GIB)
    write_checked(text_of(stages), Path(out))


if __name__ == "__main__":
    run_script(main, snakemake)
