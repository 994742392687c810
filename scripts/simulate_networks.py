"""Simulate the network of tiles alone: rings, tasks that overlap, groups that talk."""

from phaze import tables
from phaze.job import logged
from phaze.spec.tiled_study import Figure
from phaze.tiled.networks import simulate_networks


def main(output: str, *, figures: tuple[Figure, ...]) -> None:
    """Simulate the figures, write table tiled_networks."""
    tables.TiledNetworks.save(simulate_networks(figures), output)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        tables.TiledNetworks.save(simulate_networks(tuple(snakemake.params.figures)), snakemake.output[0])
