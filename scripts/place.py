"""Find the best placement of a model on every kept architecture of a shard."""

from phaze import tables
from phaze.base.job import logged
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
    inputs: dict[str, str],
    outputs: dict[str, str],
    *,
    scenario: dict[str, object],
    training: dict[str, object],
    sequence: int,
    flops_per_token: dict[str, object],
    energy: dict[str, object],
    expert: dict[str, int] | None,
) -> None:
    """Read layers and solves, place the model, and write the placements with their stages."""
    conditions = Conditions(
        Scenario.parse(scenario, "scenario"),
        Training.parse(training, "training"),
        EnergyFigures.parse(energy, "energy"),
        sequence=sequence,
        flops_per_token=TokenFlops.parse(flops_per_token, "flops_per_token"),
    )
    placements, stages = place_model(
        tables.Layers.load(inputs["layers"]),
        tables.Graphs.load(inputs["graph"]),
        tables.Solves.load(inputs["solves"]),
        tables.Architectures.load(inputs["architectures"], columns=CHIPS),
        tables.Screens.load(inputs["screens"], columns=["architecture", "kept"]),
        conditions,
        Triple.parse(expert, "expert").layout if expert else None,
    )
    tables.Placements.save(placements, outputs["placements"])
    tables.Stages.save(stages, outputs["stages"])


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            dict(snakemake.input.items()),
            dict(snakemake.output.items()),
            scenario=snakemake.params.scenario,
            training=snakemake.params.training,
            sequence=snakemake.params.sequence,
            flops_per_token=snakemake.params.flops_per_token,
            energy=snakemake.params.energy,
            expert=snakemake.params.expert,
        )
