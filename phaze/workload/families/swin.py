"""Distinct layers of a Swin transformer: patch embedding, pairs of blocks, patch merging, head.

A stage's layer is a pair of blocks; the second has shifted windows if there is more than one window.
Partitioning, merging and shifting windows copy the data, as in the authors' program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phaze.spec.rows import Gemm
from phaze.spec.vision import Swin
from phaze.workload.families.convolution import FeatureMaps, convolve
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
class SwinStage:
    """Dimensions of a stage for one microbatch."""

    samples: int
    width: int
    heads: int
    size: int
    """Height in patches."""
    window: int
    """Height of a window in patches."""
    shifts: bool
    expansion: int
    bytes_per_element: int

    @property
    def tokens(self) -> int:
        """Patches of all samples."""
        return self.samples * self.size**2

    @property
    def area(self) -> int:
        """Patches per window."""
        return self.window**2

    @property
    def windows(self) -> int:
        """Windows per sample."""
        return self.size**2 // self.area

    @property
    def elements(self) -> int:
        """Elements of the residual stream."""
        return self.tokens * self.width


def swin_graph(model: Swin, samples: int, bytes_per_element: int) -> ModelGraph:
    """Layers of a Swin transformer for `samples` images."""
    stages = [_stage(model, s, samples, bytes_per_element) for s in range(len(model.depths))]
    layers, runs = [_embedding(model, stages[0])], [LayerRun("embedding")]
    for number, (stage, depth) in enumerate(zip(stages, model.depths, strict=True), start=1):
        if number > 1:
            merge = _merge(f"merge-{number - 1}", stages[number - 2])
            layers, runs = [*layers, merge], [*runs, LayerRun(merge.name)]
        layers, runs = (
            [*layers, _pair(f"stage-{number}", stage)],
            [*runs, LayerRun(f"stage-{number}", depth // 2)],
        )
    return ModelGraph((*layers, _head(model, stages[-1])), (*runs, LayerRun("head")))


def _stage(model: Swin, stage: int, samples: int, bytes_per_element: int) -> SwinStage:
    return SwinStage(
        samples=samples,
        width=model.widths[stage],
        heads=model.heads[stage],
        size=model.sizes[stage],
        window=model.window_of(stage),
        shifts=model.shifts(stage),
        expansion=model.expansion,
        bytes_per_element=bytes_per_element,
    )


def _norm(layer: LayerBuilder, name: str, x: Tensor, width: int) -> Tensor:
    return layer.add("layer_norm", name, x, parameters=2 * width)


def _embedding(model: Swin, stage: SwinStage) -> LayerGraph:
    """Patch embedding; the image needs no gradient."""
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
    """Append window attention: partition, attend, merge."""
    x = layer.add("rearrange", f"{prefix}shift", x) if shifted else x
    x = layer.add("rearrange", f"{prefix}windows", x)
    q, k, v = _projections(layer, prefix, stage, x)
    scores, y = _probabilities(layer, prefix, stage, q, k, shifted=shifted)
    batch, head = stage.samples * stage.windows * stage.heads, stage.width // stage.heads
    gemm = Gemm(batch, stage.area, stage.area, head)
    y = layer.add("matmul", f"{prefix}context", y, v, gemm=gemm)
    layer.attend(scores, y)
    y = layer.add("transpose", f"{prefix}context_transpose", y)
    y = layer.add("reshape", f"{prefix}context_reshape", y)
    y = layer.dense(f"{prefix}attention_out", y, stage.tokens, stage.width, bias=True)
    y = layer.add("rearrange", f"{prefix}windows_back", y)
    return layer.add("rearrange", f"{prefix}shift_back", y) if shifted else y


def _projections(
    layer: LayerBuilder, prefix: str, stage: SwinStage, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Append queries, keys and values by heads, from one matrix."""
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
    table = (2 * stage.window - 1) ** 2 * stage.heads
    index = stage.area**2 * INDEX_BYTES
    y = layer.add("bias", f"{prefix}position_bias", scores, parameters=table, constant_bytes=index)
    if shifted:
        mask = stage.windows * stage.area**2 * stage.bytes_per_element
        y = layer.add("mask", f"{prefix}scores_mask", y, constant_bytes=mask)
    return scores, layer.add("softmax", f"{prefix}softmax", y)


def _merge(name: str, stage: SwinStage) -> LayerGraph:
    layer = LayerBuilder(stage.elements)
    x = layer.add("rearrange", "neighbours", layer.input)
    x = _norm(layer, "merge_norm", x, 4 * stage.width)
    x = layer.dense("merge", x, stage.tokens // 4, 2 * stage.width, bias=False)
    return layer.finish(name, x.elements)


def _head(model: Swin, stage: SwinStage) -> LayerGraph:
    layer = LayerBuilder(stage.elements)
    x = _norm(layer, "final_norm", layer.input, stage.width)
    x = layer.add("transpose", "final_transpose", x)
    x = layer.add("average_pool", "average_pool", x, elements=stage.samples * stage.width)
    x = layer.dense("classifier", x, stage.samples, model.classes, bias=True)
    layer.classify(x, stage.samples)
    return layer.finish("head", 0)
