"""Workload of a model of any kind: its primitives, fused into operators."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.model import Model
from phaze.spec.models import AnyModel
from phaze.spec.names import ParameterGroup
from phaze.spec.settings import ExtractSettings
from phaze.spec.traced import Traced
from phaze.spec.vision import ResNet, SemanticFpn
from phaze.workload.families.traced.layers import traced_graph
from phaze.workload.families.transformer import transformer_graph
from phaze.workload.families.vision import resnet_graph, semantic_fpn_graph, swin_graph
from phaze.workload.lower.attention import join_attention
from phaze.workload.lower.backward import backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import fuse
from phaze.workload.lower.memory import kept_tensors, statistics_bytes
from phaze.workload.lower.sharding import slice_model
from phaze.workload.primitives import LayerGraph, ModelGraph
from phaze.workload.workload import Layer, Workload, graph_table

if TYPE_CHECKING:
    import pandas as pd

MOST_CHIP_WORKLOADS = 2_000
"""Maximum number of shards whose workloads stay in memory.

The bounds of chips and the search lower the same shards: about 1,000 of a dense model on 1,024 devices, and
900 of the 13,435 of one with experts.
"""


def extract_workload(model: AnyModel, sequence: int, layout: Layout, settings: ExtractSettings) -> Workload:
    """Build the workload of one shard of a model, fused as the extract settings specify.

    Raises PhazeError if tp does not divide the heads, or the model has no positions for the sequence.
    """
    graph = build_graph(
        _trained(model, head=settings.head is not False), sequence, layout, settings.bytes_per_element
    )
    if settings.head == "in-layers":
        graph = graph.with_head_in_layers()
    if not settings.whole_microbatch:
        graph = graph.with_products_of_a_sample(layout.microbatch)
    return lower(graph, model.name, layout, settings)


def chip_workload(model: AnyModel, sequence: int, layout: Layout) -> Workload:
    """Build the workload of one shard of a model as a chip runs it: fused operators, attention on chip."""
    return replace(_chip_workload(model, sequence, layout.key), layout=layout)


@lru_cache(maxsize=MOST_CHIP_WORKLOADS)
def _chip_workload(model: AnyModel, sequence: int, key: str) -> Workload:
    """Workload for a layout key, shared by all numbers of replicas and stages."""
    layout = Layout.of_key(key)
    settings = ExtractSettings.model_validate(
        {"scores": "on-chip", "bytes_per_element": layout.bytes_per_element}
    )
    return extract_workload(model, sequence, layout, settings)


def library_workload(model: AnyModel, sequence: int, layout: Layout) -> Workload:
    """Build the workload of one shard of a model with library GEMMs and fused elementwise kernels.

    This is the set of kernels of Megatron-LM on GPUs (Narayanan et al., SC 2021, Section 4.2): library
    products, and custom kernels for bias and activation, for scale, mask and softmax, and for bias, dropout
    and sum.
    """
    return replace(_library_workload(model, sequence, layout.key), layout=layout)


@lru_cache(maxsize=128)
def _library_workload(model: AnyModel, sequence: int, key: str) -> Workload:
    """Workload for a layout key, shared by all numbers of replicas and stages."""
    layout = Layout.of_key(key)
    width = layout.bytes_per_element
    # Megatron's kernel of scale, mask and softmax ends with the softmax: dropout does not join it.
    settings = ExtractSettings.model_validate({"after_reductions": False, "bytes_per_element": width})
    return lower(build_graph(model, sequence, layout, width), model.name, layout, settings, products=False)


def extract_graph(model: AnyModel, *, head: bool | Literal["in-layers"] = True) -> pd.DataFrame:
    """Table `graphs` of a chain model: its layer runs; the only table that depends on the number of blocks.

    `head` is as in `ExtractSettings`: without it, it is the graph of the base model. Raises PhazeError if the
    layers do not form a chain.
    """
    model.check_chain("extract")
    graph = build_graph(_trained(model, head=head is not False), 1, Layout(), 1)
    runs = graph.with_head_in_layers().runs if head == "in-layers" else graph.runs
    return graph_table(model.name, runs)


def _trained(model: AnyModel, *, head: bool) -> AnyModel:
    """Model to train: without its head if it is a transformer and `head` is false."""
    return model.without_head() if isinstance(model, Model) and not head else model


def build_graph(model: AnyModel, sequence: int, layout: Layout, bytes_per_element: int) -> ModelGraph:
    """Build the primitives of one shard of a model for one microbatch.

    Raises PhazeError if the model cannot be sharded as requested or does not support the sequence.
    """
    if isinstance(model, Model):
        return transformer_graph(slice_model(model, sequence, layout, bytes_per_element))
    where = f"model {model.name}"
    model.check_tensor_width(layout.tp, where)
    if isinstance(model, Traced):
        return traced_graph(model, layout.microbatch)
    model.check_sequence(sequence, where)
    # Context parallelism shards a sequence, which an image does not have.
    if layout.cp > 1:
        raise PhazeError(f"{where}: cp: {layout.cp} must be 1, a sample is one image")
    if isinstance(model, ResNet):
        return resnet_graph(model, layout.microbatch)
    if isinstance(model, SemanticFpn):
        return semantic_fpn_graph(model, layout.microbatch)
    return swin_graph(model, layout.microbatch, bytes_per_element)


def lower(
    graph: ModelGraph, name: str, layout: Layout, settings: ExtractSettings, *, products: bool = True
) -> Workload:
    """Lower a model's primitives to a workload; without `products`, nothing is fused into a GEMM."""
    layers = tuple(_lower(layer, settings, products=products) for layer in graph.layers)
    return Workload(name, layout, layers, graph.runs)


@lru_cache(maxsize=MOST_CHIP_WORKLOADS)
def _lower(layer: LayerGraph, settings: ExtractSettings, *, products: bool) -> Layer:
    width = settings.bytes_per_element
    groups = fuse(
        layer, enabled=settings.fusion, products=products, after_reductions=settings.after_reductions
    )
    form = settings.backward if settings.weight_gradients else "data"
    parameters: Counter[ParameterGroup] = Counter()
    for primitive in layer.primitives:
        parameters[primitive.group] += primitive.parameters
    tensors = kept_tensors(layer, width)
    core = sum(tensor.nbytes for tensor in tensors if "core_attn" in tensor.regions)
    lowered = Layer(
        name=layer.name,
        forward=forward_pass(layer, groups, width),
        backward=backward_pass(layer, groups, width, form),
        groups={group: number for group, number in parameters.items() if number},
        parameter_bytes=parameters.total() * width,
        input_bytes=layer.input_elements * width,
        output_bytes=layer.output_elements * width,
        activation_bytes=settings.activation_factor * sum(tensor.nbytes for tensor in tensors),
        attention_bytes=settings.activation_factor * core,
        kept=tensors,
        statistics_bytes=statistics_bytes(layer),
        frozen=sum(primitive.parameters for primitive in layer.primitives if primitive.frozen),
        primitives=len(layer.primitives),
    )
    return join_attention(lowered) if settings.scores == "on-chip" else lowered
