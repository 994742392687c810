"""Specs of image models: published parameters and FLOPs, and refused values."""

from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.config import load_settings
from phaze.spec.models import load_model, parse_model
from phaze.spec.vision import ResNet, Swin, Vision
from phaze.workload.models import build_graph
from tests.oracles.parameters import training_head_parameters

SPECS = Path(__file__).parents[3] / "config" / "models"


def spec(name: str) -> Vision:
    model = load_model(SPECS / f"{name}.yaml")
    assert isinstance(model, Vision)
    return model


def parameters_of(model: Vision) -> int:
    """Return the parameters of all operators; running statistics are none."""
    return sum(p.parameters for p in build_graph(model, 1, Layout(), 2).unroll().primitives)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet-50", 25_557_032),  # TorchVision, resnet50
        ("resnet-152", 60_192_808),  # TorchVision, resnet152
        ("swin-l", 196_532_476),  # timm, swin_large_patch4_window7_224
        ("swin-l-384", 196_735_516),  # timm, swin_large_patch4_window12_384
    ],
)
def test_parameters_are_those_of_the_published_code(name: str, parameters: int) -> None:
    """All weights, biases, scales and shifts, and nothing else."""
    assert parameters_of(spec(name)) == parameters


@pytest.mark.parametrize(
    ("name", "giga"),
    [
        ("resnet-50", 4.09),  # TorchVision's table of weights
        ("resnet-152", 11.51),  # TorchVision's table of weights
        ("swin-l", 34.5),  # Liu et al. 2021, microsoft/Swin-Transformer
        ("swin-l-384", 103.9),  # the same
    ],
)
def test_multiply_accumulates_are_those_published(name: str, giga: float) -> None:
    """The forward pass of an image has the published number, to the printed digits."""
    computed = spec(name).multiply_accumulates / 1e9
    assert computed == pytest.approx(giga, abs=0.05 if giga > 20 else 0.005)


def test_semantic_fpn_is_that_of_mmsegmentation_but_for_the_stem() -> None:
    """28.5 million parameters; the printed 45.6e9 multiply-accumulates include a stem of three
    convolutions.
    """
    model = spec("semantic-fpn")
    assert parameters_of(model) == pytest.approx(28.5e6, abs=0.05e6)
    deep_stem = 256**2 * 9 * (3 * 32 + 32 * 32 + 32 * 64)
    exchanged = model.multiply_accumulates - model.first_multiply_accumulates + deep_stem
    assert exchanged == pytest.approx(45.6e9, rel=0.002)


@pytest.mark.parametrize(("name", "millions"), [("swin-u", 424), ("swin-l", 197), ("resnet-152", 60)])
def test_parmesans_models_have_the_printed_size(name: str, millions: int) -> None:
    """Parmesan, Tables VII and VIII, prints parameters in whole millions."""
    assert parameters_of(spec(name)) == pytest.approx(millions * 1e6, abs=0.51e6)


@pytest.mark.parametrize(("layers", "millions"), [(24, 365), (36, 516), (48, 667)])
def test_parmesans_berts_have_the_printed_size(layers: int, millions: int) -> None:
    """BERT-pytorch's decoder has its own matrix: 365 million parameters where BERT-large has 335."""
    model = load_model(SPECS / f"bert-{layers}.yaml")
    assert not isinstance(model, Vision)
    assert model.parameters + training_head_parameters(model) == pytest.approx(millions * 1e6, abs=0.5e6)


def test_training_an_image_takes_three_passes_but_of_the_first_convolution() -> None:
    """No gradient of the image is computed."""
    model = spec("resnet-50")
    first = 64 * 3 * 49 * 112**2
    flops = model.flops_per_token(1)
    assert flops.needed == flops.paper == 6 * model.multiply_accumulates - 2 * first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"kind": "lenet"},
            "kind: must be one of transformer, resnet, semantic-fpn, swin, traced, got 'lenet'",
        ),
        ({"kind": 3}, "kind: must be one of"),
        ({"backbone": {"blocks": [1, 2]}}, "blocks: must have as many stages as widths, 4, got 2"),
        ({"image": 0}, "image: should be greater than 0"),
        ({"layers": 3}, "layers: is not a known key"),
    ],
)
def test_a_residual_network_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    """One message with the file, the key and what is allowed."""
    fields = {"kind": "resnet", "name": "r", "backbone": {"blocks": [1, 1, 1, 1]}}
    with pytest.raises(PhazeError, match=message) as raised:
        parse_model(fields | changes, "r.yaml")
    assert "r.yaml" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": [2, 3]}, "must be even"),
        ({"depths": [2]}, "depths: must have as many stages as heads, 2, got 1"),
        ({"heads": [3, 5]}, "heads 3 must divide the width 32"),
        ({"window": 5}, "window 5 must divide the 8 patches"),
        ({"patch": 5}, "patch 5 must divide image 32"),
    ],
)
def test_a_swin_transformer_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    """Windows, heads and patches must fit."""
    fields = {
        "kind": "swin",
        "name": "s",
        "image": 32,
        "hidden": 32,
        "depths": [2, 2],
        "heads": [2, 4],
        "window": 4,
    }
    assert Swin.parse(fields, "s.yaml").shifts(0)
    assert not Swin.parse(fields, "s.yaml").shifts(1)
    with pytest.raises(PhazeError, match=message):
        Swin.parse(fields | changes, "s.yaml")


def test_a_model_of_images_is_not_cut_into_slices() -> None:
    """Tensor model parallelism is refused, and so are sequences of several images."""
    model = spec("resnet-50")
    with pytest.raises(PhazeError, match="tensor: 2 must be 1: model resnet-50 has no tensor parallelism"):
        model.check_tensor_width(2, "w")
    with pytest.raises(PhazeError, match="sequence: 512 must be 1: a sample of model resnet-50 is one image"):
        model.check_sequence(512, "w")


def test_a_study_refuses_what_is_no_chain_of_layers() -> None:
    """A feature pyramid reads several layers; the message comes before any job is planned."""
    study = {
        "workloads": {"fpn": {"model": "semantic-fpn", "sequence": 1}},
        "models": ["fpn"],
        "report": {"strategies": {"models": []}},
    }
    with pytest.raises(PhazeError, match=r"workloads\.fpn: model semantic-fpn is not a chain of layers"):
        load_settings(study, SPECS.parent)


def test_distinct_layers_need_few_blocks() -> None:
    """The inputs of extract do not depend on layer counts."""
    deep, less = spec("resnet-152"), spec("resnet-50")
    assert isinstance(deep, ResNet)
    assert isinstance(less, ResNet)
    assert deep.distinct() == less.distinct().model_copy(update={"name": "resnet-152"})
