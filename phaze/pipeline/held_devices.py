"""Time of a training step where a message under way holds both devices, the sending and the receiving.

In `gpipe` links work beside the devices. A program that sends and receives between its passes, without
streams of their own for messages, does not compute meanwhile (Parmesan's Section VII does not say which its
simulator counts). Here every device does one thing at a time in the order of such a program: for every
microbatch it receives from the stages before it, computes, and sends to the stages after it; backward the
other way round. A message begins when both devices are free, and holds them for latency + size / bandwidth.
The all-reduce of gradients and the update are as in `gpipe`, whose step is never longer.
"""

from __future__ import annotations

import math

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.pipeline.gpipe import check_mapping, ring_s, work_of
from phaze.workload.operator_graphs import StageGraph


def held_step_s(
    stages: StageGraph, mapping: Ints, network: DeviceNetwork, memory_bytes_per_s: float = math.inf
) -> float:
    """Return the time of a step with the stages on devices `mapping`, shape (S, R).

    `memory_bytes_per_s` is what the update runs at. Raises PhazeError for a mapping that is none.
    """
    check_mapping(stages, mapping, network.devices)
    mapping = np.ascontiguousarray(mapping, np.int64)
    forward, backward, edges, sizes, gradients, update, microbatches = work_of(stages, memory_bytes_per_s)
    seconds, waits = network.seconds_per_byte, network.waits_s
    sent, order = np.lexsort(edges.T[::-1]), np.arange(len(forward))
    returned = np.lexsort(edges.T)[::-1]
    ended = np.empty(mapping.shape)
    for replica in range(stages.replicas):
        devices = mapping[:, replica]
        sources, targets = devices[edges[:, 0]], devices[edges[:, 1]]
        to_s = (sizes * seconds[sources, targets] + waits[sources, targets])[sent]
        fro_s = (sizes * seconds[targets, sources] + waits[targets, sources])[returned]
        free = np.zeros(len(forward))
        _one_way(forward, edges[sent], to_s, order, microbatches, free)
        _one_way(backward, edges[returned][:, ::-1].copy(), fro_s, order[::-1].copy(), microbatches, free)
        ended[:, replica] = free
    reduced = np.array([ring_s(gradients[s], mapping[s], seconds, waits) for s in range(len(forward))])
    return float((ended.max(axis=1) + reduced + update).max())


@njit
def _one_way(
    times: Floats, messages: Ints, message_s: Floats, order: Ints, microbatches: int, free: Floats
) -> None:
    """Let all microbatches pass the stages in an order; `free` (S,) says when each device is free.

    `messages` (e, 2) are pairs of sender and receiver, in the order of their senders.
    """
    for _ in range(microbatches):
        e = 0
        for s in order:
            free[s] += times[s]
            while e < len(messages) and messages[e, 0] == s:
                t = messages[e, 1]
                free[s] = free[t] = max(free[s], free[t]) + message_s[e]
                e += 1
