"""Compare predictions with published training runs."""

from pathlib import Path

from phaze import tables
from phaze.base.job import logged
from phaze.validate.study import measured_tables


def main(outputs: dict[str, str], folder: Path, *, sources: tuple[str, ...]) -> None:
    """Predict the runs of sources in a configuration folder, and write one file per table."""
    found = measured_tables(sources, folder)
    for name, path in outputs.items():
        tables.TABLES[name].save(found[name], path)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            dict(snakemake.output.items()),
            Path(snakemake.input[0]).parent,
            sources=tuple(snakemake.params.sources),
        )
