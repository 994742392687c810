"""Lower bound on the cost of assigning a model's layers to pipeline stages with limited memory.

A layer of kind k on stage q costs a_qk, and b_qk more if it is recomputed. On rank r it takes x_k bytes, and
y_k more for each of the h_q microbatches in flight on its stage; recompute frees z_k of these. The program

    least  Σ a n + b k    with  Σ_q n_qk = N_k,  k <= n,  Σ_k n_qk >= 1 between the ends,
                                Σ_{q on r} (x + h y) n - h z k <= room_r

has, for any prices π_k of a layer and μ_r >= 0 of a byte, no value below

    Σ_k π_k N_k + Σ_q σ_q - Σ_r μ_r room_r,    σ_q = min_k (c_qk - π_k) >= 0 (0 at the ends),
    c_qk = a + μ_r (x + h y) + min(0, b - μ_r h z),

by weak duality. For given π the smallest μ_r with c_qk >= π_k on all stages of the rank has a closed form. A
higher μ_r matters only if the one layer that each stage must have is too large for the rank. The value is
concave in π and is maximised along a few directions.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.compiled import njit, njit_inlined, njit_nested

STEPS = 24
"""Number of golden-section steps per line search."""
FIRST = 0.0625
"""Length of the first step of a line search."""
DOUBLINGS = 16
"""Maximum number of times the step length is doubled; a value that still rises means that nothing fits."""
GOLDEN = 0.6180339887498949
"""Fraction of the interval that remains after each golden-section step."""


def least_costs(
    costs: Floats, bytes_of: Floats, rooms: Floats, totals: Floats, in_flight: Floats, prices: Floats
) -> Floats:
    """Lower bound on the cost of assigning layers to stages, for each layout, (N,).

    Inputs are the costs a and b of a layer (N, stages, K, 2), its bytes x, y and z (N, K, 3), room (N,
    ranks), layers (K,), and microbatches in flight per stage (stages,). `prices` are the prices of kinds over
    their mean costs at the best point of a similar layout (K,). Stages are assigned to ranks round-robin.
    """
    bounds, buffers = np.empty(len(costs)), np.empty((3, len(totals)))
    _fill_costs(costs, bytes_of, rooms, totals, in_flight, prices, bounds, buffers)
    return bounds


@njit
def _fill_costs(
    costs: Floats,
    bytes_of: Floats,
    rooms: Floats,
    totals: Floats,
    in_flight: Floats,
    prices: Floats,
    bounds: Floats,
    line: Floats,
) -> None:
    """Write the bounds of `least_costs` to `bounds`; `line` (3, K) is a buffer for `highest`."""
    stages, least, along = costs.shape[1], line[0], line[1]
    for i in range(len(bounds)):
        layer_costs, layer_bytes, room = costs[i], bytes_of[i], rooms[i]
        for kind in range(len(totals)):
            least[kind], along[kind] = np.inf, 0.0
            for q in range(stages):
                least[kind] = min(least[kind], layer_costs[q, kind, 0])
        best = value_at(layer_costs, layer_bytes, room, totals, in_flight, line, 0.0)
        # Two lines from the least costs: to the prices of a similar layout, and to twice the least costs.
        for direction in range(2):
            for kind in range(len(totals)):
                target = 2.0 * least[kind]
                if direction == 0:
                    mean = 0.0
                    for q in range(stages):
                        mean += layer_costs[q, kind, 0] / stages
                    target = prices[kind] * mean
                along[kind] = target - least[kind]
            best = max(best, highest(layer_costs, layer_bytes, room, totals, in_flight, line))
        bounds[i] = best


@njit_inlined
def highest(
    costs: Floats, bytes_of: Floats, room: Floats, totals: Floats, in_flight: Floats, line: Floats
) -> float:
    """Highest bound along a line of layer prices, from the point in row 0 in the direction of row 1.

    Row 2 is a buffer for a point.
    """
    low, middle, high, best = 0.0, 0.0, FIRST, -np.inf
    # The value is concave along a line: double the step until it falls, which brackets the maximum.
    for _ in range(DOUBLINGS):
        value = value_at(costs, bytes_of, room, totals, in_flight, line, high)
        if value <= best:
            break
        best, low, middle, high = value, middle, high, 2.0 * high
    lower, upper = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_lower = value_at(costs, bytes_of, room, totals, in_flight, line, lower)
    at_upper = value_at(costs, bytes_of, room, totals, in_flight, line, upper)
    for _ in range(STEPS):
        if at_lower >= at_upper:
            high, upper, at_upper = upper, lower, at_lower
            lower = high - GOLDEN * (high - low)
            at_lower = value_at(costs, bytes_of, room, totals, in_flight, line, lower)
        else:
            low, lower, at_lower = lower, upper, at_upper
            upper = low + GOLDEN * (high - low)
            at_upper = value_at(costs, bytes_of, room, totals, in_flight, line, upper)
    return max(best, at_lower, at_upper)


@njit_nested
def value_at(
    costs: Floats,
    bytes_of: Floats,
    room: Floats,
    totals: Floats,
    in_flight: Floats,
    line: Floats,
    position: float,
) -> float:
    """Lower bound at a position on a line of layer prices, with the best price per byte of each rank."""
    bound, start, along, prices = 0.0, line[0], line[1], line[2]
    for kind in range(len(totals)):
        prices[kind] = start[kind] + position * along[kind]
        bound += prices[kind] * totals[kind]
    for rank in range(len(room)):
        byte = least_byte(costs, bytes_of, rank, len(room), in_flight, prices)
        if byte == np.inf:
            return -np.inf
        best, slope = rank_value(costs, bytes_of, rank, room, in_flight, prices, byte)
        while slope > 0:  # only if the required layer of each stage is too large for the rank
            byte = next_byte(costs, bytes_of, rank, len(room), in_flight, byte)
            if byte == np.inf:
                break
            value, slope = rank_value(costs, bytes_of, rank, room, in_flight, prices, byte)
            best = max(best, value)
        bound += best
    return bound


@njit_inlined
def least_byte(
    costs: Floats, bytes_of: Floats, rank: int, depth: int, in_flight: Floats, prices: Floats
) -> float:
    """Smallest price per byte at which every layer on a rank costs at least its layer price."""
    byte = 0.0
    for kind in range(costs.shape[1]):
        for q in range(rank, len(costs), depth):
            lacking, recompute = prices[kind] - costs[q, kind, 0], costs[q, kind, 1]
            if lacking <= 0:
                continue
            full_bytes = bytes_of[kind, 0] + in_flight[q] * bytes_of[kind, 1]
            lean_bytes = full_bytes - in_flight[q] * bytes_of[kind, 2]
            # No price per byte raises the cost of a layer that takes no bytes.
            if full_bytes <= 0 or (lacking > recompute and lean_bytes <= 0):
                return np.inf
            byte = max(byte, lacking / full_bytes)
            if lacking > recompute:
                byte = max(byte, (lacking - recompute) / lean_bytes)
    return byte


@njit_inlined
def next_byte(
    costs: Floats, bytes_of: Floats, rank: int, depth: int, in_flight: Floats, byte: float
) -> float:
    """Next higher price per byte at which recomputing becomes cheaper for some layer of the rank."""
    higher = np.inf
    for kind in range(costs.shape[1]):
        for q in range(rank, len(costs), depth):
            saved = in_flight[q] * bytes_of[kind, 2]
            # Strictly higher by more than rounding, so that the search for a price per byte ends.
            if saved > 0 and costs[q, kind, 1] > byte * saved * (1 + 1e-9):
                higher = min(higher, costs[q, kind, 1] / saved)
    return higher


@njit_nested
def rank_value(
    costs: Floats, bytes_of: Floats, rank: int, room: Floats, in_flight: Floats, prices: Floats, byte: float
) -> tuple[float, float]:
    """Contribution of a rank to the bound at a price per byte, and its approximate slope in that price."""
    bound, slope = -byte * room[rank], -room[rank]
    for q in range(rank, len(costs), len(room)):
        # The first and the last stage may be empty: their least cost is 0.
        if q in (0, len(costs) - 1):
            continue
        least, growth = np.inf, 0.0
        for kind in range(costs.shape[1]):
            layer_bytes = bytes_of[kind, 0] + in_flight[q] * bytes_of[kind, 1]
            saved = in_flight[q] * bytes_of[kind, 2]
            if byte * saved >= costs[q, kind, 1]:
                layer_bytes -= saved
                cost = costs[q, kind, 0] + costs[q, kind, 1] + byte * layer_bytes - prices[kind]
            else:
                cost = costs[q, kind, 0] + byte * layer_bytes - prices[kind]
            if cost < least:
                least, growth = cost, layer_bytes
        if least > 0:
            bound += least
        slope += growth
    return bound, slope
