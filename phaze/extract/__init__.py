"""Extract: from the spec of a model to the operators of its distinct layers."""

from phaze.extract.frames import LayerTables, extract_graph, extract_layers
from phaze.extract.summary import summarise_model

__all__ = ["LayerTables", "extract_graph", "extract_layers", "summarise_model"]
