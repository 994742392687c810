"""Reasons for infeasibility: the violated limit, and by how much.

The leanest placement has the least peak memory. The same recurrence finds it, with a stage's memory as its
load. If it does not fit, memory is the limit, and the reason gives the number of devices that would suffice
with this memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.base.units import GIB, KIB, MIB
from phaze.cost.memory import microbatches_in_flight
from phaze.formulas.cuts import Shape, devices_of, least_worst, possible_cuts, refuse_large, shape_of
from phaze.formulas.flushing import Chain, Footprints, Setting, room, useful_widths
from phaze.layout import Layout


@dataclass(frozen=True)
class Leanest:
    """Peak memory, layout and depth of the placement with the lowest peak memory."""

    memory_bytes: float
    layout: Layout
    stages: int


def why_infeasible(chains: dict[Layout, Chain], setting: Setting) -> str:
    """Limit that every placement of these chains (by TMP width) violates, and by how much."""
    formed = {t: chain for t, chain in chains.items() if min_devices(chain, t) <= setting.devices}
    if not formed:
        return too_few_devices(chains, setting)
    lean = min(
        (leanest(chain, t, setting) for t, chain in formed.items()), key=lambda lean: lean.memory_bytes
    )
    enough = min(_enough_devices(chain, t, setting) for t, chain in chains.items())
    return too_little_memory(lean, enough, setting)


def too_few_devices(chains: dict[Layout, Chain], setting: Setting) -> str:
    """Explain how many more devices are needed to form one stage."""
    least = min(min_devices(chain, t) for t, chain in chains.items())
    missing = least - setting.devices
    return f"devices: a pipeline needs at least {least}, {setting.devices} given: {missing} too few"


def too_little_memory(lean: Leanest, enough: float, setting: Setting) -> str:
    """Explain the memory shortfall, and how many devices would suffice with this memory, if any."""
    hint = f"; with {enough:.0f} devices instead of {setting.devices} it would fit" if enough < np.inf else ""
    return (
        f"memory: the leanest placement (t = {lean.layout.tp}, {lean.stages} stages) needs "
        f"{readable(lean.memory_bytes)} on its fullest device, {readable(setting.memory_bytes)} given: "
        f"{readable(lean.memory_bytes - setting.memory_bytes)} too little{hint}"
    )


def why_not_stages(
    footprints: Footprints, starts: tuple[int, ...], setting: Setting, microbatches: int
) -> str:
    """Explain which stage of a placement exceeds memory the most; empty if all stages fit."""
    needed = stage_memories(footprints, starts, setting, microbatches)
    worst = int(np.argmax(needed))
    if needed[worst] <= setting.memory_bytes:
        return ""
    return (
        f"memory: stage {worst} of {len(starts)} needs {readable(needed[worst])}, "
        f"{readable(setting.memory_bytes)} given: {readable(needed[worst] - setting.memory_bytes)} too little"
    )


def stage_memories(
    footprints: Footprints, starts: tuple[int, ...], setting: Setting, microbatches: int
) -> Floats:
    """Memory of every stage of a placement in bytes, from the first stage."""
    n = len(footprints.constant_bytes)
    constant = footprints.constant_bytes[list(starts), [*starts[1:], n]]
    return constant + stage_stashes(footprints, starts, setting, microbatches)


def stage_stashes(
    footprints: Footprints, starts: tuple[int, ...], setting: Setting, microbatches: int
) -> Floats:
    """Bytes that every stage of a placement stashes for its microbatches in flight, from the first stage."""
    n, depth = len(footprints.constant_bytes), len(starts)
    stashes = np.empty(depth)
    for number, (i, j) in enumerate(zip(starts, (*starts[1:], n), strict=True)):
        s = depth - number
        stashed = footprints.stashed_bytes(setting.recompute and s > 1)[i, j]
        stashes[number] = microbatches_in_flight(setting.schedule, s, microbatches) * stashed
    return stashes


def min_devices(chain: Chain, layout: Layout) -> int:
    """Number of devices of the smallest pipeline, which has one stage."""
    return layout.tp if np.any(chain.tensor_parallel) else 1


def leanest(chain: Chain, layout: Layout, setting: Setting) -> Leanest:
    """Placement of a chain with the lowest peak memory."""
    choices = pipelines(setting, setting.devices // min_devices(chain, layout))
    layouts = [replace(layout, dp=d) for _, d in choices]
    candidates = [lean for replicated in layouts for lean in lean_placements(chain, replicated, setting)]
    return min(candidates, key=lambda lean: (lean.memory_bytes, lean.stages))


def lean_placements(chain: Chain, layout: Layout, setting: Setting) -> list[Leanest]:
    """Lowest-memory placements of d pipelines, by number of stages and of single-device stages."""
    shape = shape_of(chain, layout, setting.devices // layout.dp)
    peaks = _peaks(chain.footprints, setting, shape, setting.in_pipeline(layout))
    return [
        Leanest(float(peaks[s, u]), layout, int(s))
        for s, u in np.argwhere(np.isfinite(peaks))
        if devices_of(s, u, shape.wide) * layout.dp <= setting.devices
    ]


def pipelines(setting: Setting, most: int) -> list[tuple[int, int]]:
    """Candidate pairs (microbatches per pipeline, number of pipelines d); only d = 1 if memory ignores d."""
    if setting.schedule == "1f1b":
        return [(setting.microbatches, 1)]
    counts, widths = useful_widths(setting.microbatches, most)
    return [(int(m), int(d)) for m, d in zip(counts, widths, strict=True)]


def _peaks(footprints: Footprints, setting: Setting, shape: Shape, microbatches: int) -> Floats:
    """Lowest peak memory in bytes, by number of stages and of single-device stages."""
    n = len(footprints.constant_bytes)
    constant, growth = footprints.constant_bytes, footprints.stashed_bytes(setting.recompute)
    last = constant[:, n].copy()
    if setting.schedule == "gpipe":
        # At every position all microbatches of the pipeline are in flight: nothing grows with s.
        constant, growth = constant + microbatches * growth, np.zeros_like(growth)
        # The last stage does not recompute, so it stashes all activations.
        last += microbatches * footprints.activation_bytes[:, n]
    # No limit on positions: the recurrence looks for the least memory, not for what fits.
    anywhere = np.full(constant.shape, n, np.int64)
    dp = least_worst(last, constant, growth, anywhere, footprints.single, shape.stages, shape.singles)
    return dp[:, :, 0]


def _enough_devices(chain: Chain, layout: Layout, setting: Setting) -> float:
    """Smallest number of devices on which the chain fits in memory; inf if none.

    Also inf if this machine lacks the memory to find out.
    """
    shape, footprints = shape_of(chain, layout, layout.tp * len(chain)), chain.footprints
    try:
        refuse_large(len(chain), shape)
    except PhazeError:
        return np.inf
    enough = np.inf
    for microbatches, data in pipelines(setting, setting.microbatches):
        fits, devices = possible_cuts(footprints, room(footprints, setting, microbatches), shape)
        # Fitting needs the devices of all d pipelines.
        enough = min([enough, *(data * devices[fits]).tolist()])
    return enough


def readable(size: float) -> str:
    """Format a number of bytes in the largest unit that gives at least 1."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size:.4g} B"
