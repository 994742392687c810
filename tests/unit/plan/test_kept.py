"""Stored bytes per token of layers, and savings of recomputed modules: closed forms and measurements."""

import pytest

from phaze.layout import Layout
from phaze.plan.layers.costs import LayerCost, layer_costs
from phaze.plan.machines import load_machine
from phaze.spec.blocks import Attention, Block
from phaze.spec.model import Model
from phaze.workload.models import library_workload
from tests.unit.workload.examples import MODELS

SEQUENCE = 8192
ONE = Layout()
MACHINE = load_machine("h100", stack="megatron-core-2024")
assert MACHINE.stack.fused_gate


def costs_of(name: str, layout: Layout = ONE) -> dict[str, LayerCost]:
    model = MODELS[name]
    assert isinstance(model, Model)
    return layer_costs(library_workload(model, SEQUENCE, layout), MACHINE, flash=True)


def kept(name: str, kind: str, layout: Layout = ONE, recompute: str = "none") -> float:
    """Stored bytes per token of all ranks of a microbatch together."""
    nbytes = costs_of(name, layout)[kind].kept_bytes(recompute)[0]
    return nbytes * layout.tp * layout.cp / (SEQUENCE * layout.microbatch)


def closed_form(model: Model, block: Block) -> float:
    """Bytes per token stored by fused kernels of norms, attention, gates and experts in half precision:
    inputs and outputs of norms, queries, keys, values, results, results of the first products and inputs of
    the second; statistics in single precision. For mixtures also dispatched tokens, scores and choices.
    """
    h, own, experts = model.hidden, block.mixer, block.experts
    assert isinstance(own, Attention)
    a, g, latent = own.heads, own.key_value_heads, own.latent
    if latent is None:
        found = 4 * h + 4 * a * own.head_size + 4 * g * own.head_size + 4 * a + 4
        normed = {"none": 0, "heads": 1}[own.qk_norm]
        found += normed * (2 * (a + g) * own.head_size + 4 * (a + g))
    else:
        rank, low, rope = latent.query_rank or 0, latent.kv_rank, latent.rope_size
        found = 4 * h + 4 * rank + 2 * (low + rope) + 2 * low + 4 * a * own.query_size
        found += 4 * a * own.value_size + 4 * a + 8 + 4 * (rank > 0)
    found += 4 * h + 4
    if block.feed_forward:
        return found + 6 * block.feed_forward.width
    assert experts is not None
    k, routing = experts.per_token, 4 * experts.count + 26 * experts.per_token
    return found + 2 * k * h + 6 * k * experts.width + 6 * experts.shared_width + routing


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2", "deepseek-v3"]
)
@pytest.mark.parametrize(
    "layout", [Layout(), Layout(tp=2, sequence_parallel=True, ep=2, microbatch=2), Layout(cp=2, ep=2)]
)
def test_blocks_keep_what_the_closed_forms_count(name: str, layout: Layout) -> None:
    """Dense blocks, mixtures and latent attention, to the byte, for any sharding (Korthikanti et al. 2023 for
    the stored tensors).
    """
    model = MODELS[name]
    assert isinstance(model, Model)
    for kind, block in model.blocks.items():
        assert kept(name, kind, layout) == closed_form(model, block)


def test_scans_keep_what_their_kernels_read_and_write() -> None:
    """For Mamba-2 the norm, the projection, the result of the scan, and the input of the last product;
    nothing inside.
    """
    model = MODELS["nemotron-3-nano-30b-a3b"]
    assert isinstance(model, Model)
    own = model.mamba
    assert own is not None
    expected = 4 * model.hidden + 2 * own.projected + 4 * own.inner + 8
    assert kept(model.name, "mamba") == expected
    assert kept(model.name, "mamba", Layout(tp=2, sequence_parallel=True)) == expected + 4  # norms of slices


def test_slices_of_experts_keep_the_rows_of_all() -> None:
    """Dispatched tokens are gathered over etp, and their results are sharded; a load multiplies both."""
    model = MODELS["mixtral-8x7b"]
    assert isinstance(model, Model)
    rows, tokens = 2 * 2 * 4096, 6 * 2 * 14336
    whole, cut = (
        kept(model.name, "block", Layout(tp=2, etp=etp, ep=2, dp=2, sequence_parallel=True)) for etp in (1, 2)
    )
    assert cut - whole == rows
    assert kept(model.name, "block", Layout(ep=2, dp=2, load="1.5")) - whole == (rows + tokens) / 2


FREED = {
    "moe_act": 2 * 8 * 2048, "layernorm": 4 * 7168, "mla_up_proj": 4 * 128 * 192 + 2 * 128 * 128,
    "shared_experts": 6 * 2048, "core_attn": 0,
    "moe": 2 * 8 * 7168 + 6 * 8 * 2048 + 6 * 2048 + 4 * 256 + 26 * 8,
}  # fmt: skip


@pytest.mark.parametrize("module", FREED)
def test_modules_free_what_they_make_again(module: str) -> None:
    """For DeepSeek-V3's mixtures; recomputation takes time, and its results exist while the layer is
    processed.
    """
    cost = costs_of("deepseek-v3")["attention-experts"]
    bytes_kept, at_work = cost.kept_bytes(module)
    assert (cost.layer.activation_bytes - bytes_kept) / SEQUENCE == FREED[module]
    assert at_work == FREED[module] * SEQUENCE
    assert 0 < cost.again_s(module).sum() < cost.forward_s.sum()


def test_modules_inside_others_free_nothing_twice() -> None:
    """Activation and shared experts are parts of the mixture; the norm before it is not."""
    cost = costs_of("deepseek-v3")["attention-experts"]
    nested, alone = (cost.kept_bytes(way)[0] for way in ("moe_act+moe+shared_experts", "moe"))
    assert nested == alone
    assert cost.again_s("moe_act+moe").sum() == cost.again_s("moe").sum()
    assert cost.kept_bytes("layernorm+moe")[0] == alone - 4 * 7168 * SEQUENCE


def test_savings_of_nemotron_are_those_that_were_measured() -> None:
    """Measured by NVIDIA on H100, one sample of 8,192 tokens and 23 mixtures per device: 66.297 - 62.103 GB
    for `moe_act` and 64.653 - 63.639 GB for `layernorm` in addition to `moe` (Megatron-Bridge, skills, 2026).
    """
    cost = costs_of("nemotron-3-nano-30b-a3b", Layout(ep=8, dp=8))["experts"]
    saved = {way: 23 * (cost.layer.activation_bytes - cost.kept_bytes(way)[0]) for way in RECOMPUTED}
    assert saved["moe_act"] == pytest.approx((66.297 - 62.103) * 1e9, rel=0.01)
    assert saved["layernorm+moe"] - saved["moe"] == pytest.approx((64.653 - 63.639) * 1e9, rel=0.01)


RECOMPUTED = ("moe_act", "moe", "layernorm+moe")
