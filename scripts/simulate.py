"""Price the best placements of a model."""

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2
from phaze.formulas.priced import PlacementPricing, price_placements
from phaze.search.winners import Outcome, compared_placements
from phaze.spec.architecture import Technology
from phaze.spec.models import parse_model
from phaze.spec.settings import Training
from phaze.spec.system import Scenario, Stack


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    wildcards: dict[str, str],
    model: dict[str, object],
    sequence: int,
    scenario: Scenario,
    training: Training,
    technology: Technology,
    area_limit: float | dict[str, object],
    stack: Stack,
    baseline: str | None,
    tolerance: float,
) -> None:
    """Choose the placements to price, and write their prices."""
    commons = tables.Commons.load(*files["commons"]).query("chosen")[["architecture", "hbm_gib"]]
    architectures = tables.Architectures.load(*files["architectures"])
    cluster = Outcome(
        scenario,
        area_limit_um2(area_limit, technology),
        architectures,
        tables.Placements.load(*files["placements"]),
        tables.Placements.load(*files["common_placements"]),
        next(commons.itertuples(index=False, name=None), None),
    )
    placements = compared_placements(cluster, baseline, tolerance)
    chosen = {"architecture": tuple(placements["architecture"].unique())}
    pricing = PlacementPricing.of(
        parse_model(model, wildcards["model"]), sequence, scenario, training, stack, technology
    )
    # The stages of the common architecture are also in the files of the shards if it was placed there.
    stages = [tables.Stages.load(*files[part], where=chosen) for part in ("stages", "common_stages")]
    priced = price_placements(pricing, placements, stages, architectures)
    tables.Simulations.save(priced, out)


if __name__ == "__main__":
    run_script(main, snakemake)
