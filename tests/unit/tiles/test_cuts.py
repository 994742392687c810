"""Stages that begin inside a layer: sums of all cuts, tensors that cross, and the split by compute."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.models import load_model_named
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles.chains import ModelChain
from phaze.tiles.chip import load_chip
from phaze.tiles.cuts import CutLayer, bounded_operators
from phaze.tiles.lowering import Cut, ModelLayer, model_layers
from phaze.tiles.on_tiles import TiledOutcome, outcomes, programs_of
from phaze.tiles.operators import CutOperator
from phaze.tiles.runs import runs_of
from phaze.tiles.stages import by_compute

CHIP = load_chip("wafer")
TOKENS, SAMPLES, DRAWS = 256, 8, 5
LAYOUTS = {
    "one tile": Layout(),
    "replicas": Layout(dp=4),
    "tensor": Layout(tp=2, dp=2),
    "experts": Layout(tp=2, dp=4, ep=4),
}
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2", "nemotron-3-nano-30b-a3b", "gpt2", "resnet-50")


def chain_of(name: str, degrees: bool = False, **fields: object) -> ModelChain:
    model = load_model_named(name)
    sequence = 1 if name == "resnet-50" else TOKENS
    return ModelChain(model, sequence, () if degrees else None, parts="operators", **fields)  # type: ignore[arg-type]


def sums(cuts: list[Cut]) -> dict[str, float]:
    """Return the sums of everything that the operators of some cuts compute, move, hold and send."""
    shares = [operator.share for cut in cuts for operator, _ in cut if isinstance(operator, CutOperator)]
    assert len(shares) == sum(map(len, cuts))
    total = {
        field: sum(getattr(share, field) or 0.0 for share in shares)
        for field in (
            "flops",
            "backward_flops",
            "weights",
            "inputs",
            "outputs",
            "vector_cycles",
            "backward_cycles",
        )
    }
    for phase in ("forward", "backward", "update"):
        sent = (reduction.elements for share in shares for reduction in share.along(phase))
        total[phase] = sum(sent)
    return total


def stored(cuts: list[Cut]) -> float:
    operators = [operator for cut in cuts for operator, _ in cut]
    return sum(operator.share.stored or 0.0 for operator in operators if isinstance(operator, CutOperator))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [*LAYOUTS, "degrees"])
def test_any_cut_has_the_sums_of_the_uncut_model(name: str, kind: str) -> None:
    """Only tensors that operators on both sides store for the backward pass are counted on both sides."""
    chain, layout = chain_of(name, kind == "degrees"), LAYOUTS.get(kind, Layout(dp=4))
    if kind == "experts" and not getattr(chain.model, "experts", None):
        layout = replace(layout, ep=1)
    if name == "resnet-50" and layout.tp > 1:
        layout = replace(layout, tp=1)
    uncut = [chain.cut(CHIP, range(chain.count), SAMPLES, layout, 4)]
    rng = np.random.default_rng(58)
    for _ in range(DRAWS):
        ends = sorted(rng.choice(np.arange(1, chain.count), 7, replace=False).tolist())
        parts = [range(*ends) for ends in pairwise([0, *ends, chain.count])]
        cuts = [chain.cut(CHIP, part, SAMPLES, layout, 4) for part in parts]
        assert [pair[0].name for cut in cuts for pair in cut] == [pair[0].name for pair in uncut[0]]  # type: ignore[union-attr]
        assert sums(cuts) == pytest.approx(sums(uncut), rel=1e-12)
        repeated = stored(cuts) - stored(uncut)
        assert repeated > -1e-9 * stored(uncut)
    order = chain.whole.order
    firsts = {order.index(name) for name in order}
    for part, (layer, _) in enumerate(chain.positions):
        if layer in firsts:
            assert chain.cut(CHIP, range(part, part + 1), SAMPLES, layout, 4), "a stage has operators"
    assert sum(chain.loads) == pytest.approx(sum(replace(chain, parts="layers").loads), rel=1e-12)


def test_tensors_behind_each_operator_of_a_block_of_llama() -> None:
    """Closed form, in elements per token: h hidden, kv wide keys and values, f feed-forward, s tokens.

    The residual passes all operators between its producer and the addition.
    """
    hidden, shared, wide, heads = 4096, 1024, 14336, 32
    for tensor, sequence_parallel in ((1, False), (4, False), (4, True)):
        layout = Layout(microbatch=SAMPLES, tp=tensor, sequence_parallel=sequence_parallel)
        model = load_model_named("llama-3.1-8b")
        layer = CutLayer(
            model_layers(model, TOKENS, layout).layers["block"],
            model_layers(model, TOKENS, Layout(microbatch=SAMPLES)).layers["block"],
        )
        # Sequence parallelism shards what Megatron's layout copies on every rank.
        copied = hidden / (tensor if sequence_parallel else 1)
        scores = heads * TOKENS / tensor
        expected = {
            "attention_norm": 2 * copied,
            "value": 2 * copied + shared / tensor,
            "query+query_rotary": 2 * copied + (shared + hidden) / tensor,
            "key+key_rotary": copied + (2 * shared + hidden) / tensor,
            "scores+scores_scale+scores_mask": copied + shared / tensor + scores,
            "softmax": copied + shared / tensor + scores,
            "context": copied + hidden / tensor,
            "attention_out+attention_add": copied,
            "feed_forward_norm": 2 * copied,
            "feed_forward_in+silu": 2 * copied + wide / tensor,
            "feed_forward_up+feed_forward_gate": copied + wide / tensor,
        }
        names = [operator.forward.name for operator in bounded_operators(layer.whole)]
        assert names[:-1] == [*expected]
        for number, elements in enumerate(expected.values()):
            for gradient in (False, True):
                passed = layer.passed_elements(number, gradient=gradient)
                assert passed == pytest.approx(elements * TOKENS * SAMPLES, rel=1e-12)


def test_operators_on_both_sides_store_a_tensor_that_both_need() -> None:
    """The products of queries, keys and values store their common input, in one stage once."""
    chain = chain_of("llama-3.1-8b")
    layer = CutLayer(chain.whole.layers["block"], chain.whole.layers["block"])
    names = [operator.forward.name for operator in bounded_operators(layer.whole)]
    number, end = names.index("query+query_rotary"), len(names)
    whole = layer.layer.operators[0].forward
    assert whole.name == "input_fork"
    tokens = 960 * TOKENS
    assert layer.repeated_elements(range(number, end)) == 4096 * tokens
    assert layer.repeated_elements(range(number + 1, number + 2)) == 4096 * tokens
    # Scores need the queries, which the rotation passes on, and the gate needs its own factors only.
    assert layer.repeated_elements(range(names.index("attention_out+attention_add"), end)) == 0
    assert layer.repeated_elements(range(end)) == 0


def test_a_residual_crosses_every_boundary_between_its_ends() -> None:
    """Brute force: a tensor crosses all boundaries from its producer to its last reader."""
    for name in ("llama-3.1-8b", "deepseek-v2", "qwen3-30b-a3b"):
        whole = model_layers(load_model_named(name), TOKENS, Layout(microbatch=SAMPLES))
        for layer in whole.layers.values():
            cut = CutLayer(layer, layer)
            for number in range(len(bounded_operators(layer)) - 1):
                assert cut.passed_elements(number, gradient=False) == crossing(layer, cut, number)


def crossing(layer: ModelLayer, cut: CutLayer, number: int) -> float:
    """Return the elements of all tensors that exist before a boundary and are read behind it."""
    primitives = layer.graph.primitives
    place = {i: p for p, op in zip(cut.places, layer.operators, strict=True) for i in op.indices}
    behind = {
        tensor for index, primitive in enumerate(primitives) if place.get(index, -1) > number
        for tensor in primitive.inputs
    }  # fmt: skip
    origins: dict[tuple[int, int], int] = {}
    for tensor in behind:
        origin = tensor
        # Views of the same size are the tensor itself.
        while origin.source >= 0 and primitives[origin.source].traits.role == "view":
            (viewed,) = primitives[origin.source].inputs
            if viewed.elements != origin.elements:
                break
            origin = viewed
        producer = origin.source
        while producer >= 0 and producer not in place:
            producer = primitives[producer].inputs[0].source
        if place.get(producer, -1) <= number:
            origins[origin.source, origin.piece] = origin.elements
    return float(sum(origins.values()))


def simulated(**fields: object) -> TiledOutcome:
    shared = {
        "system": "wafer", "model": "llama-3.1-8b", "batch": 80, "show": "table", "sequence": TOKENS,
        "microbatches": [2], "tensor": [4], "dram": "unlimited",
    }  # fmt: skip
    point = TiledPoint.parse({**shared, **fields}, "x")
    ((_, outcome),) = outcomes("x", point, load_model_named("llama-3.1-8b"), CHIP)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"recompute": "always"}, {"inference": "decode"}, {"experts": 2}])
def test_a_cut_between_layers_is_that_of_the_layers(fields: dict[str, object]) -> None:
    """Every figure of the run is equal if stages of operators begin where stages of layers begin."""
    tiles = 320 // 4
    layers = simulated(stages=[[9, tiles], [8, tiles], [8, tiles], [9, tiles]], **fields)
    counts = (1 + 8 * 12, 8 * 12, 8 * 12, 8 * 12 + 4)
    stages = [[count, tiles] for count in counts]
    operators = simulated(stages=stages, stage_parts="operators", **fields)
    assert operators.row == layers.row


@pytest.mark.slow
def test_stages_inside_layers_compute_as_much_and_the_slowest_computes_no_more() -> None:
    layers, operators = simulated(stages=20), simulated(stages=20, stage_parts="operators")
    assert operators.run.flops == layers.run.flops
    work_s = [outcome.carried.work_s[:20] for outcome in (layers, operators)]
    assert work_s[1].sum() == pytest.approx(work_s[0].sum(), rel=1e-9)
    assert operators.run.chain.layer_count == layers.run.chain.count == 34
    assert sum(operators.run.parts_of) == 1 + 32 * 12 + 4


def test_stages_that_recompute_hold_what_enters_them() -> None:
    """A stage of blocks holds the residual of other microbatches; in a block, all tensors that cross."""
    point = TiledPoint.parse(
        {"system": "wafer", "model": "llama-3.1-8b", "batch": 40, "show": "table", "sequence": TOKENS,
         "microbatches": [4], "tensor": [8], "dram": "unlimited", "recompute": "always",
         "stages": [[9, 80], [8, 80], [8, 80], [9, 80]]},
        "x",
    )  # fmt: skip
    ((_, run),) = runs_of("x", point, load_model_named("llama-3.1-8b"), CHIP)
    programs = programs_of(CHIP, run)
    for program, in_flight in zip(programs[1:], (3, 2, 1), strict=True):
        assert program.entering_bytes == 2 * 4096 * TOKENS
        stored_bytes = sum(sizes.stash for sizes in program.sizes) + program.sizes[-1].outputs
        assert program.held_bytes[1] == stored_bytes + (in_flight - 1) * 2 * 4096 * TOKENS


def test_ties_of_compute_go_to_the_cut_with_the_fewest_crossing_elements() -> None:
    """Brute force over all splits: first the least worst load, then the fewest elements."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        count, stages = int(rng.integers(3, 9)), int(rng.integers(1, 4))
        loads = rng.integers(0, 4, count).astype(float).tolist()
        passed = rng.integers(0, 9, count).astype(float).tolist()
        tiles = rng.integers(1, 3, stages).tolist()

        def cost(ends: tuple[int, ...]) -> tuple[float, float]:
            edges = [*pairwise([0, *ends, count])]  # noqa: B023
            worst = max(sum(loads[a:b]) / n for (a, b), n in zip(edges, tiles, strict=True))  # noqa: B023
            return worst, sum(passed[end - 1] for end in ends)  # noqa: B023

        best = min(map(cost, combinations(range(1, count), stages - 1)))
        split = by_compute(loads, tiles, passed)
        assert cost(tuple(np.cumsum(split)[:-1].tolist())) == pytest.approx(best)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stages": [[300, 160], [80, 160]]}, "all parts of the model, 389 operators: 1 × embedding"),
        ({"stages": [[300, 160], [80, 160]]}, "got 380 in 2 of 2 stages; make the sum 389"),
        ({"stages": [[389, 160], [0, 160]]}, "stages: must be a number of at least 1, or layers"),
        ({"stages": [[389]]}, "tiles of every stage, at least 1 each"),
        ({"stage_parts": "products"}, "stage_parts: should be 'layers' or 'operators', got 'products'"),
        ({"operators": "palm"}, "operators: must be all with degrees, experts or stage_parts operators"),
    ],
)  # fmt: skip
def test_impossible_stages_of_operators_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError) as refused:
        simulated(**{"stage_parts": "operators", **fields})
    assert message in str(refused.value)
