"""Operator graph of a PyTorch module, measured on this machine's device.

The module is exported with torch.export, and every operator runs alone on the tensors that it reads in the
module: a forward and a backward pass, each the median of several rounds after a warm-up. A round runs every
operator once, in order, and then the whole module. So a lasting load of the machine slows the parts and the
whole alike, and caches are as cold as in training. The time to enter autograd does not count. The graph is
what `phaze partition` reads, with operators named as the emitted pipeline names them. Sizes are those of
tensors: parameters, results and gradients. On a GPU the bytes of a pass are the peak of PyTorch's allocator.

This module imports PyTorch and is imported on demand: the default installation has no PyTorch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import fx, nn

from phaze.base.errors import PhazeError
from phaze.partition.scatter import Scatter, scatter_of
from phaze.runtimes.pipeline_program import Operators, created, examples, exported, operators_of
from phaze.spec.operators import ProfiledInput, ProfiledModule, StoredOperators

Outcome = TypeVar("Outcome")
Clock = Callable[[], float]
"""Time in seconds."""
WARM, ROUNDS = 2, 7
"""Numbers of warm-up rounds and of timed rounds, of which the median counts."""


@dataclass
class MeasuredOperator:
    """Times and sizes of an operator; the field names are those of a stored operator."""

    name: str
    forward_s: float = 0.0
    backward_s: float = 0.0
    parameter_bytes: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0
    layer: str = ""
    read_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes that the operator reads from each other operator."""


def profile_module(
    path: str,
    inputs: tuple[ProfiledInput, ...],
    microbatch: int,
    device: str,
    rounds: int = ROUNDS,
    clock: Clock = time.perf_counter,
    on_scatter: Callable[[Scatter], None] = lambda _: None,
) -> StoredOperators:
    """Measure the operators of the module that `FILE.py:NAME` creates; this runs the file.

    `on_scatter` gets the scatter of the rounds, which the graph does not have. A CPU has one thread unless
    OMP_NUM_THREADS is set. With `time.process_time` as clock, other processes do not count: for one thread of
    a busy CPU. Raises PhazeError if the module cannot be created, exported or run.
    """
    if torch.device(device).type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        # torchrun gives every process of the emitted program one thread.
        torch.set_num_threads(1)
    kinds = tuple((tensor.kind, tensor.shape) for tensor in inputs)
    module = _tried(path, "cannot be created", lambda: created(path, torch.device(device)))
    arguments = _tried(path, "cannot get inputs", lambda: examples(module, kinds, microbatch))
    program = _tried(path, "cannot be traced by torch.export", lambda: exported(module, arguments))
    operators = operators_of(program.graph)
    if not operators:
        raise PhazeError(f"profile: {path}: has no operators", "return a tensor that depends on the inputs")
    profiler = _Profiler(module, program, arguments, operators, clock)
    measured, step_s, scatter = _tried(path, "cannot be executed", lambda: profiler.run(rounds))
    on_scatter(scatter)
    content = {
        "format": "phaze-operators",
        "version": 1,
        "name": path.rpartition("/")[2].partition(".")[0],
        "microbatch": microbatch,
        "operators": [
            {key: value for key, value in vars(operator).items() if key != "read_bytes"}
            for operator in measured
        ],
        "edges": [
            {"source": source, "target": operator.name, "bytes": nbytes}
            for operator in measured
            for source, nbytes in operator.read_bytes.items()
        ],
        "profiled": ProfiledModule(
            module=path, inputs=inputs, device=device_name(device), step_s=step_s
        ).model_dump(),
    }
    return StoredOperators.parse(content, path)


def default_device() -> str:
    """The first GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(device: str) -> str:
    """Name of a GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def _tried(path: str, failure: str, work: Callable[[], Outcome]) -> Outcome:
    """Result of running user code; any exception becomes a PhazeError that ends with its own message."""
    try:
        return work()
    except Exception as error:  # user code raises anything
        raise PhazeError(f"profile: {path}: {failure}:\n{type(error).__name__}: {error}") from error


class _Profiler:
    """Runs the operators of an exported module one by one, and keeps tensors until their last use."""

    def __init__(
        self,
        module: nn.Module,
        program: fx.GraphModule,
        inputs: tuple[torch.Tensor, ...],
        operators: Operators,
        clock: Clock,
    ) -> None:
        self.module, self.whole, self.inputs, self.operators = module, program, inputs, operators
        self.clock = clock
        self.owner = {node: name for name, nodes in operators.items() for node in nodes}
        self.last = {source: node for node in program.graph.nodes for source in node.all_input_nodes}
        self.device = inputs[0].device
        self.tensors: dict[fx.Node, object] = {}
        self.owned: set[int] = set()
        """Parameters that an operator already has; tied weights count once."""

    def run(self, rounds: int) -> tuple[list[MeasuredOperator], float, Scatter]:
        """Measure all operators in order, the median time of the whole module's step in seconds, and scatter.

        Sizes are those of the last round: on a GPU, the first one also allocates workspaces of libraries.
        """
        times_s: list[list[tuple[float, float]]] = []
        steps_s: list[float] = []
        for _ in range(WARM + rounds):
            measured = self._round()
            times_s.append([(operator.forward_s, operator.backward_s) for operator in measured])
            steps_s.append(self._timed(self._step)[0])
        for operator, passes in zip(measured, zip(*times_s[WARM:], strict=True), strict=True):
            operator.forward_s, operator.backward_s = map(statistics.median, zip(*passes, strict=True))
        names = [operator.name for operator in measured]
        return measured, statistics.median(steps_s[WARM:]), scatter_of(names, times_s[WARM:], steps_s[WARM:])

    def _round(self) -> list[MeasuredOperator]:
        """Run all operators once, in order."""
        self.owned.clear()
        placeholders = iter(self.inputs)
        for node in self.whole.graph.nodes:
            if node.op == "placeholder":
                self.tensors[node] = next(placeholders)
            elif node.op == "get_attr":
                parent, _, name = str(node.target).rpartition(".")
                self.tensors[node] = getattr(self.whole.get_submodule(parent), name)
        measured = []
        for name, members in self.operators.items():
            measured.append(self._measure(name, members))
            # Tensors are freed after their last reader; parameters stay with the module.
            for source in [*members[0].all_input_nodes, *members]:
                if self.last.get(source) in members and source in self.owner:
                    self.tensors.pop(source, None)
        return measured

    def _measure(self, name: str, members: list[fx.Node]) -> MeasuredOperator:
        call = members[0]
        stack = list((call.meta.get("nn_module_stack") or {}).values())
        operator = MeasuredOperator(name, layer=(stack[-1][0] if stack else "") or "model")
        leaves = {node: self._leaf(node) for node in call.all_input_nodes}
        arguments = fx.map_arg((call.args, call.kwargs), lambda node: leaves[node])
        outputs: list[object] = []
        operator.forward_s, forward_peak = self._timed(
            lambda: outputs.append(call.target(*arguments[0], **arguments[1]))
        )
        results = list(_tensors(outputs))
        needs_gradients = [
            leaf for leaf in leaves.values() if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        ends = [result for result in results if result.requires_grad]
        backward_peak = 0
        if needs_gradients and ends:
            ones = [torch.ones_like(end) for end in ends]
            backward_s, backward_peak = self._timed(_backward(ends, needs_gradients, ones))
            operator.backward_s = max(backward_s - self._entry_s(), 0.0)
        self._keep(members, outputs[0])
        self._size(operator, call, results, needs_gradients, (forward_peak, backward_peak))
        return operator

    def _size(
        self,
        operator: MeasuredOperator,
        call: fx.Node,
        results: list[torch.Tensor],
        needs_gradients: list[torch.Tensor],
        peaks: tuple[int, int],
    ) -> None:
        """Write the sizes of an operator: tensors that it reads, parameters, and memory of its passes."""
        for node in call.all_input_nodes:
            tensor = self.tensors.get(node)
            if isinstance(tensor, nn.Parameter) and id(tensor) not in self.owned:
                self.owned.add(id(tensor))
                operator.parameter_bytes += tensor.nbytes
            elif node in self.owner and isinstance(tensor, torch.Tensor):
                source = self.owner[node]
                operator.read_bytes[source] = operator.read_bytes.get(source, 0) + tensor.nbytes
        # A view's result lies in the memory of what it views.
        sources = (self.tensors.get(node) for node in call.all_input_nodes)
        viewed = {
            tensor.untyped_storage().data_ptr() for tensor in sources if isinstance(tensor, torch.Tensor)
        }
        new = (result for result in results if result.untyped_storage().data_ptr() not in viewed)
        new_bytes = sum(result.nbytes for result in new)
        gradients = sum(leaf.nbytes for leaf in needs_gradients)
        operator.forward_bytes = operator.parameter_bytes + max(new_bytes, peaks[0])
        operator.backward_bytes = operator.parameter_bytes + max(gradients, peaks[1])

    def _leaf(self, node: fx.Node) -> object:
        """Tensor of a node that gradients reach, without the operators that made it."""
        tensor = self.tensors[node]
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, nn.Parameter):
            return tensor
        return tensor.detach().requires_grad_(tensor.requires_grad)

    def _keep(self, members: list[fx.Node], outputs: object) -> None:
        """Store the outputs of a call and those selected from them, still marked if gradients reach them."""
        self.tensors[members[0]] = _detached(outputs)
        for node in members[1:]:
            selected = node.target(*fx.map_arg(node.args, lambda source: self.tensors[source]))
            self.tensors[node] = selected

    def _entry_s(self) -> float:
        """Seconds to enter and leave autograd: the backward pass of a view, the cheapest operator."""
        leaf = torch.ones((), device=self.device, requires_grad=True)
        return self._timed(_backward([leaf.view(1)], [leaf], [torch.ones(1, device=self.device)]))[0]

    def _step(self) -> None:
        """Run the forward and backward pass of the whole module."""
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        ends = [tensor for tensor in _tensors(self.module(*self.inputs)) if tensor.requires_grad]
        if trained and ends:
            _backward(ends, trained, [torch.ones_like(end) for end in ends])()

    def _timed(self, work: Callable[[], object]) -> tuple[float, int]:
        return _timed_once(work, self.device, self.clock)


def timed(work: Callable[[], object], device: torch.device, rounds: int) -> tuple[float, int]:
    """Median time of a function in seconds, and the peak of bytes that it allocates on a GPU, else 0."""
    runs = [_timed_once(work, device, time.perf_counter) for _ in range(WARM + rounds)]
    return statistics.median(time_s for time_s, _ in runs[WARM:]), runs[-1][1]


def _timed_once(work: Callable[[], object], device: torch.device, clock: Clock) -> tuple[float, int]:
    """Time of one run in seconds, and the peak of bytes that it allocates on a GPU, else 0."""
    gpu, peak = device.type == "cuda", 0
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = clock()
    work()
    if gpu:
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    return clock() - start, peak


def _backward(
    ends: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> Callable[[], object]:
    """Backward pass from some tensors to leaves, which runs once."""
    return partial(torch.autograd.grad, ends, leaves, gradients, allow_unused=True)


def _tensors(outputs: object) -> Iterable[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (list, tuple)):
        for output in outputs:
            yield from _tensors(output)
    elif isinstance(outputs, dict):
        yield from _tensors(list(outputs.values()))


def _detached(outputs: object) -> object:
    """Tensors detached from the graph, with `requires_grad` as before."""
    if isinstance(outputs, torch.Tensor):
        return outputs.detach().requires_grad_(outputs.requires_grad)
    return [_detached(output) for output in outputs] if isinstance(outputs, (list, tuple)) else outputs
