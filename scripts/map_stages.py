"""Map stages to a topology with every method, for every seed of the topology."""

from pathlib import Path

from phaze import tables
from phaze.base.job import run_script
from phaze.base.units import GIB
from phaze.map.ensemble import MapSettings
from phaze.map.search import SearchLimits
from phaze.map.study import map_point
from phaze.spec.documents import read_as
from phaze.spec.map_study import MapTopology, Search, StagesPoint
from phaze.spec.stages import StoredStages


def main(
    source: str,
    outputs: dict[str, str],
    *,
    point: StagesPoint,
    topology: MapTopology,
    wildcards: dict[str, str],
    search: Search,
    settings: dict[str, float],
) -> None:
    """Read the stages, map them with every method, and write results and devices."""
    mapped = map_point(
        read_as(StoredStages, Path(source)),
        point,
        (wildcards["topology"], topology),
        MapSettings(
            instantiation="authors" if search == "authors" else "ensemble",
            seed=int(settings["seed"]),
            heuristics=False,
            limits=SearchLimits(tries=int(settings["tries"])),
            steps=int(settings["steps"]),
            memory_bytes_per_s=settings["memory_gib_per_s"] * GIB,
        ),
    )
    for table, frame in mapped.items():
        tables.TABLES[table].save(frame, outputs[table])


if __name__ == "__main__":
    run_script(main, snakemake)
