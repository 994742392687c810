"""Audit a certificate: solve the best point and some excluded points again with independent code."""

from itertools import cycle

import pandas as pd

from phaze import tables
from phaze.base.job import run_script
from phaze.base.store import Store
from phaze.certify.draw import COLUMNS, EXCLUDED, draw_points, share_out
from phaze.certify.space import PLACED, names_of_space, read_shards
from phaze.certify.stage import best_row
from phaze.certify.verification import AuditConditions, audit_slice, find_slices
from phaze.cost.space import area_limit_um2
from phaze.spec.architecture import Technology
from phaze.spec.settings import CertifySettings, ScheduleSettings, Training
from phaze.spec.system import Scenario


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    model: str,
    scenario: Scenario,
    training: Training,
    schedule: ScheduleSettings,
    certify: CertifySettings,
    area_limit: float | dict[str, object],
    technology: Technology,
    store: Store,
) -> None:
    """Draw points from a model's screens, solve them again independently, and write table `audits`."""
    certificates = tables.Certificates.load(*files["certificates"]).set_index("model")
    of_models = certificates.drop(index=tables.COMMON)
    excluded = {str(name): int(number) for name, number in of_models[EXCLUDED].sum(axis=1).items()}
    limit_um2 = area_limit_um2(area_limit, technology)
    points = _draw(files, limit_um2, share_out(excluded, certify.points)[model], certify.seed)
    best = float(of_models["best"].loc[model])
    best_s = scenario.global_batch / best if best > 0 else float("inf")
    conditions = AuditConditions(
        graph=tables.Graphs.load(*files["graph"]),
        scenario=scenario,
        training=training,
        schedule=schedule,
    )
    audited = [
        audit_slice(drawn, stored, conditions, best_s, store) for drawn, stored in find_slices(points, files)
    ]
    tables.Audits.save(pd.concat([tables.Audits.empty(), *audited], ignore_index=True), out)


def _draw(files: dict[str, list[str]], limit_um2: float, points: int, seed: int) -> pd.DataFrame:
    """Randomly drawn points to solve again, from the screens of all TMP widths, microbatches and shards."""
    shards = [tables.Architectures.load(path) for path in files["architectures"]]
    architectures = pd.concat(shards, ignore_index=True)
    names = names_of_space(architectures, limit_um2)
    placed = tables.Placements.load(*files["placements"], columns=PLACED)
    placed = placed[(placed["planner"] == "phaze") & tables.are_among(placed["architecture"], names)]
    screens = (
        (str(shard["shard"].iloc[0]), tables.Screens.load(path, columns=COLUMNS))
        for shard, path in zip(cycle(shards), files["screens"], strict=False)
        if len(shard)
    )
    return draw_points(
        screens, read_shards(architectures, names), best_row(placed, architectures), points, seed
    )


if __name__ == "__main__":
    run_script(main, snakemake)
