"""Compute our values for PALM's published tables, for the comparison in a study's report."""

from pathlib import Path

from phaze.base.job import run_script
from phaze.papers.palm.besides import besides
from phaze.papers.publications import PublishedTiled
from phaze.spec.files import FOLDER
from phaze.spec.tiled_study import PublishedTable
from phaze.tables import TiledBesides


def main(
    out: str, paths: list[str], *, tables: list[PublishedTable], published: dict[str, object] | None
) -> None:
    """Compute our values for the requested tables of PALM, and write table `tiled_besides`."""
    folder = Path(paths[0]).parents[1] if paths else FOLDER
    rows = None if published is None else PublishedTiled.parse(published, "published")
    TiledBesides.save(besides(tuple(tables), rows, folder), out)


if __name__ == "__main__":
    run_script(main, snakemake)
