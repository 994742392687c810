"""Estimate every operator of a model on every core design of a shard."""

from phaze import tables
from phaze.base.job import run_script
from phaze.cost.mapper.loads import Hardware
from phaze.cost.network.network import Flat
from phaze.cost.operators import estimate_operators
from phaze.spec.architecture import Technology
from phaze.spec.settings import EstimateSettings

CHIPS = [
    "num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "l2_tc_bytes", "l2_vc_bytes", "glb_bytes",
    "glb_words_per_cycle", "clock_hz", "hbm_bandwidth_bytes_per_s",
    "tensor_design", "vector_design", "fused_design",
]  # fmt: skip


def main(
    parts: str,
    architectures: str,
    out: str,
    *,
    hardware: dict[str, float],
    technology: Technology,
    estimate: EstimateSettings,
) -> None:
    """Read parts and architectures, and write estimates."""
    frame = estimate_operators(
        tables.Parts.load(parts),
        tables.Architectures.load(architectures, columns=CHIPS),
        Hardware(
            clock_hz=hardware["clock_hz"],
            hbm_bandwidth_bytes_per_s=hardware["hbm_bandwidth_bytes_per_s"],
            network=Flat(hardware["network_bandwidth_bytes_per_s"], hardware["all_reduce_factor"]),
            bytes_per_element=int(hardware["bytes_per_element"]),
        ),
        technology,
        estimate,
    )
    tables.Estimates.save(frame, out, checked=True)


if __name__ == "__main__":
    run_script(main, snakemake)
