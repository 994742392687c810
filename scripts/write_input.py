"""Write a model of the study, on one of its accelerators, as input for Piper's planner."""

from phaze import tables
from phaze.base.errors import PhazeError
from phaze.base.job import run_script
from phaze.base.units import GIB
from phaze.formulas.phaze.point import Conditions
from phaze.formulas.piper.instance import write_instance
from phaze.formulas.piper.layers import FlatCluster
from phaze.formulas.piper.study import study_layers
from phaze.spec.architecture import EnergyFigures
from phaze.spec.counts import TokenFlops
from phaze.spec.planning import OwnInput
from phaze.spec.settings import Training
from phaze.spec.system import Scenario


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    own: OwnInput,
    scenario: Scenario,
    training: Training,
    sequence: int,
    flops_per_token: TokenFlops,
    energy: EnergyFigures,
) -> None:
    """Read layers and solves, and write the layers with their configurations as the input file."""
    conditions = Conditions(scenario, training, energy, sequence=sequence, flops_per_token=flops_per_token)
    chips = tables.Architectures.load(*files["architectures"])
    if own.architecture not in chips["architecture"].values:
        raise PhazeError(
            f"architecture {own.architecture}: is not among the architectures that were evaluated"
        )
    layers = study_layers(
        tables.Layers.load(*files["layers"]),
        tables.Graphs.load(*files["graph"]),
        tables.Solves.load(*files["solves"]),
        chips[chips["architecture"] == own.architecture],
        conditions,
    )
    cluster = FlatCluster(
        devices=scenario.devices,
        memory_bytes=max(training.hbm_gib) * GIB,
        bandwidth_bytes_per_s=scenario.network_bandwidth_bytes_per_s,
        microbatches=scenario.global_batch // own.microbatch,
    )
    write_instance(out, layers, cluster)


if __name__ == "__main__":
    run_script(main, snakemake)
