"""Why a layer graph with branches cannot be placed: as `plan.phaze.reasons` says it of chains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from phaze.base.arrays import Floats
from phaze.pipeline.flushing import Setting
from phaze.plan.phaze.cuttings import Cutting, needed
from phaze.plan.phaze.ranges import Bound, best_choice
from phaze.plan.phaze.reasons import Leanest, min_devices, pipelines, too_few_devices, too_little_memory


def why_infeasible(cuttings: list[Cutting], setting: Setting) -> str:
    """Return which limit no placement of these graphs respects, and by how much."""
    formed = [cut for cut in cuttings if min_devices(cut.graph, cut.layout) <= setting.devices]
    if not formed:
        return too_few_devices({cut.layout: cut.graph for cut in cuttings}, setting)
    lean = min((leanest(cut, setting) for cut in formed), key=lambda found: found.memory_bytes)
    return too_little_memory(lean, min(_enough_devices(cut, setting) for cut in cuttings), setting)


def leanest(cut: Cutting, setting: Setting) -> Leanest:
    """Return the placement that needs least memory on its fullest device, of those that are considered."""
    choices = pipelines(setting, setting.devices // min_devices(cut.graph, cut.layout))

    def bound(lo: int, hi: int) -> Bound[Leanest] | None:
        widths = cut.widths(setting.devices // choices[lo][1])
        tables = cut.tables(widths, _peaks(cut, setting, choices[hi - 1][0]))
        found = [Leanest(float(dp[-1].min()), cut.layout, s) for s, dp in enumerate(tables)]
        lean = min(found, key=lambda lean: (lean.memory_bytes, lean.stages))
        return Bound((lean.memory_bytes, lean.stages), lean, hi - lo == 1)

    lean = best_choice(len(choices), bound)
    assert lean is not None, "one stage can always be formed"
    return lean


def _peaks(cut: Cutting, setting: Setting, microbatches: int) -> Iterator[Floats]:
    """Yield what the fullest device of every stage needs as the last, the last but one, ..."""
    for s in range(1, len(cut.graph) + 1):
        yield cut.options.peak_bytes(needed(setting, s, microbatches))


def _enough_devices(cut: Cutting, setting: Setting) -> float:
    """Return the devices of the smallest cluster on which the graph fits the memory, infinite for none."""
    widths, choices = cut.widths(cut.layout.tp * len(cut.graph)), pipelines(setting, setting.microbatches)

    def bound(lo: int, hi: int) -> Bound[int] | None:
        tables = cut.tables(widths, _hurdles(cut, setting, choices[hi - 1][0]))
        possible = np.any([np.isfinite(dp[-1]) for dp in tables], axis=0)
        if not possible.any():
            return None
        enough = choices[lo][1] * int(widths.devices[np.argmax(possible)])
        return Bound((enough,), enough, hi - lo == 1)

    enough = best_choice(len(choices), bound)
    return np.inf if enough is None else enough


def _hurdles(cut: Cutting, setting: Setting, microbatches: int) -> Iterator[Floats]:
    """Yield zero for every stage that fits, infinity for the others, as the last, the last but one, ..."""
    room = cut.room(setting)
    for s in range(1, len(cut.graph) + 1):
        yield np.where(room >= needed(setting, s, microbatches), 0.0, np.inf)
