"""Simulate the network of tiles alone: ring all-reduce, overlapping tasks, group exchange."""

from phaze import tables
from phaze.base.job import run_script
from phaze.spec.tiled_study import TiledStudy
from phaze.tiles.network_cases import simulate_networks


def main(out: str, *, tiled: TiledStudy) -> None:
    """Simulate the network cases of the requested figures, and write table `tiled_networks`."""
    tables.TiledNetworks.save(simulate_networks(tiled.figures, tiled.exchanges), out)


if __name__ == "__main__":
    run_script(main, snakemake)
