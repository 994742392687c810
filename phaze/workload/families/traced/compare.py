"""A model traced in PyTorch beside the same model from its spec."""

from __future__ import annotations

from dataclasses import dataclass, fields

from phaze.layout import Layout
from phaze.spec.model import AnyModel, Model
from phaze.workload.families.traced.calls import Trace
from phaze.workload.families.traced.translate import graph_of
from phaze.workload.lower.backward import backward_graph
from phaze.workload.lower.forward import forward_graph
from phaze.workload.lower.fusion import fuse
from phaze.workload.models import build_network
from phaze.workload.operators import OperatorGraph
from phaze.workload.primitives import LayerGraph


@dataclass(frozen=True)
class Counts:
    """What is counted of one sample; FLOPs are those of matrix multiplications and convolutions."""

    parameters: int
    forward_flops: int
    backward_flops: int


@dataclass(frozen=True)
class Comparison:
    """A model counted three times: by PyTorch, of the traced operators, and of the spec."""

    model: str
    torch: Counts
    traced: Counts
    spec: Counts

    @property
    def agrees(self) -> bool:
        """Return whether all are the same."""
        return self.torch == self.traced == self.spec


def compare(trace: Trace, model: AnyModel, tokens: int) -> Comparison:
    """Return a traced model of one sample beside its spec."""
    return Comparison(
        model=model.name,
        torch=Counts(trace.parameters, trace.forward_flops, trace.backward_flops),
        traced=_counts(graph_of(trace)),
        spec=count_spec(model, tokens),
    )


def csv_text(comparisons: list[Comparison]) -> str:
    """Return a row for each model and who counted, as CSV."""
    columns = [field.name for field in fields(Counts)]
    lines = [",".join(["model", "counted_by", *columns])]
    for one in comparisons:
        for who, counts in (("torch", one.torch), ("traced", one.traced), ("spec", one.spec)):
            lines.append(",".join([one.model, who, *(str(getattr(counts, name)) for name in columns)]))
    return "\n".join(lines) + "\n"


def count_spec(model: AnyModel, tokens: int) -> Counts:
    """Return what a spec counts of one sample of so many tokens."""
    whole = build_network(model, tokens, Layout(), 2).unroll()
    return _without_copies(_counts(whole), model)


def _counts(whole: LayerGraph) -> Counts:
    groups = fuse(whole, enabled=False)
    return Counts(
        parameters=sum(primitive.parameters for primitive in whole.primitives),
        forward_flops=_flops(forward_graph(whole, groups, 2)),
        backward_flops=_flops(backward_graph(whole, groups, 2, "paired")),
    )


def _flops(graph: OperatorGraph) -> int:
    return sum(part.tensor_flops for operator in graph.operators for part in operator.parts)


def _without_copies(counts: Counts, model: AnyModel) -> Counts:
    """Return counts without the head's copy of a tied embedding, which may lie on another stage."""
    copied = isinstance(model, Model) and model.tied_embeddings and model.head != "none"
    copy = model.word_width * model.vocabulary if isinstance(model, Model) and copied else 0
    return Counts(counts.parameters - copy, counts.forward_flops, counts.backward_flops)
