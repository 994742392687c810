"""Train a PyTorch module in pipeline stages, with torch.distributed.pipelining.

Start it with torchrun, one process per device of the map; processes of other devices end at once. Process d
of torchrun runs the stage and replica that the map has on device d. The file of the module needs, next to
the callable that creates it:

    loss(output, target)    mean loss of a batch
    batch(samples)          inputs as a tuple, and the target, for so many samples

Batch norm is frozen: it uses its running statistics, because a pipeline sees one microbatch at a time. Stages
are made of operators of the exported module. A tensor that a later stage needs is carried through all stages
in between. Parameters that several stages use have the sum of the gradients of all of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.modules.batchnorm import _BatchNorm

# begin of the plan
MODULE = "module.py:make"
MICROBATCH = 1
MICROBATCHES = 1
INPUTS: tuple[tuple[str, tuple[int, ...]], ...] = ()
STAGES: tuple[tuple[str, ...], ...] = ()
MAP: tuple[tuple[int, ...], ...] = ()
# end of the plan

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
WARM = 2
"""Number of first steps whose times do not count."""
Operators = dict[str, list[fx.Node]]
"""Nodes of every operator by name: a call, and the selections from its outputs."""
Batch = tuple[tuple[torch.Tensor, ...], torch.Tensor]
"""Inputs of the module, and the target."""


def attribute(path: str, name: str | None = None) -> object:
    """Attribute of a Python file, given as FILE:NAME, or another one of the same file; this runs the file."""
    file, _, default = path.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise FileNotFoundError(f"{file}: is not a Python file")
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:  # modules beside the file can be imported, as if it were run
        sys.path.append(folder)
    module = sys.modules.get(spec.name)
    if module is None or getattr(module, "__file__", None) != spec.origin:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    if not hasattr(module, name or default):
        raise AttributeError(f"{file}: {name or default}: is missing; define it")
    outcome: object = getattr(module, name or default)
    return outcome


def created(path: str, device: torch.device) -> nn.Module:
    """Module of FILE:NAME with the weights of seed 0, in training but with frozen batch norm."""
    torch.manual_seed(0)
    make = attribute(path)
    module = make() if callable(make) else make
    if not isinstance(module, nn.Module):
        raise TypeError(f"{path}: must return a torch.nn.Module, got {type(module).__name__}")
    module.to(device).train()
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.eval()
    return module


def examples(
    module: nn.Module, inputs: tuple[tuple[str, tuple[int, ...]], ...], samples: int
) -> tuple[torch.Tensor, ...]:
    """Inputs of a microbatch, by kind (real or index) and shape of a sample; indices are zeros."""
    first = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    return tuple(
        torch.zeros(samples, *shape, dtype=torch.int64, device=first.device)
        if kind == "index"
        else torch.randn(samples, *shape, dtype=first.dtype, device=first.device)
        for kind, shape in inputs
    )


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """Graph of a module's operators, which shares its parameters and changes nothing in place."""
    program: fx.GraphModule = (
        torch.export.export(module, inputs, strict=False).run_decompositions({}).module()
    )
    for node in list(program.graph.nodes):
        # Checks of the input shapes, which no stage after the first one could make.
        if node.op == "call_module":
            program.graph.erase_node(node)
        # Tensors arrive at a stage in order of their elements, which a view of other strides cannot read.
        elif node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    return program


def operators_of(graph: fx.Graph) -> Operators:
    """Operators of an exported graph in order, named by module and PyTorch operator."""
    operators: Operators = {}
    owner: dict[fx.Node, str] = {}
    names: Counter[str] = Counter()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        source = node.args[0] if node.args else None
        if not isinstance(node.target, torch._ops.OpOverload) and isinstance(source, fx.Node):
            owner[node] = owner[source]  # a selection from the outputs of a call
            operators[owner[node]].append(node)
            continue
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        name = (
            f"{(stack[-1][0] if stack else '') or 'model'}.{node.target.overloadpacket.__name__.strip('_')}"
        )
        names[name] += 1
        owner[node] = name if names[name] == 1 else f"{name}-{names[name]}"
        operators[owner[node]] = [node]
    return operators


def stage_of_nodes(
    graph: fx.Graph, stages: tuple[tuple[str, ...], ...], operators: Operators
) -> dict[fx.Node, int]:
    """Stage of every node of an operator; inputs belong to the first stage."""
    names = [name for stage in stages for name in stage]
    if sorted(names) != sorted(operators):
        other = sorted(set(names) ^ set(operators))[:3]
        raise ValueError(
            f"{MODULE}: has other operators than the plan, such as {', '.join(other)}; profile it again"
        )
    stage_of = {node: s for s, stage in enumerate(stages) for name in stage for node in operators[name]}
    return stage_of | {node: 0 for node in graph.nodes if node.op == "placeholder"}


def results_of(graph: fx.Graph) -> list[fx.Node]:
    """Tensors that the module returns."""
    return list(next(node for node in graph.nodes if node.op == "output").all_input_nodes)


def carried(graph: fx.Graph, stage_of: Mapping[fx.Node, int], stages: int) -> list[list[fx.Node]]:
    """Tensors that go from each stage to the next one, skip connections through all stages in between."""
    last: dict[fx.Node, int] = {}
    for node in graph.nodes:
        reader = stages - 1 if node.op == "output" else stage_of.get(node, -1)
        for source in node.all_input_nodes:
            last[source] = max(last.get(source, 0), reader)
    return [
        [node for node in graph.nodes if node in stage_of and stage_of[node] <= s < last.get(node, 0)]
        for s in range(stages - 1)
    ]


def with_gradients(program: fx.GraphModule) -> set[fx.Node]:
    """Nodes whose tensors gradients reach: real numbers that depend on a parameter."""
    parameters = dict(program.named_parameters(remove_duplicate=False))
    reached: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "get_attr":
            is_reached = str(node.target) in parameters and parameters[str(node.target)].requires_grad
        else:
            tensor = node.meta.get("val")
            is_real = not isinstance(tensor, torch.Tensor) or tensor.is_floating_point()
            is_reached = (
                is_real
                and "detach" not in str(node.target)
                and bool(reached.intersection(node.all_input_nodes))
            )
        if is_reached:
            reached.add(node)
    return reached


def border(nodes: list[fx.Node], reached: set[fx.Node], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Tensors like those that pass between two stages, so that the stages need not run to find them out."""
    traced = ((node, node.meta["val"]) for node in nodes)
    return tuple(
        torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=device).requires_grad_(node in reached)
        for node, tensor in traced
    )


def stage_module(
    program: fx.GraphModule, stage_of: Mapping[fx.Node, int], stages: int, stage: int
) -> fx.GraphModule:
    """Operators of one stage: reads the tensors of the stage before, returns those for the next one."""
    borders = carried(program.graph, stage_of, stages)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs = borders[stage - 1] if stage else [n for n in program.graph.nodes if n.op == "placeholder"]
    for node in inputs:
        copies[node] = graph.placeholder(node.name)

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies and node.op == "get_attr":
            copies[node] = graph.get_attr(str(node.target))
        return copies[node]

    for node in program.graph.nodes:
        if node.op == "call_function" and stage_of[node] == stage:
            for source in node.all_input_nodes:
                copy_of(source)
            copies[node] = graph.node_copy(node, copy_of)
    if stage < stages - 1:
        contiguous = torch.ops.aten.contiguous.default
        graph.output(tuple(graph.call_function(contiguous, (copies[node],)) for node in borders[stage]))
    else:
        outputs = tuple(copy_of(node) for node in results_of(program.graph))
        graph.output(outputs[0] if len(outputs) == 1 else outputs)
    return fx.GraphModule(program, graph)


def shared_parameters(
    program: fx.GraphModule, stage_of: Mapping[fx.Node, int]
) -> Iterator[tuple[nn.Parameter, set[int]]]:
    """Yield the parameters that operators of several stages read, with these stages."""
    readers: dict[nn.Parameter, set[int]] = {}
    parameters = dict(program.named_parameters(remove_duplicate=False))
    for node in program.graph.nodes:
        if node.op == "get_attr" and str(node.target) in parameters:
            readers.setdefault(parameters[str(node.target)], set()).update(
                stage_of[user] for user in node.users
            )
    yield from ((parameter, stages) for parameter, stages in readers.items() if len(stages) > 1)


def sum_gradients(parameter: nn.Parameter, group: dist.ProcessGroup, share: float) -> None:
    """Replace a gradient by the sum over a group, times `share`; a process without one adds zeros."""
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    dist.all_reduce(gradient, group=group)
    parameter.grad = gradient * share


def differences_of(
    module: nn.Module, part: nn.Module, batches: list[Batch], mean_loss: torch.Tensor
) -> list[float]:
    """Largest difference from the whole module of the loss, and of the gradient of each parameter of a part.

    Afterwards the parameters of the part have the pipeline's gradients, and all others the module's.
    """
    gradients = {parameter: parameter.grad for parameter in part.parameters()}
    module.zero_grad()
    loss = attribute(MODULE, "loss")
    losses = [loss(module(*inputs), target) for inputs, target in batches]  # type: ignore[operator]
    mean = torch.stack(losses).mean()
    mean.backward()
    differences = [float((mean.detach() - mean_loss).abs())]
    for parameter, gradient in gradients.items():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        differences.append(float((expected - gradient).abs().max()))
        parameter.grad = gradient
    return differences


def parsed() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Train a module in pipeline stages; start it with torchrun.")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b", help="order of passes (1f1b)")
    parser.add_argument("--steps", type=int, default=10, help="training steps (10)")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of SGD (0.01)")
    parser.add_argument("--check", action="store_true", help="compare every step with the whole module")
    options = parser.parse_args()
    needed, processes = 1 + max(map(max, MAP)), int(os.environ.get("WORLD_SIZE", "0"))
    if processes < needed:
        sys.exit(f"MAP: needs {needed} processes of torchrun, got {processes}: torchrun --nproc-per-node N")
    if options.schedule == "1f1b" and len(STAGES) > MICROBATCHES:
        sys.exit(
            f"MICROBATCHES: 1F1B needs one per stage, {len(STAGES)}, got {MICROBATCHES}: --schedule gpipe"
        )
    return options


class Worker:
    """Process of one stage and replica."""

    def __init__(self, stage: int, replica: int, schedule: str) -> None:
        gpu = torch.cuda.is_available()
        self.device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
        )
        self.stage, self.replica = stage, replica
        stages, replicas = len(STAGES), len(MAP[0])
        # Ranks are numbered replica by replica, so that those of a pipeline are in the order of its stages.
        rank = replica * stages + stage
        dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=stages * replicas)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self.prints = rank == 0
        pipelines = [dist.new_group([r * stages + s for s in range(stages)]) for r in range(replicas)]
        rings = [dist.new_group([r * stages + s for r in range(replicas)]) for s in range(stages)]
        self.pipeline, self.ring = pipelines[replica], rings[stage]
        self.module = created(MODULE, self.device)
        program = exported(self.module, examples(self.module, INPUTS, MICROBATCH))
        stage_of = stage_of_nodes(program.graph, STAGES, operators_of(program.graph))
        self.part = stage_module(program, stage_of, stages, stage)
        self.shared = list(shared_parameters(program, stage_of))
        inner, reached = carried(program.graph, stage_of, stages), with_gradients(program)
        borders = [
            [node for node in program.graph.nodes if node.op == "placeholder"],
            *inner,
            results_of(program.graph),
        ]
        ends = (border(nodes, reached, self.device) for nodes in borders[stage : stage + 2])
        pipeline_stage = PipelineStage(self.part, stage, stages, self.device, *ends, group=self.pipeline)
        loss = attribute(MODULE, "loss")
        self.schedule = SCHEDULES[schedule](pipeline_stage, MICROBATCHES, loss_fn=loss)

    def batches(self, step: int) -> list[Batch]:
        """Batch of every replica, the same on all processes."""
        batch, replicas = attribute(MODULE, "batch"), len(MAP[0])
        batches = []
        for replica in range(replicas):
            torch.manual_seed(1 + step * replicas + replica)
            inputs, target = batch(MICROBATCH * MICROBATCHES)  # type: ignore[operator]
            batches.append((tuple(tensor.to(self.device) for tensor in inputs), target.to(self.device)))
        return batches

    def step(self, batch: Batch) -> torch.Tensor:
        """Compute the gradients of a step; the mean loss of all replicas."""
        inputs, target = batch
        losses: list[torch.Tensor] = []
        self.schedule.step(
            *(inputs if self.is_first else ()),
            **({"target": target, "losses": losses} if self.is_last else {}),
        )
        for parameter, _ in self.shared:
            sum_gradients(parameter, self.pipeline, 1.0)
        for parameter in self.part.parameters():
            sum_gradients(parameter, self.ring, 1.0 / len(MAP[0]))
        loss = torch.stack(losses).detach().mean() if losses else torch.zeros((), device=self.device)
        mean = loss.to(torch.float64) / len(MAP[0])
        dist.all_reduce(mean)
        return mean

    def check(self, batches: list[Batch], mean: torch.Tensor) -> str:
        """Largest difference of loss and gradients from the whole module, over all processes."""
        differences = differences_of(self.module, self.part, batches, mean)
        worst, count = (
            torch.tensor(float(n), device=self.device) for n in (max(differences), len(differences) - 1)
        )
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        dist.all_reduce(count)
        return f"largest difference {float(worst):.3g} in the loss and {float(count):.0f} gradients"


def main() -> None:
    """Train the module, and compare every step with the whole module if asked to."""
    options, device = parsed(), int(os.environ["RANK"])
    positions = {device: (s, r) for s, devices in enumerate(MAP) for r, device in enumerate(devices)}
    if device not in positions:
        return
    worker = Worker(*positions[device], options.schedule)
    if worker.prints and any(isinstance(part, _BatchNorm) for part in worker.module.modules()):
        print("batch norm is frozen: it uses its running statistics")
    # To compare later steps as well, every process also trains the other stages, with the whole module.
    trained = worker.module if options.check else worker.part
    optimizer = torch.optim.SGD(trained.parameters(), lr=options.learning_rate)
    times_s: list[float] = []
    for step in range(options.steps):
        batches = worker.batches(step)
        optimizer.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        mean = worker.step(batches[worker.replica])
        times_s.append(time.perf_counter() - start)
        remark = f", {worker.check(batches, mean)}" if options.check else ""
        optimizer.step()
        if worker.prints:
            print(f"step {step}, {options.schedule}: loss {float(mean):.6g}{remark}", flush=True)
    if worker.prints and len(times_s) > WARM:
        print(f"median time of forward and backward passes: {statistics.median(times_s[WARM:]):.4g} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
