"""The backward pass mirrors the forward pass, and computes every gradient once."""

from __future__ import annotations

import pytest
from hypothesis import given

from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.backward import Form, backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import fuse
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.operators import LayerPass, Operator
from phaze.workload.primitives import LayerGraph
from tests.unit.workload.examples import layer_of, slice_of, slices

TOKENS, HIDDEN = 1024, 768
RESIDUAL = 2 * TOKENS * HIDDEN
"""Bytes of GPT-2's residual stream."""
SCORES = 2 * 12 * 1024**2
"""Bytes of GPT-2's attention scores."""


def passed(layer: LayerGraph, form: Form = "paired", *, fused: bool = True) -> LayerPass:
    """Return the backward pass of a layer."""
    return backward_pass(layer, fuse(layer, enabled=fused), 2, form)


def forward(layer: LayerGraph, *, fused: bool = True) -> LayerPass:
    """Return the forward pass of a layer."""
    return forward_pass(layer, fuse(layer, enabled=fused), 2)


def operator(
    start: str,
    form: Form = "paired",
    *,
    end: str = "",
    model: str = "gpt2",
    tensor: int = 1,
    layer: str = "block",
    fused: bool = True,
) -> Operator:
    """Return the backward operator whose name begins and ends so."""
    graph = passed(layer_of(slice_of(model, tensor), layer), form, fused=fused)
    return next(o for o in graph.operators if o.name.startswith(start) and o.name.endswith(end))


def parts(o: Operator) -> list[tuple[str, str, int]]:
    """Return kind, role and traffic of the parts of an operator."""
    return [(p.kind, p.role, p.streamed_bytes) for p in o.parts]


def tensor_flops(graph: LayerPass) -> int:
    """Return the FLOPs of all matrix multiplications."""
    return sum(part.tensor_flops for o in graph.operators for part in o.parts)


def streamed(graph: LayerPass) -> int:
    """Return the HBM bytes in addition to matrix multiplications."""
    return sum(part.streamed_bytes for o in graph.operators for part in o.parts)


@pytest.mark.parametrize("fused", [True, False])
@given(part=slices())
def test_paired_operators_mirror_the_forward_pass(part: ModelSlice, fused: bool) -> None:
    """One backward operator for each forward operator, in reverse, with every edge reversed."""
    for layer in transformer_graph(part).layers:
        ahead, back = forward(layer, fused=fused), passed(layer, fused=fused)
        assert [o.name for o in back.operators] == [f"{o.name}.backward" for o in reversed(ahead.operators)]
        last = len(ahead.operators) - 1
        turned = {(last - e.target, last - e.source) for e in ahead.edges}
        assert {(e.source, e.target) for e in back.edges} == turned


@given(slices())
def test_products_take_twice_the_flops_of_the_forward_pass(part: ModelSlice) -> None:
    """Every matrix multiplication has two gradients of the same cost, in both forms."""
    for layer in transformer_graph(part).layers:
        for form in ("paired", "split"):
            assert tensor_flops(passed(layer, form)) == 2 * tensor_flops(forward(layer))


def test_the_products_of_a_gradient_have_the_right_shapes() -> None:
    """For (m x k)(k x n) the left gradient is (m x n)(n x k), the right one (k x m)(m x n)."""
    o = operator("feed_forward_in")
    shapes = {p.role: (p.batch, p.m, p.k, p.n) for p in o.parts if p.kind == "matmul"}
    assert shapes == {
        "data_gradient": (1, TOKENS, 4 * HIDDEN, HIDDEN),
        "weight_gradient": (1, HIDDEN, TOKENS, 4 * HIDDEN),
    }


def test_attention_products_have_no_weight_gradient() -> None:
    """Both operands of an attention product are activations."""
    assert [p.role for p in operator("context").parts] == ["data_gradient", "data_gradient"]
    assert [p.role for p in operator("scores").parts if p.kind == "matmul"] == [
        "data_gradient",
        "data_gradient",
    ]


IDS = 8 * TOKENS
LOGITS = 2 * TOKENS * 50257
LLAMA = {"model": "llama2-7b"}
WIDE = 2 * 1024 * 11008
"""Bytes of the inner tensors of Llama's feed-forward network."""
PRODUCT, WEIGHT = ("matmul", "data_gradient", 0), ("matmul", "weight_gradient", 0)
TRAFFIC = {
    "GELU's input is read and its gradient written for the second product, the first has it at hand": (
        ("feed_forward_in", {}, [("gelu", 8 * RESIDUAL), ("add", 2 * 4 * HIDDEN), PRODUCT, WEIGHT])
    ),
    "the bias of QKV sums the gradient that both products read, only its own is written": (
        ("qkv", {}, [("add", 2 * 3 * HIDDEN), PRODUCT, WEIGHT])
    ),
    "a residual sum hands its gradient on untouched, dropout reads its mask": (
        ("feed_forward_out", {}, [("dropout", 3 * RESIDUAL // 2), ("add", 2 * HIDDEN), PRODUCT, WEIGHT])
    ),
    "a fork sums two gradients, one of which stands for a product's operand": (
        (
        "attention_out", {},
        [("add", 2 * RESIDUAL), ("dropout", RESIDUAL // 2 + RESIDUAL), ("add", 2 * HIDDEN), PRODUCT, WEIGHT],
        )
    ),
    "a fork of its own reads two gradients and writes one": ("input_fork", {}, [("add", 3 * RESIDUAL)]),
    "three readers need two sums": (
        ("attention_norm_fork", LLAMA, [("add", 4 * 2 * 1024 * 4096), ("add", 0)])
    ),
    "scores write the gradient that queries and keys both need": (
        ("scores", {}, [("masked_fill", 1024**2), ("mul", SCORES), PRODUCT, PRODUCT])
    ),
    "a softmax reads what arrives and its own output": ("softmax.", {}, [("softmax", 3 * SCORES)]),
    "a norm makes both gradients in one pass": (
        ("attention_norm", {}, [("layer_norm", 3 * RESIDUAL + 2 * 2 * 2 * HIDDEN)])
    ),
    "both factors of a gate get a product with the other": (
        ("feed_forward_up", LLAMA, [("mul", 4 * WIDE), ("mul", 0), PRODUCT, WEIGHT])
    ),
    "an embedding reads and writes the rows of its tables": (
        "word_lookup", {"layer": "embedding"},
        [("dropout", RESIDUAL + RESIDUAL // 2), ("add", 2 * RESIDUAL + IDS), ("add", 2 * RESIDUAL + IDS)],
    ),
    "a loss sends one value a token back": (
        ("log_softmax", {"layer": "head"}, [("log_softmax", 2 * TOKENS + 2 * LOGITS)])
    ),
    "in split form a product's data gradient comes with what is before": (
        ("feed_forward_in", {"form": "split", "end": "data_gradient"}, [("gelu", 8 * RESIDUAL), PRODUCT])
    ),
    "and its weight gradient with the bias": (
        ("feed_forward_in", {"form": "split", "end": "weight_gradient"}, [("add", 2 * 4 * HIDDEN), WEIGHT])
    ),
    "a norm splits into two passes": (
        "attention_norm", {"form": "split", "end": "data_gradient"},
        [("layer_norm", 3 * RESIDUAL + 2 * 2 * HIDDEN)],
    ),
    "the second sums the gradients of its scale and bias": (
        "attention_norm", {"form": "split", "end": "weight_gradient"},
        [("add", 2 * RESIDUAL + 2 * 2 * HIDDEN)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("start", "which", "expected"), TRAFFIC.values(), ids=TRAFFIC)
def test_what_an_operator_reads_and_writes(
    start: str, which: dict[str, str], expected: list[tuple[str, ...]]
) -> None:
    """Kinds, roles and HBM bytes of its parts."""
    found = parts(operator(start, **which))  # type: ignore[arg-type]
    assert found == [part if len(part) == 3 else (part[0], "backward", part[1]) for part in expected]


def test_collectives_change_sides() -> None:
    """Tensors summed forward have no collective backward, and tensors copied to all ranks are summed."""
    model = "megatron-gpt-2.5b"
    assert operator("attention_out_all_reduce", model=model, tensor=4).core == "none"
    copied = operator("attention_copy", model=model, tensor=4)
    assert copied.core == "network"
    assert copied.parts[0].network_bytes == 2 * 1024 * 1920
    assert operator("logits_copy", model=model, tensor=4, layer="head").core == "network"


def test_a_leaf_waits_only_for_what_it_needs() -> None:
    """QKV's weight gradient needs the arriving gradient, not the data gradient; after a GELU it needs the
    GELU's gradient.
    """
    graph = passed(layer_of(slice_of("gpt2"), "block"), "split")
    names = [o.name for o in graph.operators]
    sources = {
        names[target]: [names[e.source] for e in graph.edges if e.target == target]
        for target in range(len(names))
    }
    assert sources["qkv+qkv_bias.weight_gradient"] == sources["qkv+qkv_bias.data_gradient"]
    inner = "feed_forward_in+feed_forward_in_bias+gelu"
    assert sources[f"{inner}.weight_gradient"] == [f"{inner}.data_gradient"]


def test_an_unfused_bias_is_a_view_with_a_leaf() -> None:
    """Alone, a bias passes the gradient on without work, and its leaf sums it."""
    data = operator("gelu", "split", fused=False)
    bias = operator("feed_forward_in_bias", "split", end="data_gradient", fused=False)
    leaf = operator("feed_forward_in_bias", "split", end="weight_gradient", fused=False)
    assert (data.core, bias.core, leaf.core) == ("vector", "none", "vector")
    assert leaf.parts[0].streamed_bytes == 4 * RESIDUAL + 2 * 4 * HIDDEN


@given(slices())
def test_leaves_are_leaves_and_there_is_one_for_every_operator_with_parameters(part: ModelSlice) -> None:
    """No operator waits for a weight gradient, and every operator with parameters has one."""
    for layer in transformer_graph(part).layers:
        groups = fuse(layer)
        graph = passed(layer, "split")
        leaves = {i for i, o in enumerate(graph.operators) if o.name.endswith("weight_gradient")}
        assert not leaves & {e.source for e in graph.edges}
        weighted = [g for g in groups if any(layer.primitives[i].parameters for i in g)]
        assert len(leaves) == len(weighted)
        assert len(graph.operators) <= len(groups) + len(leaves)


@given(slices())
def test_every_backward_operator_follows_from_the_layers_end(part: ModelSlice) -> None:
    """Edges follow the order of operators, and all but the first operators have an incoming edge."""
    for layer in transformer_graph(part).layers:
        for form in ("paired", "split"):
            graph = passed(layer, form)
            assert all(e.source < e.target and e.nbytes >= 0 for e in graph.edges)
            first = {0, 1} if form == "split" else {0}
            assert set(range(len(graph.operators))) - first <= {e.target for e in graph.edges}
            assert len(graph.edges) == len({(e.source, e.target) for e in graph.edges})


@given(slices())
def test_fusion_never_adds_traffic_backward(part: ModelSlice) -> None:
    """A fused backward pass streams no more than an unfused one, in both forms."""
    for layer in transformer_graph(part).layers:
        for form in ("paired", "split"):
            assert streamed(passed(layer, form)) <= streamed(passed(layer, form, fused=False))


@given(slices())
def test_splitting_never_saves_traffic(part: ModelSlice) -> None:
    """Separate gradients read no less than joint ones."""
    for layer in transformer_graph(part).layers:
        assert streamed(passed(layer)) <= streamed(passed(layer, "split"))
