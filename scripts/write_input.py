"""Write a model of the study, on one of its accelerators, as input for Piper's planner."""

from phaze import tables
from phaze.base.errors import PhazeError
from phaze.base.job import logged
from phaze.formulas.phaze.point import Conditions
from phaze.formulas.piper.instance import write_instance
from phaze.formulas.piper.study import cluster_of, models_of
from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.spec.architecture import EnergyFigures
from phaze.spec.counts import TokenFlops
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
    flops_per_token: dict[str, object],
    energy: dict[str, object],
) -> None:
    """Read layers and solves, and write the layers with their configurations as the input file."""
    given = OwnInput.parse(own, "own")
    conditions = Conditions(
        Scenario.parse(scenario, "scenario"),
        Training.parse(training, "training"),
        EnergyFigures.parse(energy, "energy"),
        sequence=sequence,
        flops_per_token=TokenFlops.parse(flops_per_token, "flops_per_token"),
    )
    known = tables.Architectures.load(*inputs["architectures"])
    if given.architecture not in known["architecture"].values:
        raise PhazeError(
            f"architecture {given.architecture}: is not among the architectures that were evaluated"
        )
    asked = [PlansAsked(given.architecture, max(conditions.training.hbm_gib), ("piper",))]
    ((_, task),) = read_tasks(
        tables.Layers.load(*inputs["layers"]),
        tables.Graphs.load(*inputs["graph"]),
        tables.Solves.load(*inputs["solves"]),
        known,
        asked,
        conditions,
        None,
    )
    write_instance(output, models_of(task)[given.microbatch], cluster_of(task, given.microbatch))


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
