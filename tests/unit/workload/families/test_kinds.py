"""Blocks of several kinds: parameters, FLOPs and collectives, whole and sharded."""

from collections import defaultdict
from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.model import Model
from phaze.spec.settings import ExtractSettings
from phaze.workload.families.transformer import transformer_graph
from phaze.workload.lower.sharding import slice_model
from phaze.workload.models import extract_workload, library_workload
from phaze.workload.primitives import LayerGraph
from phaze.workload.workload import DIRECTIONS, Direction, Layer, Workload
from tests.unit.workload.examples import MODELS

SEQUENCE = 6144
ONE = Layout()
OF_TODAY = sorted(
    name
    for name, model in MODELS.items()
    if isinstance(model, Model) and (len(model.blocks) > 1 or model.experts or model.qk_norm != "none")
)


def model_of(name: str) -> Model:
    model = MODELS[name]
    assert isinstance(model, Model)
    return model


def layers_of(name: str, layout: Layout = ONE, sequence: int = SEQUENCE) -> dict[str, LayerGraph]:
    graph = transformer_graph(slice_model(model_of(name), sequence, layout, layout.bytes_per_element))
    return {layer.name: layer for layer in graph.layers}


def flops_of(layer: LayerGraph, *, attention: bool) -> int:
    gemms = [p.gemm for p in layer.primitives if p.gemm and p.attention == attention]
    return sum(2 * g.batch * g.m * g.k * g.n for g in gemms)


def sent(layer: Layer, direction: Direction) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = defaultdict(int)
    for one in layer.collectives(direction):
        found[one.kind, one.axis] += one.nbytes
    return found


@pytest.mark.parametrize("name", OF_TODAY)
def test_layers_have_the_parameters_of_the_model(name: str) -> None:
    """All parameters of the published model, once; multi-token prediction layers have a copy of the
    embedding.
    """
    model, found = model_of(name), library_workload(model_of(name), SEQUENCE, Layout())
    own = found.parameters() - found.parameters("tied")
    assert own == model.parameters + model.mtp_parameters
    copies = (model.tied_embeddings or model.mtp > 0) * model.hidden * model.vocabulary
    assert found.parameters("tied") == pytest.approx(copies, abs=3 * model.hidden)


@pytest.mark.parametrize("name", [n for n in OF_TODAY if not model_of(n).mamba and not model_of(n).delta])
def test_products_are_those_of_the_closed_form(name: str) -> None:
    """A causal mask leaves half of the scores, also for an indexer; windows leave the scores inside."""
    model = model_of(name)
    layers = layers_of(name)
    for kind, block in model.blocks.items():
        layer = layers[kind]
        index = [p for p in layer.primitives if p.name == "index_scores"]
        indexed = flops_of(replace(layer, primitives=tuple(index)), attention=False)
        found = flops_of(layer, attention=False) + (flops_of(layer, attention=True) - indexed) / 2
        expected = 2 * SEQUENCE * block.products(model.hidden, SEQUENCE, causal=True)
        assert found == pytest.approx(expected, rel=1e-3)


def test_a_state_space_multiplies_chunks_and_states() -> None:
    """A token interacts with its chunk in all groups and heads, and writes and reads states."""
    own = model_of("nemotron-3-nano-30b-a3b").mamba
    assert own is not None
    layer = layers_of("nemotron-3-nano-30b-a3b")["mamba"]
    projections = 2688 * (own.projected + own.inner)
    scan = own.chunk * (own.groups * own.state + own.inner) + 2 * own.inner * own.state
    assert flops_of(layer, attention=False) == 2 * SEQUENCE * (projections + scan)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "nemotron-3-nano-30b-a3b", "qwen3.5-35b-a3b"])
def test_a_study_takes_experts_and_scans(name: str) -> None:
    """Every operator has a core type, and tables contain everything that a study reads."""
    model = model_of(name).distinct()
    found = extract_workload(model, 512, ONE, ExtractSettings())
    assert Workload.of_tables(found.tables, found.graph) == found
    assert found.order == ("embedding", *model.blocks, *["mtp"] * model.mtp, "head")
    for layer in found.layers:
        cores = {o.core for way in DIRECTIONS for o in layer.pass_of(way).operators}
        assert cores <= {"tensor", "vector", "fused", "none"}


CUTS = {
    "qwen3-30b-a3b": [
        Layout(tp=2, sequence_parallel=True),
        Layout(ep=8, dp=8),
        Layout(cp=2),
        Layout(tp=2),
        Layout(cp=2, cp_kind="a2a"),
        Layout(cp=2, cp_kind="p2p"),
        Layout(cp=4, cp_kind="a2a+p2p:2"),
        Layout(tp=2, ep=8, dp=4),
    ],
    "deepseek-v3": [
        Layout(tp=2, sequence_parallel=True, ep=8, dp=4),
        Layout(tp=2, etp=2, ep=4, dp=4, sequence_parallel=True),
    ],
    "nemotron-3-nano-30b-a3b": [Layout(tp=2, sequence_parallel=True, ep=4, dp=2), Layout(cp=2)],
}
CASES = [(name, layout) for name, layouts in CUTS.items() for layout in layouts]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_ranks_together_do_what_one_does(name: str, layout: Layout) -> None:
    """FLOPs of experts, attention and scans add up over the ranks that share a microbatch; only the router is
    not sharded, without sequence parallelism.
    """
    whole, own = layers_of(name), layers_of(name, layout)
    ranks = layout.tp * layout.cp
    for kind in model_of(name).blocks:
        routers = [p.gemm for p in own[kind].primitives if p.name == "router" and p.gemm]
        again = sum(2 * g.m * g.k * g.n for g in routers) * (layout.tp - 1)
        again *= not layout.sequence_parallel
        for attention in (True, False):
            found = ranks * flops_of(own[kind], attention=attention)
            assert found - again * (not attention) == flops_of(whole[kind], attention=attention)
        experts = [sum(p.parameters for p in o[kind].primitives if p.group == "expert") for o in (own, whole)]
        slices = layout.etp if layout.sequence_parallel or layout.ep > 1 else layout.tp
        assert experts[0] * layout.ep * slices == experts[1]


def test_experts_send_their_rows_twice_in_each_direction() -> None:
    """T·k·h·w to the experts and back, in both passes; a load multiplies them, and the products."""
    layout = Layout(ep=8, dp=8, microbatch=2)
    layer = library_workload(model_of("qwen3-30b-a3b"), SEQUENCE, layout).layer("block")
    rows = 2 * SEQUENCE * 8 * 2048 * 2
    for direction in ("forward", "backward"):
        assert sent(layer, direction) == {("all_to_all", "ep"): 2 * rows}
    loaded = library_workload(model_of("qwen3-30b-a3b"), SEQUENCE, replace(layout, load="1.5")).layer("block")
    assert sent(loaded, "forward") == {("all_to_all", "ep"): 2 * 1.5 * rows}


def test_slices_of_experts_gather_and_scatter_rows() -> None:
    """All dispatched tokens of the etp ranks go to each of them, and sums return; tensor-parallel ranks
    gather and scatter once more, and dispatch only their own tokens.
    """
    layout = Layout(tp=2, etp=2, ep=4, dp=4, sequence_parallel=True)
    layer = library_workload(model_of("mixtral-8x7b"), SEQUENCE, layout).layer("block")
    rows, stream = SEQUENCE // 2 * 2 * 4096 * 2, SEQUENCE * 4096 * 2
    expected = {
        ("all_to_all", "ep"): 2 * rows,
        ("all_gather", "etp"): 2 * rows,
        ("reduce_scatter", "etp"): 2 * rows,
        ("all_gather", "tp"): stream,
        ("reduce_scatter", "tp"): stream,
    }
    assert sent(layer, "forward") == sent(layer, "backward") == expected


def test_ranks_with_the_same_tokens_dispatch_a_share_each_to_whole_experts() -> None:
    """Every rank drops the tokens of the others, and gathers the results (DeepSpeed, `drop_tokens`)."""
    layer = library_workload(model_of("qwen3-30b-a3b"), SEQUENCE, Layout(tp=2, ep=8, dp=4)).layer("block")
    rows, stream = SEQUENCE // 2 * 8 * 2048 * 2, SEQUENCE * 2048 * 2
    assert sent(layer, "forward")["all_to_all", "ep"] == 2 * rows
    assert sent(layer, "forward")["all_gather", "tp"] == stream
    assert sent(layer, "backward")["reduce_scatter", "tp"] == stream


def test_context_parallel_kinds_send_what_they_must() -> None:
    """A ring and a gather send (c - 1)/c of all keys and values, twice that backward; an exchange of heads
    sends queries, keys, values and results, once in each direction.
    """
    c, one = 4, SEQUENCE * 8 * 128 * 2
    for kind, name, size in (("all_gather", "all_gather", 2 * one), ("p2p", "send", 2 * one * (c - 1) // c)):
        layout = Layout(cp=c, cp_kind=kind)
        layer = library_workload(model_of("llama-3.1-8b"), SEQUENCE, layout).layer("block")
        assert sent(layer, "forward") == {(name, "cp"): size}
        assert sum(sent(layer, "backward").values()) == 2 * size
    layer = library_workload(model_of("llama-3.1-8b"), SEQUENCE, Layout(cp=c, cp_kind="a2a")).layer("block")
    exchanged = SEQUENCE // c * (2 * 32 + 2 * 8) * 128 * 2
    assert sent(layer, "forward") == sent(layer, "backward") == {("all_to_all", "cp"): exchanged}
    layout = Layout(cp=c, cp_kind="a2a+p2p:2")  # half of the heads; the other half of a sequence comes around
    layer = library_workload(model_of("llama-3.1-8b"), SEQUENCE, layout).layer("block")
    heads, ring = ("all_to_all", "cp-heads"), ("send", "cp-ring")
    assert sent(layer, "forward") == {heads: exchanged, ring: one // 2}
    assert sent(layer, "backward") == {heads: exchanged, ring: one}


REFUSED = {
    "ep must divide experts.count 128, got 3": ("qwen3-30b-a3b", Layout(ep=3, dp=3)),
    "etp must divide experts.width 768, got 5": ("qwen3-30b-a3b", Layout(etp=5, dp=5)),
    "etp must be tp 4 without sequence parallelism, got 2": ("qwen3-30b-a3b", Layout(tp=4, etp=2)),
    "cp: 64 must divide heads / tp 32": ("llama-3.1-8b", Layout(cp=128, cp_kind="a2a+p2p:64")),
    "cp: 16 must divide heads / tp 8": ("llama-3.1-8b", Layout(tp=4, cp=16, cp_kind="a2a")),
    "tensor: 16 must be > 0 and divide mamba.groups 8": ("nemotron-3-nano-30b-a3b", Layout(tp=16)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_cut_is_refused(message: str) -> None:
    name, layout = REFUSED[message]
    with pytest.raises(PhazeError, match=f"model {name}.*{message}"):
        layers_of(name, layout)


def test_ranks_that_share_heads_of_a_group_each_get_it() -> None:
    """Eight groups over tp 2 and cp 8: each of four groups goes to two ranks."""
    own = model_of("nemotron-3-nano-30b-a3b").mamba
    assert own is not None
    assert own.groups == 8
    model = library_workload(model_of("nemotron-3-nano-30b-a3b"), SEQUENCE, Layout(tp=2, cp=8))
    layer = next(layer for layer in model.layers if layer.name == "mamba")
    exchanged = sent(layer, "forward")["all_to_all", "cp"]
    before = own.projected // 2 + 2 * own.state * (8 - 4)
    assert exchanged == 2 * (SEQUENCE // 8) * (before + own.inner // 2)
