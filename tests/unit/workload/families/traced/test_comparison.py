"""PyTorch's counts for models, compared with those of their specs."""

from pathlib import Path

import pandas as pd
import pytest

from phaze.layout import Layout
from phaze.spec.models import load_model_named, load_transformer
from phaze.spec.torch_module import load_torch_module
from phaze.workload.families.traced.trace import UNFUSED, CountComparison, Counts, count, csv_text
from phaze.workload.models import extract_workload

ROOT = Path(__file__).parents[5]
TABLE = pd.read_csv(ROOT / "tests" / "data" / "torch-comparison.csv")
"""Written by

    python -m phaze trace config/torch/*.yaml --run-code --compare -o tests/data/torch-comparison.csv

with PyTorch 2.13, TorchVision 0.28, timm 1.0.31, Transformers 5.23 and bert-pytorch 0.0.1a4."""


CONFIGURATIONS = ROOT.parent / "shared" / "data" / "huggingface"
PUBLISHED = pd.read_csv(ROOT / "tests" / "data" / "transformers-comparison.csv")
"""Written by `python -m phaze trace NAME.json … --sequence 512 --compare` with PyTorch 2.13 and Transformers
5.23, of published configurations."""


def counted(model: str, who: str, table: pd.DataFrame = TABLE) -> Counts:
    (row,) = table[(table["model"] == model) & (table["counted_by"] == who)].to_dict(orient="records")
    return Counts(row["parameters"], row["forward_flops"], row["backward_flops"])


def test_the_table_has_every_module() -> None:
    """All specs of modules."""
    assert sorted(TABLE["model"].unique()) == sorted(
        path.stem for path in (ROOT / "config/torch").glob("*.yaml")
    )


@pytest.mark.parametrize("name", sorted(PUBLISHED["model"].unique()))
def test_families_count_what_pytorch_counts_of_published_configurations(name: str) -> None:
    """Except for windows: PyTorch masks scores outside of them, kernels do not compute them."""
    path = CONFIGURATIONS / f"{name}.json"
    if not path.exists():
        pytest.skip("no published configurations beside the checkout")
    model = load_transformer(str(path), "test").model_copy(update={"mtp": 0})
    torch, traced = counted(name, "torch", PUBLISHED), counted(name, "traced", PUBLISHED)
    spec = count(extract_workload(model, 512, Layout(), UNFUSED))
    assert spec == counted(name, "spec", PUBLISHED)
    assert torch == traced
    assert spec.parameters == torch.parameters
    outside = 0
    if model.window is not None:
        layers = sum(count for kind, count in model.runs if kind.startswith("window"))
        near = min(model.window.size, 512)  # of the tokens before it, fewer where a sample begins
        kept = min(round(2 * (near - near * (near - 1) / (2 * 512))), 512)
        outside = layers * 2 * 2 * 512 * (512 - kept) * model.heads * model.head_width
    assert torch.forward_flops - spec.forward_flops == outside
    assert torch.backward_flops - spec.backward_flops == 2 * outside


@pytest.mark.parametrize("model", sorted(TABLE["model"].unique()))
def test_specs_count_what_pytorch_counts(model: str) -> None:
    """Parameters, and FLOPs of both passes, agree exactly."""
    tokens = load_torch_module(ROOT / f"config/torch/{model}.yaml").tokens
    spec = count(extract_workload(load_model_named(model), tokens, Layout(), UNFUSED))
    assert spec == counted(model, "torch") == counted(model, "traced")


def test_a_comparison_is_three_rows() -> None:
    """One row per method of counting."""
    one, two = Counts(1, 2, 3), Counts(1, 2, 4)
    same, other = CountComparison("m", one, one, one), CountComparison("m", one, one, two)
    assert (same.agrees, other.agrees) == (True, False)
    assert csv_text([other]).splitlines() == [
        "model,counted_by,parameters,forward_flops,backward_flops",
        "m,torch,1,2,3",
        "m,traced,1,2,3",
        "m,spec,1,2,4",
    ]
