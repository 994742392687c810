"""Fail unless all checks of the results pass."""

import pandas as pd

from phaze import tables
from phaze.base.errors import PhazeError
from phaze.base.job import logged
from phaze.pages.verdicts import failures


def main(*checks: str) -> None:
    """Raise PhazeError with all failed checks."""
    verdicts = pd.concat([tables.Checks.load(path) for path in checks])
    failed = failures(verdicts)
    if failed:
        head = f"{len(failed)} of {len(verdicts)} checks of the results do not hold:"
        raise PhazeError("\n".join([head, *failed]))


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        main(*snakemake.input)
