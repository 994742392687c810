"""The network of a model, whatever its kind."""

from __future__ import annotations

from phaze.layout import Layout
from phaze.spec.model import AnyModel, Model
from phaze.spec.vision import ResNet, SemanticFpn
from phaze.workload.families.resnet import resnet_network, semantic_fpn_network
from phaze.workload.families.swin import swin_network
from phaze.workload.families.transformer import build_layers
from phaze.workload.lower.sharding import Slice, slice_model
from phaze.workload.network import Network, Run


def build_network(model: AnyModel, sequence: int, layout: Layout, bytes_per_element: int) -> Network:
    """Return one of the equal slices of a model for one microbatch.

    Raises PhazeError where the model cannot be sliced so, or takes no such sequence.
    """
    if isinstance(model, Model):
        return _transformer_network(slice_model(model, sequence, layout, bytes_per_element))
    where = f"model {model.name}"
    model.check_tensor_width(layout.tp, where)
    model.check_sequence(sequence, where)
    if isinstance(model, ResNet):
        return resnet_network(model, layout.microbatch)
    if isinstance(model, SemanticFpn):
        return semantic_fpn_network(model, layout.microbatch)
    return swin_network(model, layout.microbatch, bytes_per_element)


def _transformer_network(part: Slice) -> Network:
    layers = build_layers(part)
    counts = {"block": part.model.layers}
    return Network(layers, tuple(Run(layer.name, counts.get(layer.name, 1)) for layer in layers))
