"""Traced models as transformers: sizes by products, norms and parameters, and what a trace cannot tell.

tests/data/traced has what `phaze trace CONFIG --layers --sequence 32` writes of small models of our own with
PyTorch 2.13 and transformers 5.24: gpt2 (dense.json) and qwen3_moe (experts.json) of
tests/data/transformers-written.json.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.model import Model
from phaze.spec.models import load_model, load_transformer
from phaze.spec.traced import Traced, transformer_of
from phaze.workload.families.traced.layers import described
from phaze.workload.models import build_graph
from tests.unit.workload.examples import MODELS

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests" / "data" / "traced"
WRITTEN = json.loads((ROOT / "tests" / "data" / "transformers-written.json").read_text())


def loaded(name: str) -> Traced:
    """One of the traces."""
    model = load_model(TRACES / f"{name}.json")
    assert isinstance(model, Traced)
    return model


@pytest.mark.parametrize(("name", "family"), [("dense", "gpt2"), ("experts", "qwen3_moe")])
def test_what_pytorch_ran_is_the_transformer_of_the_configuration(
    tmp_path: Path, name: str, family: str
) -> None:
    """Parameters by group, FLOPs and blocks are those of the traced configuration."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(WRITTEN[family]["given"]))
    theirs, ours = load_model(path), load_transformer(str(TRACES / f"{name}.json"), "test")
    assert isinstance(theirs, Model)
    assert ours.parameter_groups() == theirs.parameter_groups()
    assert ours.parameter_groups(active=True) == theirs.parameter_groups(active=True)
    assert list(ours.blocks.values()) == list(theirs.blocks.values())
    assert ours.flops_per_token(32) == theirs.flops_per_token(32)


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "qwen3-30b-a3b", "llama2-70b"])
def test_layers_of_a_family_are_the_model_again(name: str) -> None:
    """Dense, with experts, with grouped heads, with biases, with head norms."""
    model = MODELS[name] if name in MODELS else load_transformer(name, "test")
    assert isinstance(model, Model)
    derived = transformer_of(described(build_graph(model, 256, Layout(), 2), name, 256), "x")
    assert derived.parameter_groups() == model.parameter_groups()
    assert derived.flops_per_token(256) == model.flops_per_token(256)
    assert derived.blocks == model.blocks


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("deepseek-v3", "latent attention and adapters cannot be read from a trace"),
        ("nemotron-3-nano-30b-a3b", "must have one attention, which is two products without weights, got "),
        ("opt-350m", "x: must end in one product with logits for the 25,136 rows of its table"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, match: str) -> None:
    model = load_transformer(name, "test").model_copy(update={"mtp": 0})
    with pytest.raises(PhazeError, match=match):
        transformer_of(described(build_graph(model, 256, Layout(), 2), name, 256), "x")


def changed(name: str, change: Callable[[dict[str, Any]], None]) -> Traced:
    """One of the traces with changed operators."""
    fields = json.loads((TRACES / f"{name}.json").read_text())
    for layer in fields["layers"]:
        for operator in layer["operators"]:
            change(operator)
    del fields["kind"]
    return Traced.parse(fields, "test")


def test_experts_of_a_token_are_asked_for_where_all_rows_meet_all() -> None:
    """As in some modules; the message names the option."""

    def dense(operator: dict[str, Any]) -> None:
        if operator.get("group") == "expert":
            operator["product"]["m"] = 32

    traced = changed("experts", dense)
    with pytest.raises(
        PhazeError, match=r"does not determine experts.per_token of 4 experts: pass --set experts.per"
    ):
        transformer_of(traced, "x")
    derived = transformer_of(traced, "x", {"experts.per_token": 2})
    assert derived == transformer_of(loaded("experts"), "x")


def test_heads_of_keys_are_asked_for_where_products_do_not_tell() -> None:
    """A gate next to the queries, for example, which is then given, too."""

    def gated(operator: dict[str, Any]) -> None:
        if operator["name"] == "self_attn.q_proj.mm":
            operator["product"]["n"] *= 2
            operator["parameters"] *= 2

    traced = changed("experts", gated)
    with pytest.raises(
        PhazeError, match="does not determine key_value_heads of 6 heads: pass --set key_value_heads=N"
    ):
        transformer_of(traced, "x")
    with pytest.raises(
        PhazeError, match="the trace has 597,264 parameters, a transformer of its sizes 528,144"
    ):
        transformer_of(traced, "x", {"key_value_heads": 2})
    derived = transformer_of(traced, "x", {"key_value_heads": 2, "attention_gate": True})
    assert derived.parameters == 597_264


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output + str(result.exception or "")


def test_model_and_plan_take_a_trace() -> None:
    """With the undetermined fields set by --set."""
    path = str(TRACES / "experts.json")
    status, text = _run("model", path, "--json", "--set", "causal=false")
    assert status == 0, text
    assert json.loads(text)["active_parameters"] == 389_904
    status, text = _run("plan", path, "--gpus", "2xH100", "--global-batch", "8", "--sequence", "64", "--json")
    assert status == 0, text


@pytest.mark.parametrize(
    ("model", "text", "words"),
    [
        ("dense.json", "causal", ["--set", "experts.per_token=2", "'causal'"]),
        ("dense.json", "heads.x=1", ["heads.x", "not a known key"]),
        ("dense.json", "key_value_heads=4", ["key_value_heads 4", "heads 6"]),
        ("", "causal=false", ["--set", "traced models", "gpt2"]),
    ],
)
def test_a_bad_field_is_refused(model: str, text: str, words: list[str]) -> None:
    """In one line, by its name."""
    status, output = _run("model", str(TRACES / model) if model else "gpt2", "--set", text)
    assert status == 1
    assert all(word in output for word in words), output
