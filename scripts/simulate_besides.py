"""Compute our values for PALM's published tables, for the comparison in a study's report."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.papers.palm.besides import besides
from phaze.papers.publications import PublishedTiled
from phaze.spec.files import FOLDER
from phaze.spec.tiled_study import PublishedTable


def main(
    output: str, folder: Path, *, wanted: tuple[PublishedTable, ...], published: dict[str, object] | None
) -> None:
    """Compute our values for the requested tables of PALM, and write table `tiled_besides`."""
    rows = None if published is None else PublishedTiled.parse(published, "published")
    tables.TiledBesides.save(besides(wanted, rows, folder), output)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.output[0],
            Path(snakemake.input[0]).parents[1] if snakemake.input else FOLDER,
            wanted=tuple(snakemake.params.tables),
            published=snakemake.params.published,
        )
