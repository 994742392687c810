"""A profile becomes deeper or shallower by repeating the layers between the first and the last."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.formulas.piper.layers import ProfiledLayers
from phaze.formulas.piper.study import repeat_layers
from tests.unit.formulas.piper.chains import layers_of, repeated


def blocks(layers: ProfiledLayers) -> list[int]:
    """Return the repeated layers in the order of the data flow."""
    after = {u: v for u, v in layers.pairs if layers.names[u] == layers.names[v] == "layer"}
    found = [v for v, name in enumerate(layers.names) if name == "layer" and v not in after.values()]
    while found[-1] in after:
        found.append(after[found[-1]])
    return found


def times(layers: ProfiledLayers, width: int = 1) -> list[float]:
    return [float(layers.options[width].time_s[v]) for v in blocks(layers)]


@pytest.mark.parametrize(("count", "originals"), [(2, "03"), (3, "013"), (4, "0123"), (7, "0121213")])
def test_inner_layers_follow_each_other_between_the_first_and_the_last(
    count: int, originals: str, tmp_path: Path
) -> None:
    found = repeat_layers(layers_of(repeated(), tmp_path), count)
    assert times(found) == [1.0 + 0.125 * (2 + int(i)) for i in originals]
    assert len(found) == count + 3
    assert len(set(found.ids)) == len(found)


def test_as_often_as_given_changes_nothing(tmp_path: Path) -> None:
    layers = layers_of(repeated(), tmp_path)
    assert repeat_layers(layers, 4) is layers


def test_every_copy_takes_the_mask_and_the_tensor_before_it(tmp_path: Path) -> None:
    """Sizes and synchronised bytes are those of the original edges; embedding and head stay outside."""
    found = repeat_layers(layers_of(repeated(), tmp_path), 9)
    chain = blocks(found)
    sizes = dict(zip(found.pairs, found.edge_bytes.tolist(), strict=True))
    assert [sizes[1, v] for v in chain] == [5.0] * 9
    assert sizes[0, chain[0]] == 50.0
    assert sizes[chain[-1], found.names.index("head")] == 80.0
    originals = [0, 1, 2, 1, 2, 1, 2, 1, 3]
    assert [sizes[pair] for pair in pairwise(chain)] == [60.0 + i for i in originals[:-1]]
    assert len(sizes) == len(found.pairs) == 9 + 8 + 2


def test_synchronised_bytes_stand_at_the_two_ends_of_each_edge(tmp_path: Path) -> None:
    two = repeat_layers(layers_of(repeated(), tmp_path), 6).options[2]
    found = repeat_layers(layers_of(repeated(), tmp_path), 6)
    for e, (u, v) in enumerate(found.pairs):
        np.testing.assert_array_equal(two.forward_sync_bytes[:, e], np.where(two.layer == v, 7.0, 0.0))
        np.testing.assert_array_equal(two.backward_sync_bytes[:, e], np.where(two.layer == u, 9.0, 0.0))


def test_layers_in_a_chain_of_two_are_refused(tmp_path: Path) -> None:
    content = repeated(2)
    with pytest.raises(
        PhazeError, match="repeat: the 2 layers named 'layer' must be a chain of at least three"
    ):
        repeat_layers(layers_of(content, tmp_path), 8)


def test_layers_that_leave_the_chain_are_refused(tmp_path: Path) -> None:
    content = repeated()
    content["edges"].append({"sourceId": 3, "destId": 6, "communicationCost": 1.0})
    for node, key, other in (
        (content["nodes"][3], "syncTimeBw", "6"),
        (content["nodes"][6], "syncTimeFw", "3"),
    ):
        for width in node["TMPCs"].values():
            width[0][key][other] = 0.0
    with pytest.raises(PhazeError, match="only its last one leaves"):
        repeat_layers(layers_of(content, tmp_path), 8)


def test_a_single_layer_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(PhazeError, match="repeat: 1 given, at least 2 allowed"):
        repeat_layers(layers_of(repeated(), tmp_path), 1)


@pytest.mark.parity
def test_bert_grows_from_its_profile(shared_data: Path) -> None:
    """BERT-64 from the authors' BERT-32 has twice the layers, twice the weights except for the ends, and
    every mask.
    """
    from phaze.formulas.piper.instance import read_instance

    layers = read_instance(shared_data / "piper" / "bert32a100.json").layers()
    found = repeat_layers(layers, 64)
    assert len(found) == len(layers) + 32
    assert len(found.pairs) == len(layers.pairs) + 64
    weights, before = (options.weight_bytes.sum() for options in (found.options[8], layers.options[8]))
    assert weights - before == pytest.approx(32 * 2 * 22144800)
