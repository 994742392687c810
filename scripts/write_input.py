"""Write a model of ours on an accelerator of ours as an input of the planner."""

from phaze import tables
from phaze.base.job import logged
from phaze.plan.phaze.point import Conditions
from phaze.plan.piper.instance import write_instance
from phaze.plan.piper.own import own_cluster, own_layers
from phaze.spec.architecture import EnergyFigures
from phaze.spec.planning import OwnInput
from phaze.spec.settings import Training
from phaze.spec.system import Scenario


def main(
    inputs: dict[str, list[str]],
    output: str,
    *,
    own: dict[str, object],
    scenario: dict[str, object],
    training: dict[str, object],
    sequence: int,
    flops_per_token: float,
    energy: dict[str, object],
) -> None:
    """Read layers and solves, write the layers with their configurations."""
    given = OwnInput.parse(own, "own")
    conditions = Conditions(
        Scenario.parse(scenario, "scenario"),
        Training.parse(training, "training"),
        EnergyFigures.parse(energy, "energy"),
        sequence=sequence,
        flops_per_token=flops_per_token,
    )
    layers = own_layers(
        tables.Layers.load(*inputs["layers"]),
        tables.Graphs.load(*inputs["graph"]),
        tables.Solves.load(*inputs["solves"]),
        tables.Architectures.load(*inputs["architectures"]),
        given.architecture,
        conditions,
    )
    write_instance(output, layers, own_cluster(conditions, given.microbatch))


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            {table: list(snakemake.input[table]) for table in ("layers", "solves")}
            | {table: [snakemake.input[table]] for table in ("graph", "architectures")},
            snakemake.output[0],
            own=snakemake.params.own,
            scenario=snakemake.params.scenario,
            training=snakemake.params.training,
            sequence=snakemake.params.sequence,
            flops_per_token=snakemake.params.flops_per_token,
            energy=snakemake.params.energy,
        )
