"""Record the operators of a PyTorch module on the meta device, which has shapes but no data."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from phaze.base.errors import PhazeError
from phaze.spec.torch_module import TorchCall, TorchInput, TorchModule
from phaze.workload.families.traced.translate import Call, Origin, SeenTensor, Trace

META = "meta"
FAILURES = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""Exceptions raised by code that is called with wrong arguments, or that needs data."""


def record(spec: TorchModule, microbatch: int) -> Trace:
    """Trace a module for one microbatch in training; this runs the code that the spec names.

    Raises PhazeError if the callable cannot be imported, returns no module, or fails.
    """
    try:
        return _record(spec, microbatch)
    except FAILURES as error:
        raise PhazeError(f"model {spec.name}: {spec.torch} fails: {type(error).__name__}: {error}") from error


def _record(spec: TorchModule, microbatch: int) -> Trace:
    with torch.device(META):
        module = call(spec.torch, spec.arguments)
        inputs = {name: _example(spec_input, microbatch) for name, spec_input in spec.inputs.items()}
    if not isinstance(module, nn.Module):
        raise PhazeError(
            f"model {spec.name}: torch: {spec.torch} returned no module, got {type(module).__name__}"
        )
    # A constructor may place tensors on a device of its own choice.
    module = module.to(META).train()
    recorder = Recorder(module, list(inputs.values()))
    with recorder:
        results = recorder.watch(lambda: _run(module, inputs))
    forward, backward = _flops(module, inputs)
    return Trace(
        calls=tuple(recorder.calls),
        results=tuple(recorder.number(tensor) for tensor in results),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        forward_flops=forward,
        backward_flops=backward,
    )


def causal_language_model(config: str) -> object:
    """Build the `transformers` model of a JSON configuration, without weights.

    Attention is made of products, and experts of batched products over the dispatched rows.
    """
    fields = json.loads(config)
    settings = call("transformers:AutoConfig.for_model", {**fields, "use_cache": False})
    # Fused kernels would hide their products from the trace.
    kernels = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
    return call("transformers:AutoModelForCausalLM.from_config", {"config": settings, **kernels})


def call(path: str, arguments: Mapping[str, object]) -> object:
    """Import and call a callable of an installed package, given as `package:callable`."""
    package, _, names = path.partition(":")
    try:
        target: object = importlib.import_module(package)
        for name in names.split("."):
            target = getattr(target, name)
    except (ImportError, AttributeError) as error:
        raise PhazeError(f"torch: {path}: cannot be imported: {error}") from error
    if not callable(target):
        raise PhazeError(f"torch: {path}: cannot be called, it is {type(target).__name__}")
    outcome: object = target(**{key: _argument(value) for key, value in arguments.items()})
    return outcome


def _argument(value: object) -> object:
    return call(value.torch, value.arguments) if isinstance(value, TorchCall) else value


def _example(spec_input: TorchInput, microbatch: int) -> torch.Tensor:
    dtype = torch.float32 if spec_input.kind == "real" else torch.int64
    return torch.empty((microbatch, *spec_input.shape), dtype=dtype, device=META)


def _run(module: nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Run a module, and return its floating-point output tensors."""
    outputs = module(*inputs.values()) if len(inputs) == 1 else module(**inputs)
    return [tensor for tensor in _tensors(outputs) if tensor.is_floating_point()]


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (tensor for inner in value.values() for tensor in _tensors(inner))
    elif isinstance(value, (list, tuple)):
        yield from (tensor for inner in value for tensor in _tensors(inner))


def _flops(module: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[int, int]:
    """FLOPs of the forward and the backward pass, as counted by PyTorch."""
    with FlopCounterMode(display=False) as counter:
        results = _run(module, inputs)
        forward = counter.get_total_flops()
        if not results:
            raise ValueError("it returns no tensor of real numbers")
        # The sum of all outputs is a scalar from which gradients reach all of them.
        torch.stack([tensor.sum() for tensor in results]).sum().backward()
    return forward, counter.get_total_flops() - forward


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode that records every operator call while it is active."""

    def __init__(self, module: nn.Module, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._module = module
        self._path: list[str] = []
        self._kept: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}
        self._origins: dict[int, Origin] = {}
        self._origins |= {self.number(tensor): "parameter" for tensor in module.parameters()}
        self._origins |= {self.number(tensor): "input" for tensor in inputs}

    def number(self, tensor: torch.Tensor) -> int:
        """Identifying number of a tensor; the tensor is kept alive so that its id is not reused."""
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._kept)
            self._kept.append(tensor)
        return self._numbers[id(tensor)]

    def watch(self, run: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Run a function with hooks that track the path of the active module, and return its result."""
        hooks = []
        for name, module in self._module.named_modules():
            # The default argument binds the name of this iteration.
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: self._path.append(name)))
            hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        try:
            return run()
        finally:
            for hook in hooks:
                hook.remove()

    def _leave(self) -> None:
        # A hook that returned the path would replace the module's output with it.
        self._path.pop()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        outputs = func(*args, **(kwargs or {}))
        inputs = [self._seen(tensor) for tensor in _tensors([args, kwargs or {}])]
        results = list(_tensors(outputs))
        for tensor in results:
            number = self.number(tensor)
            # An in-place call returns its argument, and a parameter stays one.
            if self._origins.get(number) != "parameter":
                self._origins[number] = "made"
        path = self._path[-1] if self._path else ""
        operator = func.overloadpacket.__name__
        self.calls.append(Call(path, operator, tuple(inputs), tuple(map(self._seen, results))))
        return outputs

    def _seen(self, tensor: torch.Tensor) -> SeenTensor:
        number = self.number(tensor)
        return SeenTensor(
            number=number,
            shape=tuple(tensor.shape),
            bytes_per_element=tensor.element_size(),
            origin=self._origins.get(number, "constant"),
            floating=tensor.is_floating_point(),
        )
