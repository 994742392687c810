"""Simulate a model in a pipeline of tile groups, for every combination of options of a case."""

from phaze import tables
from phaze.base.job import logged
from phaze.spec.model import Model
from phaze.spec.tiled import TiledDevice, TiledSystem
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles.chip import TiledMachine
from phaze.tiles.on_tiles import simulate_point

Plain = dict[str, object]


def main(outputs: dict[str, str], *, case: str, point: Plain, model: Plain, system: Plain) -> None:
    """Simulate all combinations, and write the runs, with jobs and links if the case shows its pipeline."""
    what = TiledPoint.parse(point, case)
    parts = TiledSystem.parse(system["system"], case), TiledDevice.parse(system["device"], case)
    chip = TiledMachine(what.system, *parts).chip
    found = simulate_point(case, what, Model.parse(model, case), chip)
    for name, path in outputs.items():
        tables.TABLES[name].save(found[name], path)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            dict(snakemake.output.items()),
            case=snakemake.wildcards.tiled,
            point=snakemake.params.point,
            model=snakemake.params.model,
            system=snakemake.params.system,
        )
