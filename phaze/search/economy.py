"""Lower bound on the energy per sample of many architectures, without searching for placements.

Consider s stages and d pipelines of m = ceil(B / d) microbatches. The time per batch T limits the rest:

- No stage load exceeds (T - synchronisation) / (m + s - 1). The synchronisation takes at least as long as
  that of the first layer's weights alone.
- The last stage takes no more layers than this load allows and no more than fit. All other stages recompute,
  if the setting recomputes.
- The first stage has to take the layers that the other stages cannot do in that time, and has to synchronise
  their weights.
- The slowest stage takes at least the mean of all work, and at least the time of the stage that has most
  layers of a run.

If this is possible, the lower bound is the sum of the dynamic energy, the least transfers, the ring of d
pipelines, and the leakage: d times the devices of the smallest pipeline of s stages over the least time. The
minimum over all s and d holds for every placement whose time is at most T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.formulas.flushing import Setting, useful_widths
from phaze.formulas.phaze.chains import Depths, Runs
from phaze.formulas.phaze.energy import Batch, Rates, slices

SLACK = 1e-9
"""Relative error allowed for summed placement times."""
ROUNDS = 2
"""Iterations that tighten the bound with the weights of the first stage."""


@dataclass(frozen=True)
class Least:
    """Lower bounds on times of layer kinds, and on energies per tensor-parallel rank, (A, kinds) each."""

    forward_s: Floats
    backward_s: Floats
    forward_j: Floats
    backward_j: Floats


class _Frame(NamedTuple):
    """Inputs of the bound that do not depend on the architecture."""

    counts: Ints
    """Number of layers of every run."""
    movable: Ints
    """Number of layers of every run that are in the longest possible last stage."""
    devices: Ints
    """Number of devices of a pipeline, by number of stages (s,); 0 if infeasible."""
    microbatches: Ints
    """Microbatches per pipeline, ceil(B / d), descending."""
    rising: Ints
    """`microbatches` negated: ascending, for a binary search."""
    pipelines: Ints
    """Numbers of pipelines d, ascending."""
    ends: Ints
    """Index of the first d with too many devices, by number of stages (s,)."""
    recompute: bool
    weights_s: Floats
    """Gradient exchange time of one layer of every run, in the limit of many replicas."""
    transfer_j: float
    """Minimum transfer energy of one more stage, per sample."""
    ring_j: float
    """Synchronisation energy of one more pipeline, per sample."""
    samples: int
    """Samples per microbatch."""
    batch: int
    """Samples per batch."""


def least_sample_j(
    runs: Runs,
    least: Least,
    time_s: tuple[Floats, Floats],
    leakage_w: Floats,
    depths: Depths,
    setting: Setting,
    batch: Batch,
    rates: Rates,
) -> Floats:
    """Lower bound (A,) on the energy per sample of the best placement, in joules; inf where none fits.

    Its time per batch lies between the two of `time_s`, (A,) each; `leakage_w` (A,) is the power of an idle
    chip. Gradients take at least as many bytes as the weights.
    """
    kinds = np.array(runs.kinds or range(len(runs.counts)))
    counts, shards = np.array(runs.counts), slices(runs, batch.layout)[kinds]
    weight_bytes = runs.weight_bytes[kinds]
    samples = batch.layout.microbatch
    before = np.cumsum(counts) - counts
    microbatches, pipelines = useful_widths(setting.microbatches, setting.devices)
    boundaries = runs.output_bytes[runs.layers][:-1]
    frame = _Frame(
        counts=counts,
        movable=np.clip(before + counts - depths.last_start, 0, counts),
        devices=depths.devices,
        microbatches=microbatches,
        rising=-microbatches,
        pipelines=pipelines,
        ends=np.searchsorted(pipelines, setting.devices // np.maximum(depths.devices, 1), side="right"),
        recompute=setting.recompute,
        weights_s=setting.exchange_s(weight_bytes),
        transfer_j=2.0 * rates.link_j_per_byte * float(min(boundaries, default=0.0)) / samples,
        ring_j=2.0 * rates.link_j_per_byte * float(weight_bytes @ (counts * shards)) / batch.global_batch,
        samples=samples,
        batch=batch.global_batch,
    )
    tables = (
        np.ascontiguousarray(values, np.float64)
        for values in (
            least.forward_s[:, kinds],
            least.backward_s[:, kinds],
            least.forward_j[:, kinds] * shards,
            least.backward_j[:, kinds] * shards,
            *time_s,
            leakage_w,
        )
    )
    return _least_of_all(frame, *tables)


class _Chip(NamedTuple):
    """Inputs of the bound for one architecture: times and energies."""

    time_s: float
    work_s: float
    """Forward and backward time of all layers."""
    once_j: float
    """Energy of both passes on all tensor-parallel ranks, per sample."""
    leakage_j: float
    """Leakage of one device, per sample."""
    forward_s: Floats
    backward_s: Floats
    forward_j: Floats
    recompute_s: float
    """Time to recompute all layers."""
    recompute_j: float
    saved_s: float
    """Most recompute time saved per second of the last stage's load."""
    saved_j: float


@njit
def _least_of_all(
    frame: _Frame,
    forward_s: Floats,
    backward_s: Floats,
    forward_j: Floats,
    backward_j: Floats,
    lower_s: Floats,
    feasible_s: Floats,
    leakage_w: Floats,
) -> Floats:
    result, likely = np.full(len(lower_s), np.inf), int(np.int64(0))  # a literal would be compiled apart
    for a in range(len(lower_s)):
        if lower_s[a] < np.inf:
            chip = _Chip(
                time_s=feasible_s[a] * (1.0 + SLACK),
                work_s=(frame.counts * (forward_s[a] + backward_s[a])).sum(),
                once_j=(frame.counts * (forward_j[a] + backward_j[a])).sum() / frame.samples,
                leakage_j=leakage_w[a] * lower_s[a] / frame.batch,
                forward_s=forward_s[a],
                backward_s=backward_s[a],
                forward_j=forward_j[a],
                recompute_s=(frame.counts * forward_s[a]).sum(),
                recompute_j=(frame.counts * forward_j[a]).sum(),
                saved_s=_most_per_second(forward_s[a], forward_s[a] + backward_s[a]),
                saved_j=_most_per_second(forward_j[a], forward_s[a] + backward_s[a]),
            )
            result[a], likely = _least_of_depths(likely, frame, chip)
    return result


@njit
def _most_per_second(values: Floats, seconds: Floats) -> float:
    """Maximum over layers of value per second; layers with value 0 are ignored."""
    most = 0.0
    for r in range(len(values)):
        if values[r] > 0.0:
            most = max(most, values[r] / seconds[r])
    return most


@njit
def _least_of_depths(likely: int, frame: _Frame, chip: _Chip) -> tuple[float, int]:
    """Minimum energy over all numbers of stages, and the best number; `likely` is tried first to prune."""
    best, best_depth = np.inf, likely
    for step in range(len(frame.devices)):
        s = likely if step == 0 else step
        if frame.devices[s] > 0 and _energy_j(s, 0, frame, chip) < best:
            least = _least_of_depth(s, frame, chip, best)
            if least < best:
                best, best_depth = least, s
    return best, best_depth


@njit
def _least_of_depth(s: int, frame: _Frame, chip: _Chip, best: float) -> float:
    """Minimum energy with s stages over all numbers of pipelines, or `best` if it is not lower."""
    end = frame.ends[s]
    if end == 0 or _relaxed_j(s, frame, chip) * (1.0 - SLACK) >= best:
        return best
    low = _fewest_pipelines(s, end, frame, chip)
    if low >= end or _energy_j(s, low, frame, chip) >= best:
        return best
    for w in range(_first_possible(s, low, end, frame, chip), end):
        joules = _energy_j(s, w, frame, chip)
        if joules >= best:
            break
        recompute_j = _recomputation_j(s, w, _share(w, frame), frame, chip)
        best = min(best, joules + recompute_j / frame.samples)
    return best


@njit
def _energy_j(s: int, w: int, frame: _Frame, chip: _Chip) -> float:
    """Minimum energy per sample with s stages, without recomputation."""
    d = frame.pipelines[w]
    links_j = (s - 1) * frame.transfer_j + (d - 1) * frame.ring_j
    joules: float = chip.once_j + links_j + chip.leakage_j * d * frame.devices[s]
    return joules


@njit
def _relaxed_j(s: int, frame: _Frame, chip: _Chip) -> float:
    """Lower bound on the energy with s pipeline stages, without a search; inf if they are too slow.

    Work is shared evenly, the number of pipelines may be fractional, and the last stage saves the most
    recomputation that its load allows.
    """
    work_s, saved_s = chip.work_s, 0.0
    if frame.recompute and s > 1:
        work_s, saved_s = work_s + chip.recompute_s, chip.saved_s
    steps = chip.time_s * (s + saved_s) / work_s * (1.0 + SLACK)
    if steps < s:
        return np.inf
    d = max(1.0, frame.microbatches[0] / (steps - s + 1))
    links_j = (s - 1) * frame.transfer_j + (d - 1.0) * frame.ring_j
    joules: float = chip.once_j + links_j + chip.leakage_j * d * frame.devices[s]
    if frame.recompute and s > 1:
        longest = chip.time_s / (frame.microbatches[frame.ends[s] - 1] + s - 1)
        joules += max(0.0, chip.recompute_j - chip.saved_j * longest) / frame.samples
    return joules


@njit
def _share(w: int, frame: _Frame) -> float:
    """Fraction of the first stage's weights that crosses the network in the synchronisation."""
    share: float = (frame.pipelines[w] - 1) / frame.pipelines[w]
    return share


@njit
def _fewest_pipelines(s: int, end: int, frame: _Frame, chip: _Chip) -> int:
    """Index of the smallest number of pipelines with which s stages of equal work are fast enough."""
    load, share, low = chip.work_s / s, 0.0, 0
    for r in range(len(frame.counts)):
        load = max(load, -(-frame.counts[r] // s) * (chip.forward_s[r] + chip.backward_s[r]))
    for _ in range(ROUNDS):
        available_s = chip.time_s - share * frame.weights_s[0]
        longest = available_s / load - (s - 1) if load > 0.0 else np.inf
        low = int(np.searchsorted(frame.rising, -longest))
        if longest < 1.0 or low >= end:
            return end
        share = _share(low, frame)
    return low


@njit
def _first_possible(s: int, low: int, end: int, frame: _Frame, chip: _Chip) -> int:
    """Index, at least `low`, of the smallest number of pipelines with which s stages are fast enough.

    With the share of the weights that the fewest pipelines synchronise, more pipelines are never slower. The
    first possible number is therefore found by bisection.
    """
    share, high = _share(low, frame), end
    while low < high:
        middle = (low + high) // 2
        if _recomputation_j(s, middle, share, frame, chip) < np.inf:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def _recomputation_j(s: int, w: int, share: float, frame: _Frame, chip: _Chip) -> float:
    """Minimum recompute energy; inf if s stages cannot be fast enough.

    `share` is the fraction of the first stage's weights that the synchronisation moves.
    """
    steps, weights_s, recompute_j = frame.microbatches[w] + s - 1, frame.weights_s[0], 0.0
    for _ in range(ROUNDS):
        cap = (chip.time_s - share * weights_s) / steps
        recompute_s, recompute_j, fullest = _recomputed(s, cap, frame, chip)
        if max((chip.work_s + recompute_s) / s, fullest) > cap:
            return np.inf
        weights_s = _first_weights_s(chip.work_s + recompute_s - (s - 1) * cap, s, frame, chip)
    return recompute_j


@njit
def _first_weights_s(least: float, s: int, frame: _Frame, chip: _Chip) -> float:
    """Gradient exchange time of the smallest first stage with a load of at least `least`."""
    forward_passes = 2.0 if frame.recompute and s > 1 else 1.0
    weights_s: float = frame.weights_s[0]
    for r in range(len(frame.counts)):
        if least <= SLACK * chip.time_s:
            break
        layer_s, taken = chip.backward_s[r] + forward_passes * chip.forward_s[r], frame.counts[r]
        if layer_s > 0.0:
            taken = int(min(float(taken), max(0.0, np.ceil(least / layer_s - SLACK))))
        weights_s += (taken - (1 if r == 0 and taken > 0 else 0)) * frame.weights_s[r]
        least -= taken * layer_s
    return weights_s


@njit
def _recomputed(s: int, cap: float, frame: _Frame, chip: _Chip) -> tuple[float, float, float]:
    """Lower bounds on recompute time and energy, and on the load of the slowest stage.

    The last stage takes layers from the end while its load stays within the cap and they fit. Only the
    remaining layers are recomputed.
    """
    recompute_s, recompute_j, fullest, full = 0.0, 0.0, 0.0, False
    recompute = frame.recompute and s > 1
    for r in range(len(frame.counts) - 1, -1, -1):
        layer_s = chip.forward_s[r] + chip.backward_s[r]
        if not recompute:
            fullest = max(fullest, -(-frame.counts[r] // s) * layer_s)
            continue
        taken = 0
        if not full:
            possible = np.floor(cap / layer_s * (1.0 + SLACK)) if layer_s > 0.0 else np.inf
            taken = int(max(0.0, min(float(frame.movable[r]), possible)))
            cap -= taken * layer_s
            full = taken < frame.counts[r]
        remaining = frame.counts[r] - taken
        recompute_s += remaining * chip.forward_s[r]
        recompute_j += remaining * chip.forward_j[r]
        fullest = max(fullest, -(-remaining // (s - 1)) * (layer_s + chip.forward_s[r]))
    return recompute_s, recompute_j, fullest
