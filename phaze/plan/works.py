"""The work of the stages of a plan, from the layers that it was planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.pipeline.flushing import Chain, edge_arrays
from phaze.plan.phaze.costs import StageCost
from phaze.plan.piper.chain import RECOMPUTE
from phaze.plan.piper.layers import Options
from phaze.plan.plan import StageWork, Traffic


@dataclass(frozen=True)
class _Held:
    """Memory of a device: all the time, for each microbatch in flight, and for the one at work."""

    fixed_bytes: float
    stash_bytes: float
    work_bytes: float


def uniform_work(chain: Chain, traffic: Traffic, cost: StageCost, kind: str) -> StageWork:
    """Return the work of a stage of a flushing placement, all of whose layers stash or recompute.

    A stage that recomputes keeps its inputs of every microbatch in flight, and all activations of the one at
    work (`cost.memory`).
    """
    layers = np.arange(cost.first_layer, cost.last_layer + 1)
    stash = cost.activation_bytes
    if kind == RECOMPUTE:
        stash = float(_crossing(chain, layers)[0].sum())
    held = _Held(cost.static_bytes, stash, max(cost.activation_bytes - stash, 0.0))
    again = np.full(len(layers), cost.recomputed_s > 0)
    return _work(chain, traffic, layers, again, held)


def configured_work(
    chain: Chain, traffic: Traffic, options: Options, layers: Sequence[int], configurations: Sequence[int]
) -> StageWork:
    """Return the work of a stage of Piper's plan, whose layers each have their configuration."""
    members, chosen = np.array(layers, np.int64), list(configurations)
    again = np.array([options.names[c] == RECOMPUTE for c in chosen])
    held = _Held(float(options.fixed_bytes[chosen].sum()), float(options.stash_bytes[chosen].sum()), 0.0)
    return _work(chain, traffic, members, again, held)


def _work(chain: Chain, traffic: Traffic, layers: Ints, again: Bools, held: _Held) -> StageWork:
    """Return the work of layers of which some run forward again."""
    arriving, departing = _crossing(chain, layers)
    repeated = layers[again]
    return StageWork(
        forward_s=float(chain.forward_s[layers].sum()),
        recompute_s=float(chain.forward_s[repeated].sum()),
        backward_s=float(chain.backward_s[layers].sum()),
        arriving_bytes=float(arriving.sum()),
        longest_arriving_bytes=float(arriving.max(initial=0.0)),
        departing_bytes=float(departing.sum()),
        longest_departing_bytes=float(departing.max(initial=0.0)),
        weight_bytes=float(chain.weight_bytes[layers].sum()),
        fixed_bytes=held.fixed_bytes,
        stash_bytes=held.stash_bytes,
        work_bytes=held.work_bytes,
        forward_hbm_bytes=float(traffic.forward_hbm_bytes[layers].sum()),
        recompute_hbm_bytes=float(traffic.forward_hbm_bytes[repeated].sum()),
        backward_hbm_bytes=float(traffic.backward_hbm_bytes[layers].sum()),
        forward_reduced_bytes=float(traffic.forward_reduced_bytes[layers].sum()),
        recompute_reduced_bytes=float(traffic.forward_reduced_bytes[repeated].sum()),
        backward_reduced_bytes=float(traffic.backward_reduced_bytes[layers].sum()),
    )


def _crossing(chain: Chain, layers: Ints) -> tuple[Floats, Floats]:
    """Return the bytes of every edge that enters the stage, and of every edge that leaves it."""
    sources, targets, sizes = edge_arrays(chain.edges)
    starts, ends = np.isin(sources, layers), np.isin(targets, layers)
    return sizes[~starts & ends], sizes[starts & ~ends]
