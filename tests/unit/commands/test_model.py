"""`phaze model`: the parts of a model."""

import json
from pathlib import Path

from tests.commands import assert_refused, invoke


def _answer(*arguments: str) -> dict[str, object]:
    found = invoke("model", *arguments, "--json")
    assert found.exit_code == 0, found.output
    answer: dict[str, object] = json.loads(found.stdout)
    return answer


def test_parameters_of_deepseek_v3_are_the_published_ones() -> None:
    """All, active, and multi-token prediction parameters (DeepSeek-V3, Section 4.2: 671 and 37 billion)."""
    answer = _answer("deepseek-v3")
    names = ("parameters", "active_parameters", "mtp_parameters")
    assert [answer[name] for name in names] == [671_026_404_352, 37_552_282_624, 11_610_067_968]
    groups = answer["parameters_by_group"]
    assert isinstance(groups, dict)
    assert sum(groups.values()) == 671_026_404_352 + 11_610_067_968


def test_a_published_configuration_is_a_model(tmp_path: Path) -> None:
    """Its fields suffice, and an unknown family is refused by name."""
    fields = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2, "num_local_experts": 4,
        "vocab_size": 256,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    block = 4 * 64 * 64 + 64 * 4 + 4 * 3 * 64 * 128 + 2 * 64
    assert _answer(str(path))["parameters"] == 2 * block + 2 * 256 * 64 + 64
    path.write_text(json.dumps(fields | {"model_type": "mimo"}))
    assert_refused("got 'mimo'", "model", path)


def test_the_answer_for_a_reader_has_every_kind_of_block() -> None:
    """Kinds with their layers, and their active parameters."""
    found = invoke("model qwen3.5-35b-a3b --sequence 4096")
    assert "delta-experts" in found.stdout
    assert "per token, for sequences of 4,096" in found.stdout


def test_layers_keep_what_a_recomputation_leaves() -> None:
    """For Qwen3-30B-A3B: everything that the fused kernels of a mixture store; without the results of its
    activations (2 k f less); only its input for a recomputed layer. The embedding and the head are never
    recomputed.
    """
    kept = _answer("qwen3-30b-a3b", "--sequence", "4096")["kept_bytes_per_token"]
    assert isinstance(kept, dict)
    assert list(kept) == ["embedding", "block", "head"]
    h, a, g, d, k, f, experts = 2048, 32, 4, 128, 8, 768, 128
    attention = 4 * h + 4 * (a + g) * d + 4 * a + 4 + (2 * d + 4) * (a + g)
    whole = attention + 4 * h + 4 + 2 * k * h + 6 * k * f + 4 * experts + 26 * k
    block = kept["block"]
    assert (block["none"], block["core_attn"], block["full"]) == (whole, whole, 2 * h)
    assert block["moe_act"] == whole - 2 * k * f
    assert set(block) == {"none", "core_attn", "moe_act", "layernorm", "moe", "full"}
    assert set(kept["embedding"]) == set(kept["head"]) == {"none"}
