"""What PyTorch counts of models beside what their specs count."""

from pathlib import Path

import pandas as pd
import pytest

from phaze.layout import Layout
from phaze.spec.config import load_model_named
from phaze.spec.torch_module import load_torch_module
from phaze.workload.families.traced.trace import UNFUSED, Comparison, Counts, count, csv_text
from phaze.workload.models import extract_workload

ROOT = Path(__file__).parents[5]
TABLE = pd.read_csv(ROOT / "tests" / "data" / "torch-comparison.csv")
"""Written by

    python -m phaze trace config/torch/*.yaml --run-code --compare -o tests/data/torch-comparison.csv

with PyTorch 2.13, TorchVision 0.28, timm 1.0.31, Transformers 5.23 and bert-pytorch 0.0.1a4."""


def counted(model: str, who: str) -> Counts:
    (row,) = TABLE[(TABLE["model"] == model) & (TABLE["counted_by"] == who)].to_dict(orient="records")
    return Counts(row["parameters"], row["forward_flops"], row["backward_flops"])


def test_the_table_has_every_module() -> None:
    """Every spec of a module has been compared."""
    assert sorted(TABLE["model"].unique()) == sorted(
        path.stem for path in (ROOT / "config/torch").glob("*.yaml")
    )


@pytest.mark.parametrize("model", sorted(TABLE["model"].unique()))
def test_specs_count_what_pytorch_counts(model: str) -> None:
    """Parameters, and FLOPs of both passes, are the same to the last one."""
    tokens = load_torch_module(ROOT / f"config/torch/{model}.yaml").tokens
    spec = count(extract_workload(load_model_named(model), tokens, Layout(), UNFUSED))
    assert spec == counted(model, "torch") == counted(model, "traced")


def test_a_comparison_is_three_rows() -> None:
    """One for each that counts."""
    one, two = Counts(1, 2, 3), Counts(1, 2, 4)
    same, other = Comparison("m", one, one, one), Comparison("m", one, one, two)
    assert (same.agrees, other.agrees) == (True, False)
    assert csv_text([other]).splitlines() == [
        "model,counted_by,parameters,forward_flops,backward_flops",
        "m,torch,1,2,3",
        "m,traced,1,2,3",
        "m,spec,1,2,4",
    ]
