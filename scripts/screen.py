"""Bound every architecture of a shard, and keep those that could be among the best."""

from phaze import tables
from phaze.base.job import run_script
from phaze.search.stage import screen_architectures
from phaze.spec.architecture import EnergyFigures
from phaze.spec.settings import ScreenSettings, Training
from phaze.spec.system import Scenario

CHIPS = [
    "architecture", "named", "hbm_gib", "area_um2", "num_tc", "num_vc",
    "tensor_design", "vector_design", "fused_design",
]  # fmt: skip


def main(
    inputs: dict[str, str],
    visits: list[str],
    out: str,
    *,
    scenario: Scenario,
    training: Training,
    screen: ScreenSettings,
    energy: EnergyFigures,
    overlap_communication: bool,
) -> None:
    """Read operators, layers, estimates and architectures, and write the screen."""
    frame = screen_architectures(
        tables.Operators.load(inputs["operators"]),
        tables.Edges.load(inputs["edges"]),
        tables.Layers.load(inputs["layers"]),
        tables.Graphs.load(inputs["graph"]),
        tables.Estimates.load(inputs["estimates"]),
        tables.Architectures.load(inputs["architectures"], columns=CHIPS),
        scenario,
        training,
        screen,
        energy,
        overlap_communication=overlap_communication,
        visits=tables.Visits.load(*visits) if visits else None,
    )
    tables.Screens.save(frame, out, checked=True)


if __name__ == "__main__":
    run_script(main, snakemake)
