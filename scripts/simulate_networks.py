"""Simulate the network of tiles alone: ring all-reduce, overlapping tasks, group exchange."""

from phaze import tables
from phaze.base.job import logged
from phaze.spec.tiled_study import TiledStudy
from phaze.tiles.network_cases import simulate_networks


def main(output: str, *, tiled: dict[str, object]) -> None:
    """Simulate the network cases of the requested figures, and write table `tiled_networks`."""
    study = TiledStudy.parse(tiled, "tiled")
    tables.TiledNetworks.save(simulate_networks(study.figures, study.exchanges), output)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(snakemake.output[0], tiled=snakemake.params.tiled)
