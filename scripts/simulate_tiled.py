"""Simulate a model in a pipeline of tile groups, for every combination of options of a case."""

from phaze import tables
from phaze.base.job import run_script
from phaze.spec.models import parse_model
from phaze.spec.tiled import TiledDevice, TiledSystem
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles.chip import TiledMachine
from phaze.tiles.on_tiles import simulate_point


def main(
    outputs: dict[str, str],
    *,
    tiled: str,
    point: TiledPoint,
    model: dict[str, object],
    system: dict[str, object],
) -> None:
    """Simulate all combinations, and write the runs, with jobs and links if the case shows its pipeline."""
    parts = TiledSystem.parse(system["system"], tiled), TiledDevice.parse(system["device"], tiled)
    chip = TiledMachine(point.system, *parts).chip
    frames = simulate_point(tiled, point, parse_model(model, tiled), chip)
    for name, path in outputs.items():
        tables.TABLES[name].save(frames[name], path)


if __name__ == "__main__":
    run_script(main, snakemake)
