"""The summary of a model's size, as in Table 4."""

import pandas as pd
import pytest

from phaze.layout import Layout
from phaze.spec.settings import ExtractSettings
from phaze.workload.frames import extract_graph, extract_layers
from phaze.workload.summary import summarise_model
from tests.unit.workload.examples import model_of


@pytest.fixture(scope="module")
def summary() -> pd.Series:
    """Return the summary of GPT-2 for one sample of 1024 tokens."""
    model = model_of("gpt2")
    found = extract_layers(model, 1024, Layout(), ExtractSettings())
    frame = summarise_model(extract_graph(model), found.layers, found.operators)
    assert len(frame) == 1
    return frame.iloc[0]


def test_operators_are_counted_before_and_after_fusion(summary: pd.Series) -> None:
    """A GPT-2 block has 32 primitives and 13 operators."""
    assert (summary["layers"], summary["operators"], summary["fused_operators"]) == (12, 32, 13)


def test_the_model_is_its_layers_times_their_number(summary: pd.Series) -> None:
    """Parameters count the head's copy of the tied embedding; FLOPs and activations sum over all layers."""
    assert summary["parameters"] == 124_439_808 + 768 * 50257
    block = 24 * 1024 * 768**2 + 4 * 1024**2 * 768
    assert summary["block_tensor_flops"] == block
    assert summary["tensor_flops"] == 12 * block + 2 * 1024 * 768 * 50257
    kept = 34 * 1024 * 768 + 5 * 12 * 1024**2
    assert summary["activation_bytes"] == 12 * kept + 1024 * 768 + 2 * 1024 * (2 * 768 + 50257)


def test_widths_and_microbatches_are_rows() -> None:
    """Several tables together give one row for each width and microbatch."""
    model = model_of("megatron-bert")
    found = [
        extract_layers(model, 512, Layout(tp=t, microbatch=b), ExtractSettings())
        for t in (1, 2)
        for b in (1, 4)
    ]
    layers, operators = (pd.concat([getattr(x, n) for x in found]) for n in ("layers", "operators"))
    frame = summarise_model(extract_graph(model), layers, operators)
    assert list(zip(frame["tensor"], frame["microbatch"], strict=True)) == [(1, 1), (1, 4), (2, 1), (2, 4)]
    assert frame["block_tensor_flops"].iloc[1] == 4 * frame["block_tensor_flops"].iloc[0]
