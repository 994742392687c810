"""PyTorch modules, if PyTorch is installed."""

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.models import load_model, load_model_named
from phaze.spec.rows import Gemm
from phaze.spec.torch_module import ASIDE, CONFIGURED, TorchModule, load_torch_module
from phaze.workload.families.traced.trace import compare, trace
from phaze.workload.families.traced.translate import translate

SPECS = Path(__file__).parents[5] / "config" / "torch"
LINEAR = {
    "name": "linear",
    "torch": "torch.nn:Linear",
    "arguments": {"in_features": 8, "out_features": 5},
    "inputs": {"x": {"shape": [8]}},
}


def test_code_runs_only_if_that_is_said() -> None:
    """The message names the code."""
    with pytest.raises(
        PhazeError, match=r"torch: os:system would be imported and called; allow it with --run"
    ):
        trace(TorchModule.parse({**LINEAR, "torch": "os:system"}, "test"), 1, run_code=False)


def test_a_model_spec_that_names_code_is_refused() -> None:
    """No study and no other command runs it."""
    with pytest.raises(PhazeError, match=r"resnet-50\.yaml: torch: names code, and a spec must not run code"):
        load_model(SPECS / "resnet-50.yaml")


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_module_has_a_spec_of_the_same_model(path: Path) -> None:
    """It is read without running code."""
    assert load_torch_module(path).name == load_model_named(path.stem).name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"torch": "torch.nn.Linear"}, "torch: String should match pattern"),
        ({"inputs": {}}, "inputs: "),
        ({"input": {}}, "input: is not a known key"),
    ],
)
def test_a_spec_of_a_module_is_checked(changes: dict[str, object], message: str) -> None:
    """One message gives the key."""
    with pytest.raises(PhazeError, match=message):
        TorchModule.parse({**LINEAR, **changes}, "test")


def test_a_module_is_traced_forward_and_backward() -> None:
    """The gradient of the input is not computed, that of the weight is."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    found = trace(TorchModule.parse(LINEAR, "test"), 3, run_code=True)
    assert (found.parameters, found.forward_flops, found.backward_flops) == (45, 2 * 3 * 8 * 5, 2 * 3 * 8 * 5)
    assert [p.kind for p in translate(found).primitives] == ["matmul"]


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        ("no_such_package:f", "no_such_package:f: cannot be imported"),
        ("torch.nn:NoSuchModule", "cannot be imported: module 'torch.nn' has no attribute"),
        ("torch.nn:__doc__", "cannot be called"),
        ("torch.nn:Parameter", "returned no module, got Parameter"),
        ("torch.nn:Linear", "model linear: torch.nn:Linear fails: TypeError"),
        ("torch.nn:RNNBase", "model linear: torch.nn:RNNBase fails: TypeError"),
    ],
)
def test_what_is_no_module_is_refused(torch: str, message: str) -> None:
    """One message gives the callable."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    given = TorchModule.parse({**LINEAR, "torch": torch, "arguments": {}}, "test")
    with pytest.raises(PhazeError, match=message):
        trace(given, 1, run_code=True)


def test_without_pytorch_the_message_says_what_works_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phaze is not in a package index."""
    monkeypatch.setattr("phaze.workload.families.traced.trace.find_spec", lambda _: None)
    with pytest.raises(
        PhazeError, match=r"not installed: \.venv/bin/pip install -e '\.\[torch\]' in the folder"
    ):
        trace(load_torch_module(SPECS / "gpt2.yaml"), 1, run_code=True)


@pytest.mark.parametrize("name", ["resnet-50", "swin-l", "gpt2"])
def test_traced_models_agree_with_their_specs(name: str) -> None:
    """Parameters, and FLOPs of both passes, agree exactly."""
    for library in ("torch", "torchvision", "timm", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    module = load_torch_module(SPECS / f"{name}.yaml")
    found = trace(module, 1, run_code=True)
    assert compare(found, load_model_named(name), module.tokens).agrees


TINY = {
    "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "num_local_experts": 4,
    "vocab_size": 256, "auto_map": {"AutoModelForCausalLM": "code.Model"}, "quantization_config": {"bits": 4},
}  # fmt: skip


def test_a_configuration_names_no_code_and_what_is_the_checkpoints_is_left_aside(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps({"model_type": "whole", "text_config": TINY}))
    found = load_torch_module(path, 32)
    assert (found.name, found.torch, found.tokens) == ("tiny", CONFIGURED, 32)
    config = json.loads(str(found.arguments["config"]))
    assert config == {name: value for name, value in TINY.items() if name not in ASIDE}
    path.write_text("[]")
    with pytest.raises(PhazeError, match="must hold a JSON object with model_type"):
        load_torch_module(path)


def test_experts_of_a_configuration_are_products_of_their_rows(tmp_path: Path) -> None:
    """PyTorch, the trace and the family agree; 32 tokens have 64 dispatched rows."""
    for library in ("torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    found = trace(load_torch_module(path, 32), 1, run_code=False)
    assert compare(found, load_model(path), 32).agrees
    experts = [one for one in translate(found).primitives if one.group == "expert"]
    assert {one.gemm for one in experts} == {Gemm(4, 16, 64, 192), Gemm(4, 16, 96, 64)}
    assert sum(one.parameters for one in experts) == 2 * 4 * 3 * 64 * 96
