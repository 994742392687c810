"""Add the common architecture's certificate to those of the models."""

import pandas as pd

from phaze import tables
from phaze.base.job import run_script
from phaze.certify.common import Aim, certify_common
from phaze.certify.space import PLACED
from phaze.cost.space import area_limit_um2
from phaze.spec.architecture import Technology
from phaze.spec.settings import ScreenSettings


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    weights: dict[str, float],
    global_batch: int,
    area_limit: float | dict[str, object],
    technology: Technology,
    screen: ScreenSettings,
) -> None:
    """Read the results of each model's jobs, and write the certificates of the models and the common one."""
    placements = tables.Placements.load(*files["placements"], columns=["model", "samples_per_s"])
    best = placements.groupby("model")["samples_per_s"].max()
    common = certify_common(
        tables.Ranges.load(*files["ranges"]),
        tables.Commons.load(*files["commons"]),
        tables.Placements.load(*files["common"], columns=PLACED),
        tables.Solves.load(*files["solves"], columns=["status", "gap"]),
        tables.Architectures.load(*files["architectures"]),
        Aim(
            weights,
            screen.common,
            {str(model): float(value) for model, value in best.items()},
            global_batch,
            area_limit_um2(area_limit, technology),
        ),
    )
    models = tables.Certificates.load(*files["certificates"])
    tables.Certificates.save(pd.concat([models, common], ignore_index=True), out)


if __name__ == "__main__":
    run_script(main, snakemake)
