"""Find the best placement of a model on every kept architecture of a shard."""

from phaze import tables
from phaze.base.job import run_script
from phaze.formulas.phaze.model import place_model
from phaze.formulas.phaze.point import Conditions
from phaze.spec.architecture import EnergyFigures
from phaze.spec.counts import TokenFlops
from phaze.spec.settings import Training, Triple
from phaze.spec.system import Scenario

CHIPS = [
    "architecture", "named", "num_tc", "pe_x", "pe_y", "area_um2", "clock_hz", "hbm_gib",
    "hbm_bandwidth_bytes_per_s",
]  # fmt: skip


def main(
    files: dict[str, list[str]],
    outputs: dict[str, str],
    *,
    scenario: Scenario,
    training: Training,
    sequence: int,
    flops_per_token: TokenFlops,
    energy: EnergyFigures,
    expert: dict[str, int] | None,
) -> None:
    """Read layers and solves, place the model, and write the placements with their stages."""
    conditions = Conditions(scenario, training, energy, sequence=sequence, flops_per_token=flops_per_token)
    chips = tables.Architectures.load(*files["architectures"], columns=CHIPS)
    placements, stages = place_model(
        tables.Layers.load(*files["layers"]),
        tables.Graphs.load(*files["graph"]),
        tables.Solves.load(*files["solves"]),
        chips,
        tables.Screens.kept(files["screens"], chips),
        conditions,
        Triple.parse(expert, "expert").layout if expert else None,
    )
    tables.Placements.save(placements, outputs["placements"])
    tables.Stages.save(stages, outputs["stages"])


if __name__ == "__main__":
    run_script(main, snakemake)
