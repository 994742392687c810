"""Compare predictions with published training runs."""

from pathlib import Path

from phaze import tables
from phaze.base.job import run_script
from phaze.validate.study import measured_tables


def main(source: str, outputs: dict[str, str], *, sources: list[str]) -> None:
    """Predict the runs of sources in a configuration folder, and write one file per table."""
    predicted = measured_tables(tuple(sources), Path(source).parent)
    for name, path in outputs.items():
        tables.TABLES[name].save(predicted[name], path)


if __name__ == "__main__":
    run_script(main, snakemake)
