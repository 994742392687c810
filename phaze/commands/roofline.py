"""Roofline of operators: FLOPs and bytes against the peaks of an accelerator, and totals of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.cost.mapper.loads import Hardware
from phaze.tables.columns import POINT

SUMS = ("latency_all_s", "energy_all_j", "flops", "hbm_all_bytes")
"""Columns that add up to the totals of a model."""


@dataclass(frozen=True)
class Peaks:
    """Peak rates of an accelerator per second, summed over all cores."""

    tensor_flops: float
    vector_flops: float
    hbm_bytes: float

    @classmethod
    def of(cls, chip: pd.Series, hardware: Hardware) -> Peaks:
        """Peak rates of a row of table `architectures`; a vector lane performs one FLOP per cycle."""
        return cls(
            2.0 * chip["num_tc"] * chip["pe_x"] * chip["pe_y"] * hardware.clock_hz,
            1.0 * chip["num_vc"] * chip["pe_vc"] * hardware.clock_hz,
            hardware.hbm_bandwidth_bytes_per_s,
        )


def on_roofline(operators: pd.DataFrame, peaks: Peaks) -> pd.DataFrame:
    """Add FLOPs, the binding roof, and the share of that roof reached on all cores to each operator.

    The roof is the longer of two times: of the FLOPs at the peak of their cores (compute), and of the HBM
    traffic at the peak bandwidth (memory). Collectives have no roof: it is empty, and the share is missing.
    """
    tensor, vector = operators["tensor_flops"].to_numpy(float), operators["vector_flops"].to_numpy(float)
    # Tensor and vector cores work at the same time, so the slower of the two decides.
    compute_s = np.maximum(tensor / peaks.tensor_flops, vector / peaks.vector_flops)
    memory_s = operators["hbm_all_bytes"].to_numpy(float) / peaks.hbm_bytes
    roof_s = np.maximum(compute_s, memory_s)
    has_roof = (operators["core"].to_numpy() != "network") & (roof_s > 0)
    share = np.divide(roof_s, operators["latency_all_s"], out=np.full(len(roof_s), np.nan), where=has_roof)
    return operators.assign(
        flops=tensor + vector,
        roof=np.where(has_roof, np.where(compute_s > memory_s, "compute", "memory"), ""),
        roof_share=share,
    )


def totals(operators: pd.DataFrame) -> pd.DataFrame:
    """Totals of each distinct layer and pass over all identical layers, and of the whole model (`all`).

    Operators run one after another on all cores; a microbatch passes all layers.
    """
    counted = operators[list(SUMS)].mul(operators["layers"], axis=0)
    keys = [*POINT, "layer", "direction"]
    rows = pd.concat([operators[[*keys, "layers"]], counted], axis=1)
    by_layer = rows.groupby(keys, sort=False, as_index=False).agg(
        {"layers": "first", **dict.fromkeys(SUMS, "sum")}
    )
    model = rows.groupby(list(POINT), sort=False, as_index=False).agg(dict.fromkeys(SUMS, "sum"))
    layers_and_model = pd.concat([by_layer, model.assign(layer="all", direction="both")], ignore_index=True)
    # Rows of the model have no number of layers, which plain integers cannot express.
    return layers_and_model.astype({"layers": "Int64"})
