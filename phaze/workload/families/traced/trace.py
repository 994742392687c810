"""Trace a PyTorch module, if the user allows its code to run, and compare its counts with a spec."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.models import AnyModel
from phaze.spec.settings import ExtractSettings
from phaze.spec.torch_module import CONFIGURED
from phaze.workload.families.traced.translate import Trace, graph_of
from phaze.workload.models import extract_workload, lower
from phaze.workload.primitives import LayerRun, ModelGraph
from phaze.workload.workload import DIRECTIONS, Workload

if TYPE_CHECKING:
    from phaze.spec.torch_module import TorchModule

UNFUSED = ExtractSettings(fusion=False)


def trace(spec: TorchModule, microbatch: int, *, run_code: bool) -> Trace:
    """Trace a module; PhazeError unless its code may run and PyTorch is installed.

    Published configurations need no permission: they name no code, and no model code is loaded.
    """
    if not run_code and spec.torch != CONFIGURED:
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


class Counts(NamedTuple):
    """Parameters and FLOPs of one sample; only matrix multiplications and convolutions count as FLOPs."""

    parameters: int
    forward_flops: int
    backward_flops: int


class CountComparison(NamedTuple):
    """Counts of a model according to PyTorch, the traced operators, and the spec."""

    model: str
    torch: Counts
    traced: Counts
    spec: Counts

    @property
    def agrees(self) -> bool:
        """True if all counts are equal."""
        return self.torch == self.traced == self.spec


def compare(trace: Trace, model: AnyModel, tokens: int) -> CountComparison:
    """Compare the counts of a traced model, for one sample, with its spec."""
    return CountComparison(
        model=model.name,
        torch=Counts(trace.parameters, trace.forward_flops, trace.backward_flops),
        traced=count(traced_workload(trace, model.name, UNFUSED)),
        spec=count(extract_workload(model, tokens, Layout(), UNFUSED)),
    )


def csv_text(comparisons: list[CountComparison]) -> str:
    """CSV text with one row per model and counting method."""
    lines = [",".join(["model", "counted_by", *Counts._fields])]
    for comparison in comparisons:
        counted = (("torch", comparison.torch), ("traced", comparison.traced), ("spec", comparison.spec))
        lines += [",".join(map(str, (comparison.model, who, *counts))) for who, counts in counted]
    return "\n".join(lines) + "\n"


def count(workload: Workload) -> Counts:
    """Parameters and FLOPs of a workload; an embedding shared with the head counts once."""
    flops = (workload.tensor_flops(direction) for direction in DIRECTIONS)
    return Counts(workload.parameters("dense", "expert", "embedding"), *flops)


def traced_workload(trace: Trace, name: str, settings: ExtractSettings) -> Workload:
    """Lower a traced module to a workload with a single layer; PhazeError if it cannot be translated."""
    return lower(ModelGraph((graph_of(trace),), (LayerRun("model"),)), name, Layout(), settings)
