"""Primitives from calls of PyTorch's operators; the calls are handwritten, without PyTorch."""

from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.partition.profile import profile_graph
from phaze.spec.systems import load_cluster
from phaze.workload.families.traced.trace import UNFUSED, count, traced_workload
from phaze.workload.families.traced.translate import Call, Origin, SeenTensor, Trace, graph_of, translate
from phaze.workload.primitives import INPUT, LayerGraph
from phaze.workload.workload import Workload

B, N, WIDE = 2, 8, 5


def seen(number: int, *shape: int, origin: Origin = "made", floating: bool = True) -> SeenTensor:
    return SeenTensor(number, shape, 4 if floating else 8, origin, floating)


def traced(*calls: Call, results: tuple[int, ...]) -> LayerGraph:
    return translate(Trace(calls, results, 0, 0, 0))


X = seen(0, B, N, origin="input")
WEIGHT = seen(1, WIDE, N, origin="parameter")
BIAS = seen(2, WIDE, origin="parameter")
TRANSPOSED = seen(3, N, WIDE)
LINEAR = (
    Call("fc", "t", (WEIGHT,), (TRANSPOSED,)),
    Call("fc", "addmm", (BIAS, X, TRANSPOSED), (seen(4, B, WIDE),)),
)


def test_a_linear_layer_is_one_product_with_its_parameters() -> None:
    """The transposed weight is the weight; no gradient of the input is computed."""
    (product,) = traced(*LINEAR, results=(4,)).primitives
    assert (product.name, product.kind, product.parameters) == ("fc.addmm", "matmul", WIDE * N + WIDE)
    assert product.gemm is not None
    assert (product.gemm.batch, product.gemm.m, product.gemm.k, product.gemm.n) == (1, B, N, WIDE)
    assert [(x.source, x.gradient) for x in product.inputs] == [(INPUT, False)]


def test_a_shared_weight_belongs_to_its_first_reader() -> None:
    """Parameters are counted once, for any number of readers."""
    again = (
        Call("fc", "mm", (seen(4, B, WIDE), WEIGHT), (seen(5, B, N),)),
        Call("fc", "add", (seen(4, B, WIDE), BIAS), (seen(6, B, WIDE),)),
    )
    graph = traced(*LINEAR, *again, results=(5, 6))
    assert [p.parameters for p in graph.primitives if p.kind != "fork"] == [WIDE * N + WIDE, 0, 0]


def test_what_is_changed_in_place_is_read_after_the_change() -> None:
    """An in-place ReLU writes the tensor that it reads."""
    y = seen(4, B, WIDE)
    graph = traced(*LINEAR, Call("", "relu_", (y,), (y,)), Call("", "mul", (y, y), (seen(5, B, WIDE),)),
                   results=(5,))  # fmt: skip
    assert [p.kind for p in graph.primitives] == ["matmul", "relu", "fork", "mul"]
    assert [p.name for p in graph.primitives] == ["fc.addmm", "model.relu", "model.relu_fork", "model.mul"]


def test_only_what_the_results_need_is_there() -> None:
    """A detached copy, and results computed from it, are not part of the model."""
    y, aside = seen(4, B, WIDE), seen(5, B, WIDE)
    graph = traced(*LINEAR, Call("", "detach", (y,), (aside,)), Call("", "exp", (y,), (seen(6, B, WIDE),)),
                   results=(4,))  # fmt: skip
    assert [p.name for p in graph.primitives] == ["fc.addmm"]


def test_random_masks_are_constants_and_products_with_them_dropout() -> None:
    """PyTorch draws a mask separately; a mask with one number per sample scales, as in stochastic depth."""
    y, mask, each = seen(4, B, WIDE), seen(5, B, WIDE), seen(6, B, 1)
    calls = (
        Call("drop", "empty_like", (y,), (mask,)),
        Call("drop", "bernoulli_", (mask,), (mask,)),
        Call("drop", "mul", (y, mask), (seen(7, B, WIDE),)),
        Call("path", "new_empty", (seen(7, B, WIDE),), (each,)),
        Call("path", "mul", (seen(7, B, WIDE), each), (seen(8, B, WIDE),)),
    )
    graph = traced(*LINEAR, *calls, results=(8,))
    assert [(p.kind, p.constant_bytes) for p in graph.primitives[1:]] == [
        ("dropout", 4 * B * WIDE),
        ("scale", 4 * B),
    ]


def test_a_lookup_reads_indices_and_owns_its_table() -> None:
    """Token ids have no gradient and precede all operators."""
    ids = seen(0, B, N, origin="input", floating=False)
    table = seen(1, 100, 4, origin="parameter")
    (lookup,) = traced(Call("word", "embedding", (table, ids), (seen(2, B, N, 4),)), results=(2,)).primitives
    assert (lookup.kind, lookup.elements, lookup.parameters) == ("lookup", B * N * 4, 400)
    assert lookup.constant_bytes == 8 * B * N


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_the_product_of_its_unrolled_input(groups: int) -> None:
    """Groups are independent products."""
    x, out = seen(0, B, 6, 8, 8, origin="input"), seen(2, B, 4, 4, 4)
    weight = seen(1, 4, 6 // groups, 3, 3, origin="parameter")
    (conv,) = traced(Call("conv", "convolution", (x, weight), (out,)), results=(2,)).primitives
    gemm = conv.gemm
    assert gemm is not None
    assert (gemm.batch, gemm.m, gemm.k, gemm.n) == (groups, B * 16, 6 // groups * 9, 4 // groups)
    assert gemm.unrolled == max(0, B * 16 * 54 - B * 6 * 64)


def test_pieces_of_a_tensor_are_a_split() -> None:
    """Queries, keys and values share the gradient of the tensor that they are split from."""
    y = seen(4, 3, B, N)
    pieces = tuple(seen(5 + i, B, N) for i in range(3))
    graph = traced(
        Call("", "clone", (X,), (y,)),
        Call("", "unbind", (y,), pieces),
        Call("", "add", pieces[:2], (seen(8, B, N),)),
        Call("", "mul", (seen(8, B, N), pieces[2]), (seen(9, B, N),)),
        results=(9,),
    )
    assert [p.kind for p in graph.primitives] == ["rearrange", "split", "add", "mul"]
    assert [(x.source, x.piece) for x in graph.primitives[2].inputs] == [(1, 0), (1, 1)]


def test_unknown_operators_are_elementwise_or_reductions() -> None:
    """An operator with more output than input cannot be classified."""
    y = seen(4, B, WIDE)
    (_, exp, std) = traced(
        *LINEAR,
        Call("a", "exp", (y,), (seen(5, B, WIDE),)),
        Call("a", "std", (seen(5, B, WIDE),), (seen(6, B),)),
        results=(6,),
    ).primitives
    assert (exp.kind, std.kind) == ("scale", "average_pool")
    with pytest.raises(PhazeError, match="a: operator fold of PyTorch is not known to phaze"):
        traced(*LINEAR, Call("a", "fold", (y,), (seen(5, B, 9 * WIDE),)), results=(5,))
    with pytest.raises(PhazeError, match="conv: transposed convolutions are not known"):
        traced(
            Call("conv", "convolution",
                 (seen(0, B, 6, 8, 8, origin="input"), seen(1, 6, 4, 3, 3, origin="parameter")),
                 (seen(2, B, 4, 8, 8),)),
            results=(2,),
        )  # fmt: skip


def test_products_must_take_what_pytorch_counts() -> None:
    """Products inside a fused operator are not visible, which is an error and not a smaller model."""
    trace = Trace(LINEAR, (4,), 45, 2 * B * N * WIDE, 0)
    assert graph_of(trace) == traced(*LINEAR, results=(4,))
    with pytest.raises(PhazeError, match="take 160 FLOPs forward, PyTorch counts 200: phaze does not see"):
        graph_of(replace(trace, forward_flops=200))


def test_a_traced_graph_can_be_profiled() -> None:
    """Its operators have times on a device like those of a spec's graph; views take no time."""
    y, flat = seen(4, B, WIDE), seen(5, B * WIDE)
    whole = traced(*LINEAR, Call("", "view", (y,), (flat,)), Call("", "gelu", (flat,), (seen(6, B * WIDE),)),
                   results=(6,))  # fmt: skip
    graph = profile_graph(whole, load_cluster("titan-v-ethernet")[1])
    assert graph.names == ("fc.addmm", "model.view", "model.gelu")
    assert [time > 0 for time in graph.forward_s] == [True, False, True]
    assert graph.parameter_bytes.tolist() == [4 * (WIDE * N + WIDE), 0, 0]
    assert graph.edges.tolist() == [[0, 1], [1, 2]]


def test_a_traced_module_is_a_workload_of_one_layer() -> None:
    """Its operators, parameters and tables have the usual form."""
    trace = Trace(LINEAR, (4,), WIDE * N + WIDE, 2 * B * N * WIDE, 2 * B * N * WIDE)
    found = traced_workload(trace, "linear", UNFUSED)
    assert count(found) == (WIDE * N + WIDE, 2 * B * N * WIDE, 2 * B * N * WIDE)
    assert Workload.of_tables(found.tables, found.graph) == found
