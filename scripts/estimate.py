"""Estimate every operator of a model on every core design of a shard."""

from math import inf, isfinite, nan

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.mapper.loads import Hardware
from phaze.cost.network.network import Flat
from phaze.cost.operators import estimate_operators
from phaze.cost.space import read_architectures
from phaze.spec.architecture import Technology
from phaze.spec.settings import EstimateSettings

CHIPS = [
    "num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "l2_tc_bytes", "l2_vc_bytes", "glb_bytes",
    "glb_words_per_cycle", "clock_hz", "hbm_bandwidth_bytes_per_s",
    "tensor_design", "vector_design", "fused_design",
]  # fmt: skip


def main(
    files: dict[str, list[str]],
    out: str,
    *,
    chip: dict[str, object] | None,
    hardware: dict[str, float],
    technology: Technology,
    estimate: EstimateSettings,
) -> None:
    """Read parts and architectures, and write estimates.

    `hardware` lacks the network for layers of a single rank, whose collectives take no time on any.
    """
    bandwidth = hardware.get("network_bandwidth_bytes_per_s", inf)
    network = Flat(bandwidth, hardware["all_reduce_factor"]) if isfinite(bandwidth) else Flat(bandwidth)
    frame = estimate_operators(
        tables.Parts.load(*files["parts"]),
        read_architectures(files["architectures"], chip, technology.area_um2, CHIPS),
        Hardware(
            # Missing for architectures that have their own: if it mattered, a time would be NaN and refused.
            clock_hz=hardware.get("clock_hz", nan),
            hbm_bandwidth_bytes_per_s=hardware.get("hbm_bandwidth_bytes_per_s", nan),
            network=network,
            bytes_per_element=int(hardware["bytes_per_element"]),
        ),
        technology,
        estimate,
    )
    tables.Estimates.save(frame, out, checked=True)


if __name__ == "__main__":
    run_script(main, snakemake)
