"""Write the page of tiled accelerators: figures, tables, claims of the publication, and checks."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.report.report import write_report
from phaze.report.tiled.build import build_tiled_report
from phaze.report.tiled.inputs import TiledInputs
from phaze.spec.published_tiled import PublishedTiled
from phaze.spec.tiled_study import TiledStudy


def main(
    folder: Path,
    files: dict[str, list[str]],
    *,
    tiled: dict[str, object],
    flops: float,
    published: dict[str, object] | None,
) -> None:
    """Read the tables of all cases, write the page into `folder`."""
    loaded = {name: tables.TABLES[name].load(*paths) for name, paths in files.items()}
    inputs = TiledInputs(
        tiled=TiledStudy.parse(tiled, "tiled"),
        runs=loaded["tiled_runs"],
        jobs=loaded["tiled_jobs"],
        links=loaded["tiled_links"],
        networks=loaded["tiled_networks"],
        besides=loaded["tiled_besides"],
        flops=flops,
        published=None if published is None else PublishedTiled.parse(published, "published"),
    )
    write_report(build_tiled_report(inputs), folder)


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        main(
            Path(snakemake.output.page).parent,
            {name: list(paths) for name, paths in snakemake.input.items()},
            tiled=snakemake.params.tiled,
            flops=snakemake.params.flops,
            published=snakemake.params.published,
        )
