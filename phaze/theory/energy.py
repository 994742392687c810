"""Energy of training one sample (dynamic, links, leakage): of a placement, and a lower bound without one.

A layer runs forward and backward once for every microbatch, forward once more where its stage recomputes
(all stages but the last), and on every slice of a tensor-parallel layer. Every device of a stage sends the
activations at its end and receives their gradients once a microbatch; the gradients of all weights go around
the ring of the d pipelines, 2 (d - 1)/d of their bytes on each device, once a batch. The devices in use leak
for the whole time per batch. Energies have one column for each part of the chip, in the order of `DYNAMIC`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.theory.chains import Runs, longest_last_stage
from phaze.theory.pipeline import Counts, Reals, Setting

DYNAMIC = ("mac", "register", "l2", "glb", "hbm", "link")
"""Parts that spend energy when they act."""
PARTS = (*DYNAMIC, "leakage")
LINK = DYNAMIC.index("link")


@dataclass(frozen=True)
class Rates:
    """What links and leakage cost."""

    link_j_per_byte: float
    """A byte to another device."""
    leakage_w_per_um2: float
    """Power of a square micrometre that does nothing."""


@dataclass(frozen=True)
class Batch:
    """How many samples run together."""

    microbatch: int
    global_batch: int


@dataclass(frozen=True)
class Work:
    """Energy of one slice of one layer of every run for one microbatch, arrays (runs, parts), in joules."""

    forward_j: Reals
    backward_j: Reals


def executions(counts: Counts, last_start: int, recompute: bool) -> Counts:
    """Return how many forward passes the layers of every run take, of which the last stage starts there."""
    before = np.cumsum(counts) - counts
    again = np.clip(last_start - before, 0, counts) if recompute else np.zeros_like(counts)
    return counts + again


def slices(runs: Runs, tensor: int) -> Counts:
    """Return how many devices compute a layer of every run."""
    return np.where(runs.tensor_parallel, tensor, 1)


def dynamic_j(runs: Runs, work: Work, tensor: int, last_start: int, recompute: bool) -> Reals:
    """Return the energy of all layers for one microbatch, by part (parts,)."""
    counts = np.array(runs.counts)
    each = slices(runs, tensor)
    forward: Reals = (executions(counts, last_start, recompute) * each) @ work.forward_j
    return forward + (counts * each) @ work.backward_j


def sent_bytes(boundary_bytes: Reals, devices: Counts) -> float:
    """Return the bytes between stages for one microbatch, from what leaves every stage but the last."""
    return 2.0 * float(boundary_bytes @ devices[:-1])


def ring_bytes(gradient_bytes: Reals, devices: Counts, data: int) -> float:
    """Return the bytes of the gradient synchronisation of a batch over d pipelines."""
    return 2.0 * (data - 1) * float(gradient_bytes @ devices)


def sample_j(
    dynamic: Reals, sent: float, ring: float, leaking_um2_s: float, batch: Batch, rates: Rates
) -> Reals:
    """Return joules per sample by part (parts + leakage,).

    `dynamic` and `sent` are of one microbatch, `ring` and the area in use times the time are of a batch.
    """
    parts = dynamic / batch.microbatch
    parts[LINK] += rates.link_j_per_byte * (sent / batch.microbatch + ring / batch.global_batch)
    return np.append(parts, rates.leakage_w_per_um2 * leaking_um2_s / batch.global_batch)


@dataclass(frozen=True)
class Least:
    """What one slice of one layer of every run takes at least on A architectures, arrays (A, runs)."""

    forward_s: Reals
    backward_s: Reals
    forward_j: Reals
    backward_j: Reals


def least_sample_j(
    runs: Runs, least: Least, area_um2: Reals, tensor: int, setting: Setting, microbatch: int, rates: Rates
) -> Reals:
    """Return joules per sample (A,) that no placement goes below, whatever it is.

    With at least so many layers recomputed as the longest last stage that fits leaves over. The devices in
    use leak at least while they work: each stage takes its load for every microbatch, one after the other,
    so that devices times time per batch is not below the latency of all layers on all slices, times the
    microbatches. Links are left out.
    """
    start = longest_last_stage(runs, setting)
    counts = np.array(runs.counts)
    forward = executions(counts, start, setting.recompute) * slices(runs, tensor)
    backward = counts * slices(runs, tensor)
    spent = least.forward_j @ forward + least.backward_j @ backward
    busy_s = least.forward_s @ forward + least.backward_s @ backward
    joules: Reals = (spent + rates.leakage_w_per_um2 * area_um2 * busy_s) / microbatch
    return joules
