"""Distinct layers of vision models: Swin transformers and residual networks.

A Swin transformer has patch embedding, pairs of blocks, patch merging and a head. A stage's layer is a pair
of blocks; the second has shifted windows if there is more than one window. Partitioning, merging and
shifting windows copy the data, as in the authors' program.

A residual network has a stem, bottleneck blocks and a head; optionally a feature pyramid.

A convolution is a matrix multiplication of its unrolled input, one row per output pixel (im2col), so it is
mapped and priced like any other. Libraries and accelerators unroll on chip: HBM stores the original input.
`Gemm.unrolled` is the number of elements by which the unrolled matrix is larger. The gradients are the two
products of the same three matrices. Padding keeps the size: a map of height n becomes one of ⌈n/stride⌉.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from phaze.spec.rows import Gemm
from phaze.spec.vision import Backbone, ResNet, SemanticFpn, Swin
from phaze.workload.primitives import (
    INDEX_BYTES,
    INPUT,
    LayerBuilder,
    LayerGraph,
    LayerRun,
    ModelGraph,
    Scores,
    Tensor,
)


@dataclass(frozen=True)
class FeatureMaps:
    """Square feature maps of the samples of a microbatch."""

    tensor: Tensor
    samples: int
    channels: int
    size: int
    """Height and width, in pixels."""

    @property
    def pixels(self) -> int:
        """Number of pixels per channel, over all samples."""
        return self.samples * self.size**2

    def with_tensor(self, tensor: Tensor) -> FeatureMaps:
        """Feature maps of the same shape, stored in another tensor."""
        return replace(self, tensor=tensor)


@dataclass(frozen=True)
class SlidingWindow:
    """Square windows that slide over square feature maps."""

    samples: int
    channels: int
    size: int
    """Height and width of the input."""
    window: int = field(default=1, kw_only=True)
    """Height and width of a window."""
    stride: int = field(default=1, kw_only=True)

    @property
    def out_size(self) -> int:
        """Height and width of the output."""
        return -(-self.size // self.stride)


@dataclass(frozen=True)
class ConvolutionShape(SlidingWindow):
    """Convolution of square feature maps with square windows, without dilation."""

    kernels: int
    """Number of output channels."""

    @property
    def parameters(self) -> int:
        """Number of weights, excluding biases."""
        return self.kernels * self.channels * self.window**2

    @property
    def gemm(self) -> Gemm:
        """GEMM of the unrolled input, with one row per output pixel, and the weights."""
        rows, columns = self.samples * self.out_size**2, self.channels * self.window**2
        unrolled = rows * columns - self.samples * self.channels * self.size**2
        return Gemm(1, rows, columns, self.kernels, unrolled=max(0, unrolled))


def convolve(
    layer: LayerBuilder,
    name: str,
    x: FeatureMaps,
    kernels: int,
    window: int = 1,
    stride: int = 1,
    *,
    bias: bool = False,
) -> FeatureMaps:
    """Append a convolution, with a bias if `bias` is set."""
    conv = ConvolutionShape(x.samples, x.channels, x.size, kernels, window=window, stride=stride)
    y = layer.add("matmul", name, x.tensor, gemm=conv.gemm, parameters=conv.parameters)
    y = layer.bias(name, y, kernels) if bias else y
    return FeatureMaps(y, x.samples, kernels, conv.out_size)


def rectify(layer: LayerBuilder, name: str, x: FeatureMaps) -> FeatureMaps:
    """Append a ReLU."""
    return x.with_tensor(layer.add("relu", f"{name}_relu", x.tensor))


def convolve_and_normalise(
    layer: LayerBuilder,
    name: str,
    x: FeatureMaps,
    kernels: int,
    window: int = 1,
    stride: int = 1,
    *,
    relu: bool = True,
) -> FeatureMaps:
    """Append a convolution, a batch norm with scale and shift per channel, and a ReLU if `relu` is set."""
    y = convolve(layer, name, x, kernels, window, stride)
    y = y.with_tensor(layer.add("batch_norm", f"{name}_norm", y.tensor, parameters=2 * kernels))
    return rectify(layer, name, y) if relu else y


def enlarge(layer: LayerBuilder, kind: str, name: str, x: FeatureMaps) -> FeatureMaps:
    """Append an upsampling by 2: `upsample` is bilinear, `nearest` copies the nearest pixel."""
    y = layer.add(kind, name, x.tensor, elements=4 * x.tensor.elements)
    return FeatureMaps(y, x.samples, x.channels, 2 * x.size)


def add_maps(layer: LayerBuilder, name: str, x: FeatureMaps, y: FeatureMaps) -> FeatureMaps:
    """Append the sum of two feature maps."""
    return x.with_tensor(layer.add("add", name, x.tensor, y.tensor))


@dataclass(frozen=True)
class SwinStage:
    """Dimensions of a Swin stage for one microbatch."""

    samples: int
    width: int
    heads: int
    size: int
    """Height and width in patches."""
    window: int
    """Height and width of a window in patches."""
    shifts: bool
    expansion: int
    bytes_per_element: int

    @property
    def tokens(self) -> int:
        """Number of patches over all samples."""
        return self.samples * self.size**2

    @property
    def area(self) -> int:
        """Number of patches per window."""
        return self.window**2

    @property
    def windows(self) -> int:
        """Number of windows per sample."""
        return self.size**2 // self.area

    @property
    def elements(self) -> int:
        """Number of elements of the residual stream."""
        return self.tokens * self.width


def swin_graph(model: Swin, samples: int, bytes_per_element: int) -> ModelGraph:
    """Build the layers of a Swin transformer for `samples` images."""
    stages = [
        SwinStage(
            samples=samples,
            width=model.widths[s],
            heads=model.heads[s],
            size=model.sizes[s],
            window=model.window_of(s),
            shifts=model.shifts(s),
            expansion=model.expansion,
            bytes_per_element=bytes_per_element,
        )
        for s in range(len(model.depths))
    ]
    layers, runs = [_embedding(model, stages[0])], [LayerRun("embedding")]
    for number, (stage, depth) in enumerate(zip(stages, model.depths, strict=True), start=1):
        if number > 1:
            layers.append(_merge(f"merge-{number - 1}", stages[number - 2]))
            runs.append(LayerRun(layers[-1].name))
        layers.append(_pair(f"stage-{number}", stage))
        runs.append(LayerRun(layers[-1].name, depth // 2))
    return ModelGraph((*layers, _head(model, stages[-1])), (*runs, LayerRun("head")))


def _norm(layer: LayerBuilder, name: str, x: Tensor, width: int) -> Tensor:
    return layer.add("layer_norm", name, x, parameters=2 * width)


def _embedding(model: Swin, stage: SwinStage) -> LayerGraph:
    """Patch embedding layer; the image needs no gradient."""
    layer = LayerBuilder()
    pixels = Tensor(INPUT, stage.samples * model.channels * model.image**2, gradient=False)
    image = FeatureMaps(pixels, stage.samples, model.channels, model.image)
    x = convolve(layer, "patches", image, model.hidden, model.patch, model.patch, bias=True).tensor
    x = layer.by_heads("patches", x)
    _norm(layer, "patches_norm", x, stage.width)
    return layer.finish("embedding", stage.elements)


def _pair(name: str, stage: SwinStage) -> LayerGraph:
    layer = LayerBuilder(stage.elements)
    x = _block(layer, "", stage, layer.input, shifted=False)
    _block(layer, "shifted_", stage, x, shifted=stage.shifts)
    return layer.finish(name, stage.elements)


def _block(layer: LayerBuilder, prefix: str, stage: SwinStage, x: Tensor, *, shifted: bool) -> Tensor:
    """Append x + attention(norm(x)), then the same with a feed-forward network."""
    y = _norm(layer, f"{prefix}attention_norm", x, stage.width)
    x = layer.add("add", f"{prefix}attention_add", _attention(layer, prefix, stage, y, shifted=shifted), x)
    y = _norm(layer, f"{prefix}feed_forward_norm", x, stage.width)
    y = layer.dense(f"{prefix}feed_forward_in", y, stage.tokens, stage.expansion * stage.width, bias=True)
    y = layer.add("gelu", f"{prefix}gelu", y)
    y = layer.dense(f"{prefix}feed_forward_out", y, stage.tokens, stage.width, bias=True)
    return layer.add("add", f"{prefix}feed_forward_add", y, x)


def _attention(layer: LayerBuilder, prefix: str, stage: SwinStage, x: Tensor, *, shifted: bool) -> Tensor:
    """Append window attention: partition into windows, attend, and merge the windows."""
    x = layer.add("rearrange", f"{prefix}shift", x) if shifted else x
    x = layer.add("rearrange", f"{prefix}windows", x)
    q, k, v = _projections(layer, prefix, stage, x)
    scores, y = _probabilities(layer, prefix, stage, q, k, shifted=shifted)
    batch, head = stage.samples * stage.windows * stage.heads, stage.width // stage.heads
    gemm = Gemm(batch, stage.area, stage.area, head)
    y = layer.add("matmul", f"{prefix}context", y, v, gemm=gemm)
    layer.mark("core_attn", scores.source)
    y = layer.add("transpose", f"{prefix}context_transpose", y)
    y = layer.add("reshape", f"{prefix}context_reshape", y)
    y = layer.dense(f"{prefix}attention_out", y, stage.tokens, stage.width, bias=True)
    y = layer.add("rearrange", f"{prefix}windows_back", y)
    return layer.add("rearrange", f"{prefix}shift_back", y) if shifted else y


def _projections(
    layer: LayerBuilder, prefix: str, stage: SwinStage, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Append queries, keys and values by head, from one fused matrix."""
    y = layer.dense(f"{prefix}qkv", x, stage.tokens, 3 * stage.width, bias=True)
    y = layer.by_heads(f"{prefix}qkv", y)
    y = layer.add("split", f"{prefix}qkv_split", y)
    q, k, v = (replace(y, elements=stage.elements, piece=i) for i in range(3))
    return (
        layer.add("scale", f"{prefix}query_scale", q),
        layer.add("transpose", f"{prefix}key_transpose", k),
        v,
    )


def _probabilities(
    layer: LayerBuilder, prefix: str, stage: SwinStage, q: Tensor, k: Tensor, *, shifted: bool
) -> tuple[Tensor, Tensor]:
    """Append scores and attention probabilities, with a relative position bias.

    A mask separates windows that a shift has joined.
    """
    batch, head = stage.samples * stage.windows * stage.heads, stage.width // stage.heads
    gemm = Gemm(batch, stage.area, head, stage.area)
    area = stage.area
    windows = Scores(batch // stage.heads, area, area, area, area, stage.heads, stage.heads, head, head)
    scores = layer.add("matmul", f"{prefix}scores", q, k, gemm=gemm, scores=windows)
    # One bias per head and relative position: offsets within a window range over 2w - 1 rows and columns.
    table = (2 * stage.window - 1) ** 2 * stage.heads
    index = stage.area**2 * INDEX_BYTES
    y = layer.add("bias", f"{prefix}position_bias", scores, parameters=table, constant_bytes=index)
    if shifted:
        # Shifted windows join distant patches at the borders, so each window has a mask of its own.
        mask = stage.windows * stage.area**2 * stage.bytes_per_element
        y = layer.add("mask", f"{prefix}scores_mask", y, constant_bytes=mask)
    return scores, layer.add("softmax", f"{prefix}softmax", y)


def _merge(name: str, stage: SwinStage) -> LayerGraph:
    layer = LayerBuilder(stage.elements)
    x = layer.add("rearrange", "neighbours", layer.input)
    # 2 × 2 neighbours become one token of four times the width, of which a matrix keeps half.
    x = _norm(layer, "merge_norm", x, 4 * stage.width)
    x = layer.dense("merge", x, stage.tokens // 4, 2 * stage.width, bias=False)
    return layer.finish(name, x.elements)


def _head(model: Swin, stage: SwinStage) -> LayerGraph:
    layer = LayerBuilder(stage.elements)
    x = _norm(layer, "final_norm", layer.input, stage.width)
    x = layer.add("transpose", "final_transpose", x)
    return _classify(layer, x, stage.samples, stage.width, model.classes)


def _classify(layer: LayerBuilder, x: Tensor, samples: int, channels: int, classes: int) -> LayerGraph:
    """Finish a head: average the pixels of each channel, and classify the samples."""
    x = layer.add("average_pool", "average_pool", x, elements=samples * channels)
    layer.classify(layer.dense("classifier", x, samples, classes, bias=True), samples)
    return layer.finish("head", 0)


def resnet_graph(model: ResNet, samples: int) -> ModelGraph:
    """Build the layers of a residual network for `samples` images."""
    layers, runs = _backbone(model.backbone, model.image, model.channels, samples)
    channels, size = model.backbone.outputs[-1], model.backbone.sizes(model.image)[-1]
    layer = LayerBuilder(samples * channels * size**2)
    head = _classify(layer, layer.input, samples, channels, model.classes)
    return ModelGraph((*layers, head), (*runs, LayerRun(head.name)))


def semantic_fpn_graph(model: SemanticFpn, samples: int) -> ModelGraph:
    """Build a residual network with a feature pyramid, whose decoder reads the output of every stage."""
    layers, runs = _backbone(model.backbone, model.image, model.channels, samples)
    # A stage ends where the name of the next run differs by more than the mark of a first block.
    names = [run.layer.removesuffix("-first") for run in runs]
    ends = [q for q, (name, following) in enumerate(pairwise([*names, ""])) if name != following]
    # The stem is a run of its own, and the pyramid does not read it.
    decoder = _decoder(model, samples)
    return ModelGraph((*layers, decoder), (*runs, LayerRun(decoder.name, reads=tuple(ends[1:]))))


def _backbone(
    backbone: Backbone, image: int, channels: int, samples: int
) -> tuple[tuple[LayerGraph, ...], tuple[LayerRun, ...]]:
    """Layers of the backbone and their order: stem and residual blocks; a stage's first block differs."""
    stem, x = _stem(backbone, image, channels, samples)
    layers, runs = [stem], [LayerRun(stem.name)]
    for stage, (blocks, width) in enumerate(zip(backbone.blocks, backbone.widths, strict=True)):
        name, stride = f"stage-{stage + 1}", 2 if stage else 1
        first, x = _bottleneck(f"{name}-first", x, width, backbone.expansion * width, stride)
        layers, runs = [*layers, first], [*runs, LayerRun(first.name)]
        if blocks > 1:
            other, x = _bottleneck(name, x, width, x.channels, 1)
            layers, runs = [*layers, other], [*runs, LayerRun(other.name, blocks - 1)]
    return tuple(layers), tuple(runs)


def _next_input(x: FeatureMaps) -> FeatureMaps:
    return x.with_tensor(Tensor(INPUT, x.tensor.elements))


def _stem(backbone: Backbone, image: int, channels: int, samples: int) -> tuple[LayerGraph, FeatureMaps]:
    """Stem layer: first convolution and pooling; the image needs no gradient."""
    layer = LayerBuilder()
    pixels = Tensor(INPUT, samples * channels * image**2, gradient=False)
    x = FeatureMaps(pixels, samples, channels, image)
    x = convolve_and_normalise(layer, "stem", x, backbone.stem, 7, 2)
    size = -(-x.size // 2)  # windows of 3 × 3 with stride 2
    y = layer.add("max_pool", "stem_pool", x.tensor, elements=samples * x.channels * size**2)
    return layer.finish("stem", y.elements), _next_input(FeatureMaps(y, samples, x.channels, size))


def _bottleneck(
    name: str, x: FeatureMaps, width: int, out: int, stride: int
) -> tuple[LayerGraph, FeatureMaps]:
    """Bottleneck block; a convolution replaces the identity shortcut if the shape changes."""
    layer = LayerBuilder(x.tensor.elements)
    y = convolve_and_normalise(layer, "reduce", x, width)
    y = convolve_and_normalise(layer, "spatial", y, width, 3, stride)
    y = convolve_and_normalise(layer, "expand", y, out, relu=False)
    if stride > 1 or x.channels != out:
        x = convolve_and_normalise(layer, "shortcut", x, out, 1, stride, relu=False)
    y = rectify(layer, "block", add_maps(layer, "block_add", y, x))
    return layer.finish(name, y.tensor.elements), _next_input(y)


def _decoder(model: SemanticFpn, samples: int) -> LayerGraph:
    """Decoder layer: neck and head, which read the output of every stage of the backbone."""
    shapes = list(zip(model.backbone.outputs, model.backbone.sizes(model.image), strict=True))
    elements = [samples * channels * size**2 for channels, size in shapes]
    layer = LayerBuilder(sum(elements))
    stages = layer.add("split", "stages", layer.input)
    levels = [
        FeatureMaps(Tensor(stages.source, n, piece=i), samples, channels, size)
        for i, (n, (channels, size)) in enumerate(zip(elements, shapes, strict=True))
    ]
    x = _segment(layer, model, _neck(layer, model, levels))
    x = x.with_tensor(layer.dropout("head", x.tensor, model.dropout))
    x = convolve(layer, "classifier", x, model.classes, bias=True)
    # The finest level has a quarter of the image's height: stem and pooling halve it twice.
    for name in ("double", "redouble"):
        x = enlarge(layer, "upsample", f"logits_{name}", x)
    layer.classify(x.tensor, x.pixels)
    return layer.finish("decoder", 0)


def _neck(layer: LayerBuilder, model: SemanticFpn, levels: list[FeatureMaps]) -> list[FeatureMaps]:
    """Append the feature pyramid: each level plus the upsampled coarser one (Lin et al. 2017)."""
    count = len(levels)
    lateral = [convolve(layer, f"lateral_{i + 1}", x, model.neck, bias=True) for i, x in enumerate(levels)]
    for i in reversed(range(count - 1)):
        above = enlarge(layer, "nearest", f"nearest_{i + 1}", lateral[i + 1])
        lateral[i] = add_maps(layer, f"pyramid_add_{i + 1}", lateral[i], above)
    return [convolve(layer, f"pyramid_{i + 1}", x, model.neck, 3, bias=True) for i, x in enumerate(lateral)]


def _segment(layer: LayerBuilder, model: SemanticFpn, levels: list[FeatureMaps]) -> FeatureMaps:
    """Append convolutions that bring every level to the finest resolution, and the sum of the levels.

    An upsampling follows each convolution except on the finest level.
    """
    total = levels[0]
    for level, maps in enumerate(levels):
        x = maps
        for step in range(model.convolutions[level]):
            name = f"scale_{level + 1}_{step + 1}"
            x = convolve_and_normalise(layer, name, x, model.head, 3)
            x = enlarge(layer, "upsample", f"{name}_upsample", x) if level else x
        total = add_maps(layer, f"scale_add_{level + 1}", total, x) if level else x
    return total
