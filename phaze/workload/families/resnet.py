"""Distinct layers of residual networks: stem, bottleneck blocks, head; optionally a feature pyramid."""

from __future__ import annotations

from itertools import pairwise

from phaze.spec.vision import Backbone, ResNet, SemanticFpn
from phaze.workload.families.convolution import (
    FeatureMaps,
    add_maps,
    convolve,
    convolve_and_normalise,
    enlarge,
    pool,
    rectify,
)
from phaze.workload.primitives import INPUT, LayerBuilder, LayerGraph, LayerRun, ModelGraph, Tensor


def resnet_graph(model: ResNet, samples: int) -> ModelGraph:
    """Layers of a residual network for `samples` images."""
    layers, runs = _backbone(model.backbone, model.image, model.channels, samples)
    head = _head(model, samples)
    return ModelGraph((*layers, head), (*runs, LayerRun(head.name)))


def semantic_fpn_graph(model: SemanticFpn, samples: int) -> ModelGraph:
    """Layers of a residual network with a feature pyramid, whose decoder reads all stages."""
    layers, runs = _backbone(model.backbone, model.image, model.channels, samples)
    ends = [
        q for q, (run, after) in enumerate(pairwise((*runs, LayerRun("")))) if _stage(run) != _stage(after)
    ]
    decoder = _decoder(model, samples)
    return ModelGraph((*layers, decoder), (*runs, LayerRun(decoder.name, reads=tuple(ends[1:]))))


def _stage(run: LayerRun) -> str:
    return run.layer.removesuffix("-first")


def _backbone(
    backbone: Backbone, image: int, channels: int, samples: int
) -> tuple[tuple[LayerGraph, ...], tuple[LayerRun, ...]]:
    """Stem and blocks; the first block of a stage differs from the others."""
    stem, x = _stem(backbone, image, channels, samples)
    layers, runs = [stem], [LayerRun(stem.name)]
    for stage, (blocks, width) in enumerate(zip(backbone.blocks, backbone.widths, strict=True)):
        name, stride = f"stage-{stage + 1}", 2 if stage else 1
        first, x = _block(f"{name}-first", x, width, backbone.expansion * width, stride)
        layers, runs = [*layers, first], [*runs, LayerRun(first.name)]
        if blocks > 1:
            other, x = _block(name, x, width, x.channels, 1)
            layers, runs = [*layers, other], [*runs, LayerRun(other.name, blocks - 1)]
    return tuple(layers), tuple(runs)


def _handed_on(x: FeatureMaps) -> FeatureMaps:
    return x.with_tensor(Tensor(INPUT, x.tensor.elements))


def _stem(backbone: Backbone, image: int, channels: int, samples: int) -> tuple[LayerGraph, FeatureMaps]:
    """First convolution and pooling; the image needs no gradient."""
    layer = LayerBuilder()
    pixels = Tensor(INPUT, samples * channels * image**2, gradient=False)
    x = FeatureMaps(pixels, samples, channels, image)
    x = convolve_and_normalise(layer, "stem", x, backbone.stem, 7, 2)
    x = pool(layer, "stem_pool", x)
    return layer.finish("stem", x.tensor.elements), _handed_on(x)


def _block(name: str, x: FeatureMaps, width: int, out: int, stride: int) -> tuple[LayerGraph, FeatureMaps]:
    """Bottleneck block; a convolution replaces the identity shortcut if the shape changes."""
    layer = LayerBuilder(x.tensor.elements)
    y = convolve_and_normalise(layer, "reduce", x, width)
    y = convolve_and_normalise(layer, "spatial", y, width, 3, stride)
    y = convolve_and_normalise(layer, "expand", y, out, relu=False)
    if stride > 1 or x.channels != out:
        x = convolve_and_normalise(layer, "shortcut", x, out, 1, stride, relu=False)
    y = rectify(layer, "block", add_maps(layer, "block_add", y, x))
    return layer.finish(name, y.tensor.elements), _handed_on(y)


def _head(model: ResNet, samples: int) -> LayerGraph:
    channels, size = model.backbone.outputs[-1], model.backbone.sizes(model.image)[-1]
    layer = LayerBuilder(samples * channels * size**2)
    x = layer.add("average_pool", "average_pool", layer.input, elements=samples * channels)
    x = layer.dense("classifier", x, samples, model.classes, bias=True)
    layer.classify(x, samples)
    return layer.finish("head", 0)


def _decoder(model: SemanticFpn, samples: int) -> LayerGraph:
    """Neck and head, which read the output of every stage of the backbone."""
    shapes = list(zip(model.backbone.outputs, model.backbone.sizes(model.image), strict=True))
    elements = [samples * channels * size**2 for channels, size in shapes]
    layer = LayerBuilder(sum(elements))
    whole = layer.add("split", "stages", layer.input)
    levels = [
        FeatureMaps(Tensor(whole.source, n, piece=i), samples, channels, size)
        for i, (n, (channels, size)) in enumerate(zip(elements, shapes, strict=True))
    ]
    x = _segment(layer, model, _neck(layer, model, levels))
    x = x.with_tensor(layer.dropout("head", x.tensor, model.dropout))
    x = convolve(layer, "classifier", x, model.classes, bias=True)
    for name in ("double", "redouble"):
        x = enlarge(layer, "upsample", f"logits_{name}", x)
    layer.classify(x.tensor, x.pixels)
    return layer.finish("decoder", 0)


def _neck(layer: LayerBuilder, model: SemanticFpn, levels: list[FeatureMaps]) -> list[FeatureMaps]:
    """Append the pyramid: every level plus the upsampled level above, coarsest first (Lin et al. 2017)."""
    count = len(levels)
    lateral = [convolve(layer, f"lateral_{i + 1}", x, model.neck, bias=True) for i, x in enumerate(levels)]
    for i in reversed(range(count - 1)):
        above = enlarge(layer, "nearest", f"nearest_{i + 1}", lateral[i + 1])
        lateral[i] = add_maps(layer, f"pyramid_add_{i + 1}", lateral[i], above)
    return [convolve(layer, f"pyramid_{i + 1}", x, model.neck, 3, bias=True) for i, x in enumerate(lateral)]


def _segment(layer: LayerBuilder, model: SemanticFpn, levels: list[FeatureMaps]) -> FeatureMaps:
    """Append convolutions and upsampling of every level to the finest resolution, and their sum."""
    total = _scale(layer, model, levels[0], 0)
    for level in range(1, len(levels)):
        x = _scale(layer, model, levels[level], level)
        total = add_maps(layer, f"scale_add_{level + 1}", total, x)
    return total


def _scale(layer: LayerBuilder, model: SemanticFpn, x: FeatureMaps, level: int) -> FeatureMaps:
    """Append the convolutions of one level, each followed by an upsampling except on the finest level."""
    for step in range(model.convolutions[level]):
        name = f"scale_{level + 1}_{step + 1}"
        x = convolve_and_normalise(layer, name, x, model.head, 3)
        x = enlarge(layer, "upsample", f"{name}_upsample", x) if level else x
    return x
