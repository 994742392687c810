"""Image models to train: residual networks, Swin transformers, and a segmentation network.

A sample is an image. A study treats it as a sequence of one token, and tensor parallelism does not apply.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.counts import TokenFlops
from phaze.spec.noun import Noun
from phaze.spec.unsharded import UnshardedModel
from phaze.spec.values import WHOLE, Count, Share

Pixels = Annotated[int, Field(strict=True, gt=0, le=2**14), WHOLE]
Sizes = Annotated[tuple[Count, ...], Field(min_length=1, max_length=16)]


class Vision(UnshardedModel):
    """Base class of image models."""

    token: ClassVar[str] = "image"  # what a message calls an element of a sample

    image: Pixels = 224
    """Height and width of an image in pixels."""
    channels: Count = 3
    """Channels per image."""
    classes: Count = 1000
    """Number of classes."""

    @property
    def multiply_accumulates(self) -> int:
        """Multiply-accumulates of matrix products and convolutions in the forward pass, per image."""
        raise NotImplementedError

    @property
    def first_multiply_accumulates(self) -> int:
        """Multiply-accumulates of the first convolution, which computes no gradient of the image."""
        raise NotImplementedError

    @property
    def usual_sequence(self) -> int:
        """Tokens per sample: 1, since a sample is one image."""
        return 1

    def flops_per_token(self, sequence: int) -> TokenFlops:
        """FLOPs to train on one image: 2 per multiply-accumulate, in three passes of equal work.

        The first convolution needs only two passes.
        """
        flops = (6.0 * self.multiply_accumulates - 2.0 * self.first_multiply_accumulates) / sequence
        return TokenFlops(needed=flops, paper=flops)

    def check_sequence(self, sequence: int, where: str) -> None:
        """Raise PhazeError unless a sample is one image; `where` names the source."""
        if sequence != 1:
            raise PhazeError(
                f"{where}: sequence: {sequence} must be 1: a sample of model {self.name} is one image"
            )


class Backbone(Noun):
    """Residual backbone of bottleneck blocks (He et al. 2016, Table 1), as in TorchVision.

    The 3 x 3 convolution of the first block of each stage has stride 2, except in the first stage.
    """

    stem: Count = 64
    """Output channels of the first convolution, 7 x 7 with stride 2, before pooling."""
    blocks: Sizes
    """Number of blocks in every stage."""
    widths: Sizes = (64, 128, 256, 512)
    """Output channels of the 3 x 3 convolutions in every stage."""
    expansion: Count = 4
    """Ratio of a block's output channels to the width of its 3 x 3 convolution."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.blocks) != len(self.widths):
            raise ValueError(
                f"blocks: must have as many stages as widths, {len(self.widths)}, got {len(self.blocks)}"
            )
        return self

    @property
    def outputs(self) -> tuple[int, ...]:
        """Number of output channels of every stage."""
        return tuple(self.expansion * width for width in self.widths)

    def sizes(self, image: int) -> tuple[int, ...]:
        """Output height of every stage: the image halved by the stem, the pooling, and each later stage."""
        # Layers with stride 2 are padded, so sizes are rounded up.
        return tuple(-(-image // 2 ** (2 + stage)) for stage in range(len(self.blocks)))

    def multiply_accumulates(self, image: int, channels: int) -> int:
        """Multiply-accumulates of the forward pass, per image."""
        total, inside, before = self.first(image, channels), self.stem, -(-image // 4)
        for blocks, width, out, size in zip(
            self.blocks, self.widths, self.outputs, self.sizes(image), strict=True
        ):
            # A block after its first 1 x 1 convolution. The first block has a shortcut convolution, and its
            # first convolution runs before the stride, at the size of the stage before.
            block = 9 * width * width + width * out
            total += size * size * (blocks * block + (blocks - 1) * out * width + inside * out)
            total += before * before * inside * width
            inside, before = out, size
        return total

    def first(self, image: int, channels: int) -> int:
        """Multiply-accumulates of the backbone's first convolution, per image."""
        size = -(-image // 2)
        return channels * self.stem * 49 * size * size


class Residual(Vision):
    """Base class of networks with a residual backbone."""

    backbone: Backbone
    """Stem and blocks."""

    @property
    def first_multiply_accumulates(self) -> int:
        """Multiply-accumulates of the first convolution."""
        return self.backbone.first(self.image, self.channels)

    def distinct(self) -> Self:
        """Smallest model with one block of each kind; K (`hyper_operators`) is dropped."""
        fewest = tuple(min(blocks, 2) for blocks in self.backbone.blocks)
        backbone = self.backbone.model_copy(update={"blocks": fewest})
        return self.model_copy(update={"backbone": backbone, "hyper_operators": None})


class ResNet(Residual):
    """Residual network of bottleneck blocks for image classification (He et al. 2016)."""

    kind: Literal["resnet"]
    """Kind of model."""

    @property
    def multiply_accumulates(self) -> int:
        """Multiply-accumulates of the forward pass, per image."""
        backbone = self.backbone.multiply_accumulates(self.image, self.channels)
        return backbone + self.backbone.outputs[-1] * self.classes


class SemanticFpn(Residual):
    """Residual network with a feature pyramid that classifies every pixel (Kirillov et al. 2019).

    Neck and head follow MMSegmentation: convolutions bring every level to a quarter of the image size, one
    per halving to undo but at least one, and the levels are summed.
    """

    kind: Literal["semantic-fpn"]
    """Kind of model."""
    neck: Count = 256
    """Channels of the pyramid."""
    head: Count = 128
    """Channels of the head."""
    dropout: Share = 0.1
    """Dropout probability before the last convolution."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.image % 2 ** (1 + len(self.backbone.blocks)):
            raise ValueError(f"image {self.image} must be divisible by all strides, 2^(stages + 1)")
        return self

    @property
    def convolutions(self) -> tuple[int, ...]:
        """Number of convolutions in the head, by level of the pyramid."""
        return tuple(max(1, level) for level in range(len(self.backbone.blocks)))

    @property
    def multiply_accumulates(self) -> int:
        """Multiply-accumulates of the forward pass, per image."""
        total = self.backbone.multiply_accumulates(self.image, self.channels)
        sizes = self.backbone.sizes(self.image)
        for channels, size, count in zip(self.backbone.outputs, sizes, self.convolutions, strict=True):
            # Each level is projected to the pyramid's width, then smoothed by a 3 x 3 convolution.
            total += size * size * (channels + 9 * self.neck) * self.neck
            inside = self.neck
            for step in range(count):
                # Each convolution of the head is followed by an interpolation to twice the size.
                total += (size << step) ** 2 * 9 * inside * self.head
                inside = self.head
        return total + sizes[0] ** 2 * self.head * self.classes

    def check_chain(self, where: str) -> None:
        """Raise PhazeError: the pyramid reads all stages of the backbone, so the layers are not a chain."""
        raise PhazeError(
            f"{where}: model {self.name} is not a chain of layers (its pyramid reads every stage "
            "of the backbone), and only a chain can be placed",
            "`python -m phaze partition` accepts the graph",
        )


class Swin(Vision):
    """Swin transformer for image classification, with attention in windows (Liu et al. 2021).

    Every other block shifts its windows by half a window.
    """

    kind: Literal["swin"]
    """Kind of model."""
    patch: Count = 4
    """Height and width of a patch in pixels."""
    hidden: Count
    """Width of the first stage, C; every later stage is twice as wide as the one before."""
    depths: Sizes
    """Number of blocks in every stage; even, since blocks with and without shifted windows alternate."""
    heads: Sizes
    """Number of attention heads in every stage."""
    window: Count = 7
    """Height and width of a window in patches."""
    expansion: Count = 4
    """Ratio of the feed-forward network's inner width to the width of its stage."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.depths) != len(self.heads):
            raise ValueError(
                f"depths: must have as many stages as heads, {len(self.heads)}, got {len(self.depths)}"
            )
        if any(depth % 2 for depth in self.depths):
            raise ValueError(f"depths {list(self.depths)} must be even")
        if self.image % self.patch:
            raise ValueError(f"patch {self.patch} must divide image {self.image}")
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads:
                raise ValueError(f"heads {heads} must divide the width {width} of their stage")
        for stage, size in enumerate(self.sizes):
            if size % self.window_of(stage) or (stage and self.sizes[stage - 1] % 2):
                raise ValueError(
                    f"window {self.window} must divide the {size} patches of every stage, and 2 "
                    "must divide the patches of the stage before"
                )
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of every stage."""
        return tuple(self.hidden << stage for stage in range(len(self.depths)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Height of every stage's input in patches."""
        return tuple((self.image // self.patch) >> stage for stage in range(len(self.depths)))

    def window_of(self, stage: int) -> int:
        """Height of a stage's windows in patches, at most the size of the stage."""
        return min(self.window, max(self.sizes[stage], 1))

    def shifts(self, stage: int) -> bool:
        """True if every other block of a stage shifts its windows (only if no window covers the stage)."""
        return self.sizes[stage] > self.window_of(stage)

    @property
    def multiply_accumulates(self) -> int:
        """Multiply-accumulates of the forward pass, per image, including both attention products."""
        total = self.first_multiply_accumulates
        for stage, (depth, width, size) in enumerate(zip(self.depths, self.widths, self.sizes, strict=True)):
            attention = 2 * self.window_of(stage) ** 2 * width
            # Projections of queries, keys, values and output, and two matrices of the network.
            total += depth * size * size * ((4 + 2 * self.expansion) * width * width + attention)
        # Merging joins 2 x 2 patches and halves their width: (size / 2)² · 4 width · 2 width.
        total += sum(
            2 * size * size * width**2 for size, width in zip(self.sizes, self.widths[:-1], strict=False)
        )
        return total + self.widths[-1] * self.classes

    @property
    def first_multiply_accumulates(self) -> int:
        """Multiply-accumulates of the patch embedding."""
        return self.hidden * self.channels * self.patch**2 * self.sizes[0] ** 2

    def distinct(self) -> Swin:
        """Smallest model with a pair of blocks in each stage; K (`hyper_operators`) is dropped."""
        return self.model_copy(update={"depths": tuple(2 for _ in self.depths), "hyper_operators": None})
