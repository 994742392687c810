"""Models as the operators that the tile level knows (PALM, Table III), in the order of the forward pass.

Only what PALM's table counts: no normalisations, no activation functions, no embedding. A shortcut's
convolution comes after those that it passes by.
"""

from itertools import pairwise

from phaze.base.errors import PhazeError
from phaze.spec.model import AnyModel, Model
from phaze.spec.vision import Backbone, ResNet
from phaze.tiles.operators import Convolution, Linear, Operator, Pool, Transformer


def operators_of(model: AnyModel, samples: int, sequence: int = 1) -> tuple[Operator, ...]:
    """Return the operators for so many samples of so many tokens; of a transformer its blocks.

    Raises `PhazeError` on models whose operators PALM's table does not have.
    """
    if isinstance(model, Model):
        return _blocks(model, samples, sequence)
    if isinstance(model, ResNet):
        return _resnet(model, samples)
    raise PhazeError(f"model {model.name}: the tile level knows transformers and residual networks only")


def _blocks(model: Model, samples: int, sequence: int) -> tuple[Operator, ...]:
    if (
        model.feed_forward != 4 * model.hidden
        or model.query_width != model.hidden
        or model.kv_heads != model.heads
    ):
        raise PhazeError(
            f"model {model.name}: PALM's transformer layer has feed_forward 4 × hidden and as many key-value "
            "heads as heads"
        )
    return tuple(
        Transformer(samples, model.hidden, sequence, model.heads, f"block {k + 1}")
        for k in range(model.layers)
    )


def _resnet(model: ResNet, samples: int) -> tuple[Operator, ...]:
    backbone, size = model.backbone, -(-model.image // 2)
    stem = Convolution(samples, model.image, model.image, model.channels, 7, 7, backbone.stem, 2, "stem")
    pool = Pool(samples, size, size, backbone.stem, 3, 3, 2, "pool")
    last = backbone.sizes(model.image)[-1]
    mean = Pool(samples, last, last, backbone.outputs[-1], last, last, last, "mean")
    head = Linear(samples, 1, model.classes, backbone.outputs[-1], name="head")
    return (stem, pool, *_stages(backbone, model.image, samples), mean, head)


def _stages(backbone: Backbone, image: int, samples: int) -> list[Operator]:
    sizes = (-(-image // 4), *backbone.sizes(image))
    found: list[Operator] = []
    for stage, ((before, after), (inside, out)) in enumerate(
        zip(pairwise(sizes), pairwise((backbone.stem, *backbone.outputs)), strict=True)
    ):
        width = backbone.widths[stage]
        for block in range(backbone.blocks[stage]):
            name = f"stage {stage + 1} block {block + 1}"
            first = (before, inside, before // after) if block == 0 else (after, out, 1)
            found += _block(name, samples, first, width, out)
    return found


def _block(
    name: str, samples: int, first: tuple[int, int, int], width: int, out: int
) -> tuple[Convolution, ...]:
    """Return a bottleneck of an input of (size, channels, stride); its 3 × 3 convolution strides."""
    size, inside, stride = first
    small = -(-size // stride)
    convolutions = (
        Convolution(samples, size, size, inside, 1, 1, width, 1, f"{name} reduce"),
        Convolution(samples, size, size, width, 3, 3, width, stride, f"{name} 3 × 3"),
        Convolution(samples, small, small, width, 1, 1, out, 1, f"{name} expand"),
    )
    if inside == out:
        return convolutions
    return (*convolutions, Convolution(samples, size, size, inside, 1, 1, out, stride, f"{name} shortcut"))
