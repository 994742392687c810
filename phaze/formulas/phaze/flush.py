"""Best placement for flushing pipelines (Phaze, Section 5 and Appendix B): widths t and d, and s stages.

For one TMP width t, over data widths d <= min(K, B), pipeline depths s, and cuts of the chain into stages:

    minimise (ceil(B/d) + s - 1) * max over stages of load + f (d - 1)/d * weights / bandwidth

such that d pipelines have no more than K devices and every stage fits the memory at its position from the
end. The weights are those of the stage that has most, or of the first stage, and f is the factor of an
all-reduce (`Setting`). `formulas.cuts.best_cut` finds the best d, s and cut. Under 1F1B the memory does not
depend on d, so one table serves all widths; under GPipe there is one table per number of microbatches in a
pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.formulas.cuts import PipelineCounts, SplitCosts, best_cut, limits_of, refuse_large, shape_of
from phaze.formulas.flushing import (
    Chain,
    Loads,
    Setting,
    batch_time_s,
    room,
    stage_loads,
    sync_s,
    useful_widths,
)
from phaze.formulas.phaze.reasons import why_infeasible
from phaze.layout import Layout


@dataclass(frozen=True)
class Placement:
    """Pipeline stages with their layers and device counts, their layout, and the resulting time per batch."""

    layout: Layout
    layers: tuple[Sequence[int], ...]
    """Layer positions of every stage, ascending; those of a chain are consecutive."""
    devices: tuple[int, ...]
    """Number of devices of every stage in one pipeline."""
    time_s: float
    """Time per batch."""
    max_load_s: float
    sync_s: float

    @property
    def data(self) -> int:
        """Data-parallel width d."""
        return self.layout.dp

    @property
    def stages(self) -> int:
        """Pipeline depth s."""
        return len(self.layers)

    @property
    def starts(self) -> tuple[int, ...]:
        """Position of the first layer of every stage."""
        return tuple(stage[0] for stage in self.layers)

    @property
    def devices_used(self) -> int:
        """Number of devices used by all pipelines."""
        return self.data * sum(self.devices)

    def rank(self) -> tuple[float, int, int, int, int]:
        """Sort key of placements: time, then fewer devices, smaller d, s and t."""
        return self.time_s, self.devices_used, self.data, self.stages, self.layout.tp


@dataclass(frozen=True)
class Infeasible:
    """Reason why no placement exists."""

    reason: str
    """Violated limit, and by how much."""

    @property
    def limit(self) -> str:
        """Name of the violated limit: memory, devices, ..."""
        return self.reason.partition(":")[0]


@dataclass(frozen=True)
class Widths:
    """Search range: pipeline depths `fewest` to `most`, and data-parallel widths d with their ceil(B/d)."""

    fewest: int
    most: int
    counts: Ints
    data: Ints


def place_widths(chains: dict[Layout, Chain], setting: Setting) -> Placement | Infeasible:
    """Best placement over all TMP widths, or the reason why there is none."""
    for layout, chain in chains.items():  # fail before the first of them takes its time
        refuse_large(len(chain), shape_of(chain, layout, setting.devices))
    results = [place_chain(chains[layout], layout, setting, explain=False) for layout in sorted(chains)]
    placed = [placement for placement in results if isinstance(placement, Placement)]
    if not placed:
        return Infeasible(why_infeasible(chains, setting))
    return min(placed, key=Placement.rank)


def place_chain(
    chain: Chain, layout: Layout, setting: Setting, *, explain: bool = True, limit_s: float = np.inf
) -> Placement | Infeasible:
    """Best placement of a chain with TMP width t, or the reason why there is none.

    Ties go to the fewest devices, then to the smallest d, s and first stage. `explain` false leaves the
    reason empty, which saves time. A limit known to exceed the best time prunes most of the search.
    """
    widths = Widths(1, len(chain), *useful_widths(setting.microbatches, setting.devices))
    placement = place_within(chain, layout, setting, widths, limit_s)
    if placement is None:
        return Infeasible(why_infeasible({layout: chain}, setting) if explain else "")
    return placement


def place_within(
    chain: Chain, layout: Layout, setting: Setting, widths: Widths, limit_s: float = np.inf
) -> Placement | None:
    """Best placement within the given depths and data-parallel widths; None if none beats `limit_s`."""
    shape = shape_of(chain, layout, setting.devices)
    most = min(widths.most, shape.stages)
    if widths.fewest > most:
        return None
    refuse_large(len(chain), shape)
    footprints = chain.footprints
    loads = stage_loads(chain, setting.bandwidth_bytes_per_s)
    exchange = setting.exchange_s(footprints.weight_bytes)
    # If the batch waits for every stage, cuts are also searched under limits on the exchange.
    caps = limits_of(exchange) if setting.gradients == "every-stage" else np.empty(0)
    best: Placement | None = None
    for counts, data in _groups(widths, setting):
        fitting = room(footprints, setting, int(counts[0]))
        last = np.where(fitting.last_fits, loads.plain_s[:, -1], np.inf)
        costs = SplitCosts(last, loads.of(setting.recompute), fitting.most_stages, footprints.single)
        pipelines = PipelineCounts(shape.wide, setting.devices, counts, data)
        time, d, starts = best_cut(
            costs, exchange, caps, pipelines, widths.fewest, most, shape.singles, limit_s
        )
        if time < np.inf:
            candidate = evaluate_cut(chain, replace(layout, dp=int(d)), setting, starts.tolist(), loads)
            best = candidate if best is None or candidate.rank() < best.rank() else best
    return best


def _groups(widths: Widths, setting: Setting) -> Iterator[tuple[Ints, Ints]]:
    """Yield groups of data-parallel widths at which the same stages fit: all, or single ones under GPipe."""
    if setting.schedule == "1f1b":
        yield widths.counts, widths.data
        return
    for w in range(len(widths.data)):
        yield widths.counts[w : w + 1], widths.data[w : w + 1]


def stage_weights(chain: Chain, starts: Sequence[int]) -> Floats:
    """Weight bytes of every stage (s,), per tensor-parallel rank."""
    return np.array(
        [chain.footprints.weight_bytes[i, j] for i, j in pairwise((*starts, len(chain)))], np.float64
    )


def evaluate_cut(
    chain: Chain,
    layout: Layout,
    setting: Setting,
    starts: Sequence[int],
    loads: Loads | None = None,
) -> Placement:
    """Placement with the given stages and widths, with its time per batch; memory is not checked."""
    footprints, layout = chain.footprints, replace(layout, pp=len(starts))
    loads = loads or stage_loads(chain, setting.bandwidth_bytes_per_s)
    ends = (*starts[1:], len(chain))
    load_s = loads.of(setting.recompute)
    # The last stage never recomputes: its load is the plain one.
    worst = max(
        loads.plain_s[starts[-1], -1], *(load_s[i, j] for i, j in zip(starts[:-1], ends, strict=False)), 0.0
    )
    sync = sync_s(stage_weights(chain, starts), layout, setting)
    return Placement(
        layout=layout,
        layers=tuple(range(i, j) for i, j in zip(starts, ends, strict=True)),
        devices=tuple(1 if footprints.single[i, j] else layout.tp for i, j in zip(starts, ends, strict=True)),
        time_s=batch_time_s(float(worst), layout, setting.microbatches, sync),
        max_load_s=float(worst),
        sync_s=sync,
    )
