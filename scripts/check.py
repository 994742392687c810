"""Fail unless all checks of the results pass."""

import pandas as pd

from phaze import tables
from phaze.base.errors import PhazeError
from phaze.base.job import run_script
from phaze.pages.verdicts import failures


def main(paths: list[str]) -> None:
    """Raise PhazeError with all failed checks."""
    verdicts = pd.concat([tables.Checks.load(path) for path in paths])
    failed = failures(verdicts)
    if failed:
        head = f"{len(failed)} of {len(verdicts)} checks of the results do not hold:"
        raise PhazeError("\n".join([head, *failed]))


if __name__ == "__main__":
    run_script(main, snakemake, logs_params=False)
