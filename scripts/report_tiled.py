"""Write the page of tiled accelerators: figures, tables, claims of the publication, and checks."""

import logging
from pathlib import Path

from phaze import tables
from phaze.job import logged
from phaze.report.tiled import TiledInputs, build_tiled_report, write_tiled_report
from phaze.spec.published_tiled import PublishedTiled
from phaze.spec.tiled_study import TiledStudy

log = logging.getLogger(__name__)


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
    report = build_tiled_report(inputs)
    write_tiled_report(report, folder)
    for failure in report.failures:
        log.warning("does not hold: %s", failure)


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        main(
            Path(snakemake.output.page).parent,
            {
                **{name: list(snakemake.input[name]) for name in ("tiled_runs", "tiled_jobs", "tiled_links")},
                **{name: [snakemake.input[name]] for name in ("tiled_networks", "tiled_besides")},
            },
            tiled=snakemake.params.tiled,
            flops=snakemake.params.flops,
            published=snakemake.params.published,
        )
