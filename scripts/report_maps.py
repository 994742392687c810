"""Write the page of the mappings: speed-ups beside the published ones, pictures, checks."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.report.maps.build import build_map_report
from phaze.report.maps.inputs import MapInputs
from phaze.report.report import write_report
from phaze.spec.map_study import Maps
from phaze.spec.published_maps import PublishedMaps


def main(
    folder: Path,
    files: dict[str, list[str]],
    *,
    maps: dict[str, object],
    published: dict[str, object] | None,
) -> None:
    """Read the tables of all cases, write the page into `folder`."""
    loaded = {name: tables.TABLES[name].load(*paths) for name, paths in files.items() if paths}
    inputs = MapInputs(
        maps=Maps.parse(maps, "maps"),
        mappings=loaded["mappings"],
        devices=loaded["mapped_devices"],
        durations=loaded["map_durations"],
        gaps=loaded.get("search_gaps"),
        gap_durations=loaded.get("gap_durations"),
        partition_durations=loaded.get("partition_durations"),
        published=None if published is None else PublishedMaps.parse(published, "published"),
    )
    write_report(build_map_report(inputs), folder)


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        main(
            Path(snakemake.output.page).parent,
            {name: list(paths) for name, paths in snakemake.input.items()},
            maps=snakemake.params.maps,
            published=snakemake.params.published,
        )
