"""Trace a PyTorch module, if its user says that code may run, and count it beside the same model's spec."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.model import AnyModel
from phaze.workload.families.traced.translate import Trace, graph_of
from phaze.workload.lower.backward import backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import fuse
from phaze.workload.models import build_graph
from phaze.workload.primitives import LayerGraph

if TYPE_CHECKING:
    from phaze.spec.torch_module import TorchModule


def trace(spec: TorchModule, microbatch: int, *, run_code: bool) -> Trace:
    """Return what a module runs; PhazeError unless its code may run and PyTorch is installed."""
    if not run_code:
        raise PhazeError(
            f"model {spec.name}: torch: {spec.torch} would be imported and called; "
            "allow it with --run-code if you trust the spec and the package"
        )
    if find_spec("torch") is None:
        raise PhazeError(
            "trace: PyTorch is not installed: .venv/bin/pip install -e '.[torch]' in the folder of phaze, or "
            "conda env create -f envs/torch.yaml"
        )
    from phaze.workload.families.traced.record import record

    return record(spec, microbatch)


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
    """Return what a spec counts of one sample of so many tokens, an embedding that the head shares once."""
    whole = build_graph(model, tokens, Layout(), 2).unroll()
    counts = _counts(whole)
    tied = sum(primitive.parameters for primitive in whole.primitives if primitive.group == "tied")
    return replace(counts, parameters=counts.parameters - tied)


def _counts(whole: LayerGraph) -> Counts:
    groups = fuse(whole, enabled=False)
    return Counts(
        parameters=sum(primitive.parameters for primitive in whole.primitives),
        forward_flops=forward_pass(whole, groups, 2).tensor_flops,
        backward_flops=backward_pass(whole, groups, 2, "paired").tensor_flops,
    )
