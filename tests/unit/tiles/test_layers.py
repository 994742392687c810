"""Models as the operators of the tile level."""

from __future__ import annotations

from itertools import pairwise

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.config import load_model_named
from phaze.spec.vision import ResNet
from phaze.tiles.layers import operators_of
from phaze.tiles.operators import Convolution, Pool, shares

WHOLE = (1, 1, 1, 1)


@pytest.mark.parametrize("name", ["resnet-50", "resnet-152"])
def test_a_residual_network_has_the_work_that_is_published(name: str) -> None:
    """Multiply-accumulates and weights of convolutions and of the last layer, for three images."""
    model = load_model_named(name)
    assert isinstance(model, ResNet)
    parts = [
        share
        for each in operators_of(model, 3)
        if not isinstance(each, Pool)
        for share in shares(each, WHOLE)
    ]
    assert sum(share.flops for share in parts) == 2 * 3 * model.multiply_accumulates
    normalised = [each for each in operators_of(model, 3) if isinstance(each, Convolution)]
    scales = 2 * sum(each.filters for each in normalised)
    assert sum(share.weights for share in parts) == model.parameters - scales - model.classes


def test_maps_that_follow_each_other_fit() -> None:
    """Every convolution of the main path reads what the one before has written."""
    main = [
        each
        for each in operators_of(load_model_named("resnet-50"), 1)
        if isinstance(each, Convolution) and not each.name.endswith("shortcut")
    ]
    for before, after in pairwise(main[1:]):
        assert before.outputs == (after.height, after.width)
        assert before.filters == after.channels


def test_a_transformer_has_the_work_of_table_iii() -> None:
    """24 B S H² + 4 B S² H for each of twelve blocks of BERT-base."""
    parts = [
        share for each in operators_of(load_model_named("bert-base"), 2, 128) for share in shares(each, WHOLE)
    ]
    batch, sequence, hidden = 2, 128, 768
    block = 24 * batch * sequence * hidden**2 + 4 * batch * sequence**2 * hidden
    assert sum(share.flops for share in parts) == 12 * block
    assert sum(share.weights for share in parts) == 12 * 12 * hidden**2


@pytest.mark.parametrize("name", ["llama2-7b", "swin-l"])
def test_what_palm_has_no_operator_for_is_refused(name: str) -> None:
    with pytest.raises(PhazeError, match=f"model {name}: "):
        operators_of(load_model_named(name), 1, 128)
