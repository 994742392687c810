"""Recommend a chip and a plan for a model, over all layouts."""

from pathlib import Path

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.space import area_limit_um2, as_architectures
from phaze.plan.answer.recommended import recommendation_row, recommended, study_request
from phaze.plan.chips import chips_of
from phaze.search.winners import space_of
from phaze.spec.architecture import Technology
from phaze.spec.model import Model
from phaze.spec.system import Scenario, Stack
from phaze.tables.layouts import Recommendations


def main(
    architectures: list[str],
    usual_technology: str,
    out: str,
    *,
    wildcards: dict[str, str],
    model: dict[str, object],
    sequence: int,
    scenario: Scenario,
    hbm_gib: list[float],
    technology: Technology,
    area_limit: float | dict[str, object],
    stack: Stack,
) -> None:
    """Search all layouts on the chips within the area limit; the table is empty if there is no such chip."""
    rows = tables.Architectures.load(*architectures).drop_duplicates("architecture")
    allowed = space_of(rows, area_limit_um2(area_limit, technology))
    chips = chips_of(as_architectures(rows[rows["architecture"].isin(allowed)]), scenario, hbm_gib)
    if not chips:
        Recommendations.save(Recommendations.empty(), out)
        return
    spec, name = Model.parse(model, wildcards["model"]), wildcards["scenario"]
    request = study_request(spec, sequence, scenario, name, chips, stack)
    answer = recommended(request, Path(usual_technology).parent.parent)
    Recommendations.save(recommendation_row(wildcards["model"], name, answer), out)


if __name__ == "__main__":
    run_script(main, snakemake)
