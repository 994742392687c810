"""The tables of extract: keys, ids of equal work, and independence of other inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze import tables
from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.architecture import load_technology
from phaze.spec.models import load_model
from phaze.spec.settings import ExtractSettings
from phaze.spec.vision import SemanticFpn
from phaze.workload.kinds import COLLECTIVES, KINDS
from phaze.workload.lower.sharding import ModelSlice
from phaze.workload.models import build_graph, extract_graph, extract_workload, lower
from phaze.workload.primitives import LayerRun, ModelGraph
from phaze.workload.workload import DIRECTIONS, TABLES, Workload
from tests.oracles.parameters import training_head_parameters
from tests.unit.workload.examples import NAMES, POINTS, SEQUENCES, SPECS, VISION, model_of, slices

SETTINGS = {
    "default": ExtractSettings(),
    "split": ExtractSettings(backward="split"),
    "unfused": ExtractSettings(fusion=False),
    "unfused split": ExtractSettings(backward="split", fusion=False),
}


def extract(
    name: str, tensor: int = 1, microbatch: int = 1, settings: ExtractSettings = SETTINGS["default"]
) -> Workload:
    """Extract a model of config/models."""
    return extract_workload(
        model_of(name), SEQUENCES.get(name, 1024), Layout(tp=tensor, microbatch=microbatch), settings
    )


@pytest.mark.parametrize(("name", "tensor"), [(name, t) for name, t in POINTS if t > 1])
def test_every_workload_gives_four_tables(name: str, tensor: int) -> None:
    """Tables of every shardable model are valid, and FLOPs are proportional to the microbatch."""
    found = extract(name, tensor, 2)
    for key, table in found.tables.items():
        assert tables.TABLES[key].check(table).equals(table)
        assert set(table["model"]) == {name}
        assert set(table["layout"]) == {f"tp{tensor}-b2"}
    assert list(found.tables["layers"]["layer"]) == ["block", "embedding", "head"]
    one = extract(name, tensor).layer("block").forward.tensor_flops
    assert found.layer("block").forward.tensor_flops == 2 * one


def test_the_number_of_blocks_changes_only_the_graph() -> None:
    """Tables of layers are equal for any number of blocks; only the graph counts them."""
    model = model_of("gpt2")
    deeper = model.model_copy(update={"layers": 1})
    one, other = extract("gpt2"), extract_workload(deeper, 1024, Layout(), SETTINGS["default"])
    assert one.layers == other.layers
    for name in TABLES:
        pd.testing.assert_frame_equal(one.tables[name], other.tables[name])
    assert list(extract_graph(model)["count"]) == [1, 12, 1]
    assert list(extract_graph(deeper)["count"]) == [1, 1, 1]


def test_a_graph_is_a_chain_of_runs() -> None:
    """Embedding, blocks, head, in this order; a model without head layers has no head."""
    graph = extract_graph(model_of("llama2-70b"))
    assert list(graph["layer"]) == ["embedding", "block", "head"]
    assert list(graph["position"]) == [0, 1, 2]
    encoder = model_of("bert-large").model_copy(update={"head": "none", "pooler": False})
    assert list(extract_graph(encoder)["layer"]) == ["embedding", "block"]


def test_without_head_the_base_model_is_left() -> None:
    """No logits and no loss; a final norm and a pooler belong to the base model."""
    found = extract("gpt2", settings=ExtractSettings(head=False)).tables["operators"]
    forward = found[(found["layer"] == "head") & (found["direction"] == "forward")]
    assert list(forward["name"]) == ["final_norm"]
    assert list(extract_graph(model_of("gpt2"), head=False)["layer"]) == ["embedding", "block", "head"]
    plain = model_of("bert-large").model_copy(update={"pooler": False})
    assert list(extract_graph(plain, head=False)["layer"]) == ["embedding", "block"]


def test_without_gradients_of_weights_products_with_weights_run_once_backward() -> None:
    """One forward, one backward; attention's products have two operands with gradients."""
    whole = extract("gpt2").tables["layers"].set_index("layer").loc["block"]
    for backward in ("paired", "split"):
        chosen = ExtractSettings(backward=backward, weight_gradients=False)  # type: ignore[arg-type]
        found = extract("gpt2", settings=chosen)
        assert "weight_gradient" not in set(found.tables["parts"]["role"])
        mine = (
            found.tables["operators"][(found.tables["operators"]["layer"] == "block")]
            .groupby("direction")["tensor_flops"]
            .sum()
        )
        attention = 2 * 2 * 12 * 1024 * 1024 * 64
        assert mine["forward"] == whole["forward_tensor_flops"]
        assert mine["backward"] == mine["forward"] + attention


def test_activations_may_be_counted_several_times() -> None:
    once, sixfold = (extract("gpt2", settings=ExtractSettings(activation_factor=f)) for f in (1, 6))
    assert (
        sixfold.tables["layers"]["activation_bytes"] == 6 * once.tables["layers"]["activation_bytes"]
    ).all()
    pd.testing.assert_frame_equal(once.tables["operators"], sixfold.tables["operators"])


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_head_in_layers_is_repeated_with_every_block(tensor: int) -> None:
    """The products of block and head are those of one layer, which has no parameters of the logits."""
    apart = extract("megatron-gpt-2.5b", tensor)
    joined = extract("megatron-gpt-2.5b", tensor, settings=ExtractSettings(head="in-layers"))
    assert joined.counts == {"embedding": 1, "block": 54}
    block, head, both = apart.layer("block"), apart.layer("head"), joined.layer("block")
    logits = 2 * 1024 * 1920 * 51200 // tensor
    assert head.forward.tensor_flops == logits
    assert both.forward.tensor_flops == block.forward.tensor_flops + logits
    assert both.backward.tensor_flops == block.backward.tensor_flops + 2 * logits
    # The copies share the embedding's matrix.
    assert both.parameters == block.parameters + 2 * 1920  # of the final norm
    assert both.output_bytes == block.output_bytes
    assert len(extract_graph(model_of("megatron-gpt-2.5b"), head="in-layers")) == len(joined.graph) == 2


def test_a_program_may_drop_the_microbatch_of_linear_layers() -> None:
    """Products with weights take one sample; attention and vector operations take all four."""
    whole, dropped = (
        extract("bert-large", 1, 4, ExtractSettings(whole_microbatch=whole)).layer("block").forward
        for whole in (True, False)
    )
    tokens, width, sequence = 4 * 512, 1024, 512
    attention = 2 * 2 * tokens * sequence * width
    assert whole.tensor_flops == 2 * tokens * 12 * width**2 + attention
    assert dropped.tensor_flops == 2 * tokens * 12 * width**2 // 4 + attention
    assert dropped.vector_flops == whole.vector_flops


def test_two_extractions_are_equal() -> None:
    """Ids and order depend on the work only."""
    one, two = extract("llama2-7b"), extract("llama2-7b")
    assert one == two
    for name in TABLES:
        pd.testing.assert_frame_equal(one.tables[name], two.tables[name])


def test_equal_work_has_one_id() -> None:
    """The two norms of a block, the final norm, and both sums after an all-reduce are the same work."""
    operators = extract("megatron-gpt-2.5b", 4).tables["operators"]
    forward = operators[operators["direction"] == "forward"].set_index(["layer", "name"])["work"]
    norms = {
        forward["block", "attention_norm"],
        forward["block", "feed_forward_norm"],
        forward["head", "final_norm"],
    }
    assert len(norms) == 1
    sums = [f"{n}_out_bias+{n}_dropout+{n}_add" for n in ("attention", "feed_forward")]
    assert forward["block", sums[0]] == forward["block", sums[1]]


def test_ids_of_work_are_those_of_the_parts() -> None:
    """Every operator but the no-ops has parts, every id is used, and ids are unique."""
    found = extract("bert-large")
    works = set(found.tables["operators"]["work"]) - {-1}
    assert works == set(found.tables["parts"]["work"]) == set(range(len(works)))
    parts = found.tables["parts"].drop(columns=["model", "layout"]).groupby("work")
    content = [tuple(map(tuple, group.drop(columns="work").to_numpy())) for _, group in parts]
    assert len(content) == len(set(content))


def test_flops_and_layers_agree_with_the_operators() -> None:
    """The FLOPs of a layer are those of its forward operators, its activations their stored tensors."""
    found = extract("gpt2", microbatch=2)
    forward = found.tables["operators"][found.tables["operators"]["direction"] == "forward"]
    sums = forward.groupby("layer")[["tensor_flops", "vector_flops", "stashed_bytes"]].sum()
    layers = found.tables["layers"].set_index("layer")
    assert list(sums["tensor_flops"]) == list(layers["forward_tensor_flops"])
    assert list(sums["vector_flops"]) == list(layers["forward_vector_flops"])
    assert list(sums["stashed_bytes"]) == list(layers["activation_bytes"])


def test_layers_pass_on_the_residual_stream() -> None:
    """The first layer receives nothing and the last sends nothing; between them b s h elements, in full on
    every rank.
    """
    layers = extract("megatron-gpt-2.5b", 4, 2).tables["layers"].set_index("layer")
    stream = 2 * 2 * 1024 * 1920
    assert list(layers.loc[["embedding", "block", "head"], "input_bytes"]) == [0, stream, stream]
    assert list(layers.loc[["embedding", "block", "head"], "output_bytes"]) == [stream, stream, 0]


def test_parameters_are_those_of_the_slice() -> None:
    """Parameters times their size are the weights; with sharding every layer is tensor parallel."""
    whole, part = (extract("megatron-gpt3-175b", t).tables["layers"].set_index("layer") for t in (4, 8))
    assert (whole["parameter_bytes"] == 2 * whole["parameters"]).all()
    assert (part["parameters"] < whole["parameters"]).all()
    assert part["tensor_parallel"].all()
    assert not extract("gpt2").tables["layers"]["tensor_parallel"].any()


def test_wider_elements_double_the_weights() -> None:
    """Bytes per element scale weights and edges; FLOPs do not change."""
    half, single = (
        extract("gpt2", settings=ExtractSettings(bytes_per_element=w)).tables["layers"] for w in (2, 4)
    )
    assert (single["parameter_bytes"] == 2 * half["parameter_bytes"]).all()
    assert (single["forward_tensor_flops"] == half["forward_tensor_flops"]).all()


def test_layers_count_primitives_whatever_is_fused() -> None:
    """The operators of a layer are counted before fusion."""
    fused, plain = (extract("gpt2", settings=SETTINGS[s]) for s in ("default", "unfused"))
    assert list(fused.tables["layers"]["operators"]) == list(plain.tables["layers"]["operators"])
    forward = plain.tables["operators"][
        (plain.tables["operators"]["direction"] == "forward")
        & (plain.tables["operators"]["layer"] == "block")
    ]
    assert len(forward) == plain.tables["layers"].set_index("layer").loc["block", "operators"] == 32


def test_kinds_are_keys_of_the_cycle_tables() -> None:
    """Every vector operation has known cycles, forward and backward."""
    cycles = load_technology("22nm").vector_cycles
    for kind in KINDS.values():
        assert set(kind.forward) - set(COLLECTIVES) <= set(cycles.forward)
        assert set(kind.backward) <= set(cycles.backward)


def test_specs_are_the_workloads_of_the_evaluation(shared_data: Path) -> None:
    """Our specs have the layers, heads and widths of Table 2."""
    workloads = yaml.safe_load((shared_data / "hardware" / "paper_setup.yaml").read_text())["workloads"]
    assert set(workloads) <= set(NAMES)
    for name, published in workloads.items():
        model = model_of(name)
        assert [model.layers, model.heads, model.hidden] == [
            published[k] for k in ("layers", "heads", "hidden")
        ]
        model.check_sequence(published["seq"], name)
        for width in published["tmp"]:
            model.check_tensor_width(width, name)


@given(chosen=st.sampled_from(list(SETTINGS.values())), part=slices())
@settings(max_examples=30)
def test_tables_of_random_models_hold_their_invariants(chosen: ExtractSettings, part: ModelSlice) -> None:
    """Whatever model and settings: contracts hold, work is consistent, and every operator is connected.

    Only what the layer after hands a gradient to may stand alone: the leaf of the last operator, in split
    form.
    """
    found = extract_workload(part.model, part.sequence, part.layout, chosen)
    core = found.tables["operators"][found.tables["operators"]["work"] >= 0].groupby("work")["core"].nunique()
    assert (core == 1).all()
    parts = found.tables["parts"].groupby("work")["core"].nunique()
    assert (parts == 1).all()
    assert set(found.tables["operators"]["work"]) - {-1} == set(found.tables["parts"]["work"])
    for (layer, direction), operators in found.tables["operators"].groupby(["layer", "direction"]):
        edges = found.tables["edges"][
            (found.tables["edges"]["layer"] == layer) & (found.tables["edges"]["direction"] == direction)
        ]
        alone = set(operators["operator"]) - set(edges["source"]) - set(edges["target"])
        first = {0, 1} if (direction, chosen.backward) == ("backward", "split") else {0}
        assert alone <= first
        assert len(alone) <= 1 or len(operators) == 2


def test_the_model_is_its_layers_times_their_number() -> None:
    """Parameters include the head's copy of the tied embedding; FLOPs and activations add up over all
    layers.
    """
    found = extract("gpt2")
    assert found.parameters() == 124_439_808 + 768 * 50257
    block = 24 * 1024 * 768**2 + 4 * 1024**2 * 768
    assert found.layer("block").forward.tensor_flops == block
    flops = sum(found.counts[layer.name] * layer.forward.tensor_flops for layer in found.layers)
    assert flops == 12 * block + 2 * 1024 * 768 * 50257
    kept = 34 * 1024 * 768 + 5 * 12 * 1024**2
    stashed = sum(found.counts[layer.name] * layer.activation_bytes for layer in found.layers)
    assert stashed == 12 * kept + 1024 * 768 + 2 * 1024 * (2 * 768 + 50257)


@pytest.mark.parametrize(
    ("name", "tensor", "chosen"),
    [
        ("gpt2", 1, SETTINGS["unfused"]),
        ("megatron-bert", 4, SETTINGS["split"]),
        ("llama2-70b", 8, SETTINGS["default"]),
    ],
)
def test_a_workload_from_tables_is_the_one_from_the_spec(
    name: str, tensor: int, chosen: ExtractSettings
) -> None:
    found = extract(name, tensor, 2, chosen)
    assert Workload.of_tables(found.tables, found.graph) == found


@pytest.mark.parametrize("name", sorted(VISION))
def test_a_workload_of_images_from_tables_is_the_one_from_the_spec(name: str) -> None:
    """Chains of many kinds of layers, each kind with its own runs."""
    model = load_model(SPECS / f"{name}.yaml")
    found = extract_workload(model, model.usual_sequence, Layout(microbatch=2), SETTINGS["default"])
    if isinstance(model, SemanticFpn):
        with pytest.raises(PhazeError, match="is not a chain of layers"):
            extract_graph(model)
        return
    pd.testing.assert_frame_equal(found.graph, extract_graph(model))
    assert Workload.of_tables(found.tables, found.graph) == found


def test_a_model_that_alternates_two_kinds_of_block_keeps_its_order() -> None:
    """Any sequence of layers, including repeated kinds: tables, counts, parameters and unrolled graphs."""
    small, large = (build_graph(model_of(name), 128, Layout(), 2).layers[1] for name in ("gpt2", "llama2-7b"))
    one, other = replace(small, name="block"), replace(large, name="gated")
    runs = (*3 * (LayerRun("block"), LayerRun("gated", 2)), LayerRun("block", 4))
    graph = ModelGraph((one, other), runs)
    found = lower(graph, "alternating", Layout(), SETTINGS["default"])
    again = Workload.of_tables(found.tables, found.graph)
    assert again == found
    assert again.runs == runs
    assert found.counts == {"block": 7, "gated": 6}
    parameters = [sum(p.parameters for p in layer.primitives) for layer in (one, other)]
    assert found.parameters() == 7 * parameters[0] + 6 * parameters[1]
    names = [p.name.partition(".")[0] for p in graph.unroll().primitives]
    order = [
        "block-1",
        "gated-1",
        "gated-2",
        "block-2",
        "gated-3",
        "gated-4",
        "block-3",
        "gated-5",
        "gated-6",
    ]
    assert list(dict.fromkeys(names)) == [*order, *(f"block-{i}" for i in range(4, 8))]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_by_group_are_the_published_ones(name: str) -> None:
    """Lookup tables are `embedding`; the head's copy of one is `tied`, and not counted as more parameters."""
    model = model_of(name)
    found = extract_workload(model, 128, Layout(), SETTINGS["default"])
    copied = model.tied_embeddings and model.head != "none"
    tables_ = model.word_width * model.vocabulary + model.hidden * (model.position_rows + model.token_types)
    assert found.parameters("tied") == (model.word_width * model.vocabulary if copied else 0)
    assert found.parameters("embedding") == tables_
    assert found.parameters("expert") == 0
    counted = found.parameters("dense", "embedding", "expert")
    assert counted == model.parameters + training_head_parameters(model)
    assert counted + found.parameters("tied") == found.parameters()


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("tensor", [2, 4])
def test_collectives_of_a_block_have_a_closed_form(tensor: int, parallel: bool) -> None:
    """Two tensors of sbh elements are summed in each pass (Shoeybi et al. 2020, Section 3); with sequence
    parallelism each is gathered and scattered instead, in reverse in the backward pass.
    """
    layout = Layout(tp=tensor, microbatch=3, sequence_parallel=parallel)
    model = model_of("megatron-gpt-2.5b")
    block = extract_workload(model, 1024, layout, SETTINGS["default"]).layer("block")
    nbytes = 2 * 3 * 1024 * model.hidden
    kinds = ["all_gather", "reduce_scatter"] if parallel else ["all_reduce"]
    for direction in DIRECTIONS:
        assert list(block.collectives(direction)) == 2 * [(kind, "tp", nbytes) for kind in kinds]
