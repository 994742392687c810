"""The tables of extract: keys, ids of equal work, and what they do not depend on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings

from phaze import tables
from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.settings import ExtractSettings
from phaze.workload.frames import LayerTables, extract_graph, extract_layers
from phaze.workload.kinds import COLLECTIVES, KINDS
from phaze.workload.lower.sharding import Slice
from tests.unit.workload.examples import NAMES, POINTS, SEQUENCES, model_of, slices

SETTINGS = {
    "default": ExtractSettings(),
    "split": ExtractSettings(backward="split"),
    "unfused": ExtractSettings(fusion=False),
    "unfused split": ExtractSettings(backward="split", fusion=False),
}


def extract(
    name: str, tensor: int = 1, microbatch: int = 1, settings: ExtractSettings = SETTINGS["default"]
) -> LayerTables:
    """Extract a model of config/models."""
    return extract_layers(
        model_of(name), SEQUENCES.get(name, 1024), Layout(tp=tensor, microbatch=microbatch), settings
    )


@pytest.mark.parametrize(("name", "tensor"), POINTS)
def test_every_workload_gives_four_tables(name: str, tensor: int) -> None:
    """Every model and width of the default study passes the contracts of the tables."""
    found = extract(name, tensor, 2)
    assert tables.Operators.check(found.operators).equals(found.operators)
    assert tables.Parts.check(found.parts).equals(found.parts)
    assert tables.Edges.check(found.edges).equals(found.edges)
    assert list(found.layers["layer"]) == ["block", "embedding", "head"]
    for table in found:
        assert set(table["model"]) == {name}
        assert (set(table["tensor"]), set(table["microbatch"])) == ({tensor}, {2})


def test_the_number_of_blocks_changes_only_the_graph() -> None:
    """Tables of layers are equal for any number of blocks; the graph counts them."""
    model = model_of("gpt2")
    deeper = model.model_copy(update={"layers": 1})
    for one, other in zip(
        extract("gpt2"), extract_layers(deeper, 1024, Layout(), SETTINGS["default"]), strict=True
    ):
        pd.testing.assert_frame_equal(one, other)
    assert list(extract_graph(model)["count"]) == [1, 12, 1]
    assert list(extract_graph(deeper)["count"]) == [1, 1, 1]


def test_a_graph_is_a_chain_of_runs() -> None:
    """Embedding, blocks, head, in this order; a model that ends with its blocks has no head."""
    graph = extract_graph(model_of("llama2-70b"))
    assert list(graph["layer"]) == ["embedding", "block", "head"]
    assert list(graph["position"]) == [0, 1, 2]
    encoder = model_of("bert-large").model_copy(update={"head": "none", "pooler": False})
    assert list(extract_graph(encoder)["layer"]) == ["embedding", "block"]


def test_without_head_the_base_model_is_left() -> None:
    """No logits and no loss; a final norm and a pooler belong to the base model."""
    found = extract("gpt2", settings=ExtractSettings(head=False)).operators
    forward = found[(found["layer"] == "head") & (found["direction"] == "forward")]
    assert list(forward["name"]) == ["final_norm"]
    assert list(extract_graph(model_of("gpt2"), head=False)["layer"]) == ["embedding", "block", "head"]
    plain = model_of("bert-large").model_copy(update={"pooler": False})
    assert list(extract_graph(plain, head=False)["layer"]) == ["embedding", "block"]


def test_without_gradients_of_weights_products_with_weights_run_once_backward() -> None:
    """Forward once, backward once; attention's products have two operands with gradients."""
    whole = extract("gpt2").layers.set_index("layer").loc["block"]
    for backward in ("paired", "split"):
        chosen = ExtractSettings(backward=backward, weight_gradients=False)  # type: ignore[arg-type]
        found = extract("gpt2", settings=chosen)
        assert "weight_gradient" not in set(found.parts["role"])
        mine = (
            found.operators[(found.operators["layer"] == "block")].groupby("direction")["tensor_flops"].sum()
        )
        attention = 2 * 2 * 12 * 1024 * 1024 * 64
        assert mine["forward"] == whole["forward_tensor_flops"]
        assert mine["backward"] == mine["forward"] + attention


def test_activations_may_be_counted_several_times() -> None:
    once, sixfold = (extract("gpt2", settings=ExtractSettings(activation_factor=f)) for f in (1, 6))
    assert (sixfold.layers["activation_bytes"] == 6 * once.layers["activation_bytes"]).all()
    pd.testing.assert_frame_equal(once.operators, sixfold.operators)


def test_two_extractions_are_equal() -> None:
    """Ids and order are decided by the work alone."""
    for one, two in zip(extract("llama2-7b"), extract("llama2-7b"), strict=True):
        pd.testing.assert_frame_equal(one, two)


def test_equal_work_has_one_id() -> None:
    """The two norms of a block, the final norm, and both sums after an all-reduce are the same work."""
    operators = extract("megatron-gpt-2.5b", 4).operators
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
    """Every operator but the no-ops has parts; no id is left over, and no two ids mean the same."""
    found = extract("bert-large")
    works = set(found.operators["work"]) - {-1}
    assert works == set(found.parts["work"]) == set(range(len(works)))
    parts = found.parts.drop(columns=["model", "tensor", "microbatch"]).groupby("work")
    content = [tuple(map(tuple, group.drop(columns="work").to_numpy())) for _, group in parts]
    assert len(content) == len(set(content))


def test_flops_and_layers_agree_with_the_operators() -> None:
    """The FLOPs of a layer are those of its forward operators, its activations what they keep."""
    found = extract("gpt2", microbatch=2)
    forward = found.operators[found.operators["direction"] == "forward"]
    sums = forward.groupby("layer")[["tensor_flops", "vector_flops", "stashed_bytes"]].sum()
    layers = found.layers.set_index("layer")
    assert list(sums["tensor_flops"]) == list(layers["forward_tensor_flops"])
    assert list(sums["vector_flops"]) == list(layers["forward_vector_flops"])
    assert list(sums["stashed_bytes"]) == list(layers["activation_bytes"])


def test_layers_pass_on_the_residual_stream() -> None:
    """Nothing arrives at the first layer and nothing leaves the last; in between goes b s h elements,
    whole on every slice.
    """
    layers = extract("megatron-gpt-2.5b", 4, 2).layers.set_index("layer")
    stream = 2 * 2 * 1024 * 1920
    assert list(layers.loc[["embedding", "block", "head"], "input_bytes"]) == [0, stream, stream]
    assert list(layers.loc[["embedding", "block", "head"], "output_bytes"]) == [stream, stream, 0]


def test_parameters_are_those_of_the_slice() -> None:
    """Parameters times their size are the weights; with slices every layer takes part."""
    whole, part = (extract("megatron-gpt3-175b", t).layers.set_index("layer") for t in (4, 8))
    assert (whole["parameter_bytes"] == 2 * whole["parameters"]).all()
    assert (part["parameters"] < whole["parameters"]).all()
    assert part["tensor_parallel"].all()
    assert not extract("gpt2").layers["tensor_parallel"].any()


def test_wider_elements_double_the_weights() -> None:
    """Bytes per element scale weights and edges; FLOPs stay."""
    half, single = (extract("gpt2", settings=ExtractSettings(bytes_per_element=w)).layers for w in (2, 4))
    assert (single["parameter_bytes"] == 2 * half["parameter_bytes"]).all()
    assert (single["forward_tensor_flops"] == half["forward_tensor_flops"]).all()


def test_layers_count_primitives_whatever_is_fused() -> None:
    """The operators of a layer are counted before fusion."""
    fused, plain = (extract("gpt2", settings=SETTINGS[s]) for s in ("default", "unfused"))
    assert list(fused.layers["operators"]) == list(plain.layers["operators"])
    forward = plain.operators[
        (plain.operators["direction"] == "forward") & (plain.operators["layer"] == "block")
    ]
    assert len(forward) == plain.layers.set_index("layer").loc["block", "operators"] == 32


def test_slices_that_cut_a_head_are_refused() -> None:
    """A width that does not divide the heads is an error of the user."""
    with pytest.raises(PhazeError, match="model gpt2-xl: tensor: 2"):
        extract("gpt2-xl", 2)


def test_kinds_are_keys_of_the_cycle_tables(shared_data: Path) -> None:
    """Every vector operation is one whose cycles are known, forward and backward."""
    cycles = yaml.safe_load((shared_data / "hardware" / "vector_cycles.yaml").read_text())
    for kind in KINDS.values():
        assert set(kind.forward) - set(COLLECTIVES) <= set(cycles["forward"])
        assert set(kind.backward) <= set(cycles["backward"])


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


@pytest.mark.parametrize("chosen", SETTINGS.values(), ids=SETTINGS)
@given(part=slices())
@settings(max_examples=15)
def test_tables_of_random_models_hold_their_invariants(chosen: ExtractSettings, part: Slice) -> None:
    """Whatever model and settings: contracts hold, work is consistent, and every operator is connected.

    Only what the layer after hands a gradient to may stand alone: the leaf of the last operator, in split
    form.
    """
    found = extract_layers(part.model, part.sequence, part.layout, chosen)
    core = found.operators[found.operators["work"] >= 0].groupby("work")["core"].nunique()
    assert (core == 1).all()
    parts = found.parts.groupby("work")["core"].nunique()
    assert (parts == 1).all()
    assert set(found.operators["work"]) - {-1} == set(found.parts["work"])
    for (layer, direction), operators in found.operators.groupby(["layer", "direction"]):
        edges = found.edges[(found.edges["layer"] == layer) & (found.edges["direction"] == direction)]
        alone = set(operators["operator"]) - set(edges["source"]) - set(edges["target"])
        first = {0, 1} if (direction, chosen.backward) == ("backward", "split") else {0}
        assert alone <= first
        assert len(alone) <= 1 or len(operators) == 2
