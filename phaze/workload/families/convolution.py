"""Feature maps of images, and the operations that convolutional networks apply to them.

A convolution is a matrix multiplication of its unrolled input, one row per output pixel (im2col), so it is
mapped and priced like any other. Libraries and accelerators unroll on chip: HBM stores the original input.
`Gemm.unrolled` is the number of elements by which the unrolled matrix is larger. The gradients are the two
products of the same three matrices. Padding keeps the size: a map of height n becomes one of ⌈n/stride⌉.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from phaze.spec.rows import Gemm
from phaze.workload.primitives import LayerBuilder, Tensor


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


def normalise(layer: LayerBuilder, name: str, x: FeatureMaps) -> FeatureMaps:
    """Append a batch norm, with scale and shift per channel."""
    return x.with_tensor(layer.add("batch_norm", f"{name}_norm", x.tensor, parameters=2 * x.channels))


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
    """Append a convolution and a batch norm, and a ReLU if `relu` is set."""
    y = normalise(layer, name, convolve(layer, name, x, kernels, window, stride))
    return rectify(layer, name, y) if relu else y


def pool(layer: LayerBuilder, name: str, x: FeatureMaps) -> FeatureMaps:
    """Append max pooling with 3 × 3 windows and stride 2."""
    size = -(-x.size // 2)
    y = layer.add("max_pool", name, x.tensor, elements=x.samples * x.channels * size**2)
    return FeatureMaps(y, x.samples, x.channels, size)


def enlarge(layer: LayerBuilder, kind: str, name: str, x: FeatureMaps) -> FeatureMaps:
    """Append an upsampling by 2: `upsample` is bilinear, `nearest` copies the nearest pixel."""
    y = layer.add(kind, name, x.tensor, elements=4 * x.tensor.elements)
    return FeatureMaps(y, x.samples, x.channels, 2 * x.size)


def add_maps(layer: LayerBuilder, name: str, x: FeatureMaps, y: FeatureMaps) -> FeatureMaps:
    """Append the sum of two feature maps."""
    return x.with_tensor(layer.add("add", name, x.tensor, y.tensor))
