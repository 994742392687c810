"""Fail unless every check of the results holds."""

import pandas as pd

from phaze import tables
from phaze.errors import PhazeError
from phaze.job import logged


def main(*checks: str) -> None:
    """Raise PhazeError with every check that does not hold."""
    found = pd.concat([tables.Checks.load(path) for path in checks])
    failed = found[~found["passed"]]
    if len(failed):
        lines = [f"{row.check}: {row.example}" for row in failed.itertuples()]
        raise PhazeError(
            "\n".join([f"{len(failed)} of {len(found)} checks of the results do not hold:", *lines])
        )


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        main(*snakemake.input)
