"""How large a model is, as Table 4 of the Phaze paper shows it."""

from __future__ import annotations

import pandas as pd

KEYS = ["model", "tensor", "microbatch"]


def summarise_model(graphs: pd.DataFrame, layers: pd.DataFrame, operators: pd.DataFrame) -> pd.DataFrame:
    """Return one row per model, TMP width and microbatch: blocks, operators, parameters, activations,
    forward FLOPs.

    Sizes are those of one slice; FLOPs are of the forward pass of one microbatch. `operators` counts a
    block's forward pass before fusion, `fused_operators` after it. Parameters of the model count a tied
    head's copy, too.
    """
    counted = layers.merge(graphs[["model", "layer", "count"]], on=["model", "layer"], validate="many_to_one")
    totals = {
        "parameters": "parameters",
        "activation_bytes": "activation_bytes",
        "tensor_flops": "forward_tensor_flops",
        "vector_flops": "forward_vector_flops",
    }
    scaled = counted[KEYS].assign(
        **{name: counted[source] * counted["count"] for name, source in totals.items()}
    )
    block = counted[counted["layer"] == "block"].set_index(KEYS)
    chosen = {
        "layers": "count",
        "operators": "operators",
        "block_parameter_bytes": "parameter_bytes",
        "block_activation_bytes": "activation_bytes",
        "block_tensor_flops": "forward_tensor_flops",
        "block_vector_flops": "forward_vector_flops",
    }
    described = block[list(chosen.values())].rename(columns={source: name for name, source in chosen.items()})
    described.insert(2, "fused_operators", _block_operators(operators))
    return described.join(scaled.groupby(KEYS).sum()).reset_index()


def _block_operators(operators: pd.DataFrame) -> pd.Series:
    """Return the number of operators in the forward pass of a block as it is scheduled."""
    chosen = operators[(operators["layer"] == "block") & (operators["direction"] == "forward")]
    return chosen.groupby(KEYS).size()
