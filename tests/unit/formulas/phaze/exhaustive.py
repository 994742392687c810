"""A second implementation of the placement: every cut and data width, each stage simulated layer by layer.

It shares only the definition of the costs with phaze: no tables, prefix sums or useful widths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import ceil, inf

from phaze.formulas.flushing import Chain, Setting


def forward_s(chain: Chain, stage: range, bandwidth: float, *, arrivals: bool) -> float:
    """Run the forward pass of a stage; without `arrivals` its inputs are present at the start."""
    done: dict[int, float] = {}
    clock = 0.0
    for layer in stage:
        start = clock
        for source, target, size in chain.tensors:
            if target == layer and source in done:
                start = max(start, done[source])
            elif target == layer and arrivals:
                start = max(start, size / bandwidth)
        clock = done[layer] = start + float(chain.forward_s[layer])
    return clock


def backward_s(chain: Chain, stage: range, bandwidth: float, start: float) -> float:
    """Run the backward pass of a stage from a start time; gradients are sent from time 0 on."""
    done: dict[int, float] = {}
    clock = start
    for layer in reversed(stage):
        begin = clock
        for source, target, size in chain.tensors:
            if source == layer:
                begin = max(begin, done[target] if target in done else size / bandwidth)
        clock = done[layer] = begin + float(chain.backward_s[layer])
    return clock


def load_s(chain: Chain, stage: range, bandwidth: float, *, recompute: bool) -> float:
    """Return the time of a stage for one microbatch."""
    first = forward_s(chain, stage, bandwidth, arrivals=True)
    again = forward_s(chain, stage, bandwidth, arrivals=False) if recompute else 0.0
    return first + backward_s(chain, stage, bandwidth, again)


def memory_bytes(chain: Chain, stage: range, s: int, setting: Setting, microbatches: int) -> float:
    """Return the memory of the s-th stage from the end (Appendix B.1)."""
    activations = sum(float(chain.activation_bytes[layer]) for layer in stage)
    stashed = activations
    if setting.recompute and s > 1:
        stashed = sum(
            size for source, target, size in chain.tensors if source < stage.start and target in stage
        )
    static = sum(float(chain.static_bytes[layer]) for layer in stage)
    return static + activations + (s - 1 if setting.schedule == "1f1b" else microbatches) * stashed


def devices(chain: Chain, stage: range, tensor: int) -> int:
    """Return the devices of a stage: t, or one if none of its layers is split."""
    return tensor if any(chain.tensor_parallel[layer] for layer in stage) else 1


def cuts(layers: int) -> Iterator[list[range]]:
    """Yield all cuts of a chain into stages."""
    for ends in itertools.product((False, True), repeat=layers - 1):
        starts = [0, *(position + 1 for position, cut in enumerate(ends) if cut)]
        yield [range(i, j) for i, j in itertools.pairwise([*starts, layers])]


def fits(chain: Chain, stages: list[range], tensor: int, data: int, setting: Setting) -> bool:
    """Return whether a placement respects devices and memory."""
    microbatches = ceil(setting.microbatches / data)
    return data * sum(devices(chain, stage, tensor) for stage in stages) <= setting.devices and all(
        memory_bytes(chain, stage, len(stages) - number, setting, microbatches) <= setting.memory_bytes
        for number, stage in enumerate(stages)
    )


def time_s(chain: Chain, stages: list[range], data: int, setting: Setting) -> float:
    """Return the time per batch of a placement."""
    bandwidth = setting.bandwidth_bytes_per_s
    loads = [
        load_s(chain, stage, bandwidth, recompute=setting.recompute and stage is not stages[-1])
        for stage in stages
    ]
    waiting = stages[:1] if setting.gradients == "first-stage" else stages
    weights = max(sum(float(chain.parameter_bytes[layer]) for layer in stage) for stage in waiting)
    sync = setting.all_reduce_factor * (data - 1) / data * weights / bandwidth
    return max(loads) * (ceil(setting.microbatches / data) + len(stages) - 1) + sync


def best_time_s(
    chain: Chain, tensor: int, setting: Setting, stages: int | None = None, data: int | None = None
) -> float:
    """Return the best time per batch over all placements, or over those of the given depth and data width."""
    best = inf
    widths = range(1, min(setting.devices, setting.microbatches) + 1) if data is None else [data]
    for cut in cuts(len(chain.forward_s)):
        for width in widths if stages in (None, len(cut)) else []:
            if fits(chain, cut, tensor, width, setting):
                best = min(best, time_s(chain, cut, width, setting))
    return best
