"""Find the best chip of a model over all designs and layouts."""

from pathlib import Path

from phaze.base.job import run_script
from phaze.plan.answer.chip_study import searched
from phaze.spec.chip_study import ChipPoint
from phaze.spec.documents import write_document
from phaze.tables.chips import ChipBounds


def main(
    usual_technology: str,
    outputs: dict[str, str],
    *,
    wildcards: dict[str, str],
    point: ChipPoint,
    model: dict[str, object],
) -> None:
    """Search all chips of a point, and write the best plan and the bounds of all chips."""
    plan, bounds = searched(point, wildcards["search"], model, Path(usual_technology).parent.parent)
    ChipBounds.save(bounds, outputs["bounds"])
    write_document(plan, Path(outputs["plan"]))


if __name__ == "__main__":
    run_script(main, snakemake)
