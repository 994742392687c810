"""Plans for networks with levels as JSON: like those of `results`, with stages in superstages.

time_per_sample   of the slowest device of any level, null if there is no plan
devices           of the highest level that are used
degree            the sum over the stages of d times all d around it
binding_level     the level of the slowest device
stages            in the order of the data flow. Above level 1: `level`, `layers` (ids), `d`,
                  `time_per_sample` (the communication of a device of the level) and `stages`, what each of
                  the d devices is cut into. At level 1 as in `results`; times are per sample of the whole
reason            why there is no plan; only then
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from phaze.plan.piper.hierarchy import MAX_DOWNSETS, plan_hierarchy
from phaze.plan.piper.instance import Instance
from phaze.plan.piper.layers import Cluster, Layers, PlannedStage
from phaze.plan.piper.nested import Hierarchy, Superstage
from phaze.plan.piper.question import Question
from phaze.plan.piper.reasons import why_no_plan
from phaze.plan.piper.results import result_stage

Content = dict[str, object]


def answer_levels(instance: Instance, question: Question, hierarchy: Hierarchy) -> Content:
    """Return the best plan on a network with levels, or why there is none."""
    layers = instance.layers()
    found = plan_hierarchy(
        layers,
        hierarchy,
        linear=question.paper_table1,
        max_downsets=question.max_downsets or MAX_DOWNSETS,
    )
    if found is None:
        return {"time_per_sample": None, "stages": [], "reason": _why(layers, hierarchy)}
    return {
        "time_per_sample": found.time_per_sample_s,
        "devices": found.devices,
        "degree": found.degree,
        "binding_level": found.binding_level,
        "stages": [_plain(layers, part) for part in found.parts],
    }


def _plain(layers: Layers, part: Superstage | PlannedStage) -> Content:
    if isinstance(part, PlannedStage):
        return asdict(result_stage(layers, part))
    return {
        "level": part.level,
        "layers": [layers.ids[v] for v in part.layers],
        "d": part.data,
        "time_per_sample": part.time_s,
        "stages": [_plain(layers, inner) for inner in part.parts],
    }


def _why(layers: Layers, hierarchy: Hierarchy) -> str:
    """Return why there is no plan; widths are limited to level 1, memory is that of all devices."""
    narrow = [options.layer for tensor, options in layers.options.items() if tensor <= hierarchy.counts[0]]
    runs = len(np.unique(np.concatenate(narrow))) == len(layers) if narrow else False
    return why_no_plan(
        layers,
        Cluster(
            devices=hierarchy.devices if runs else hierarchy.counts[0],
            memory_bytes=hierarchy.memory_bytes,
            bandwidth_bytes_per_s=hierarchy.bandwidths_bytes_per_s[0],
            microbatches=hierarchy.microbatches,
            exactly=hierarchy.exactly,
            synchronisation=hierarchy.synchronisation,
        ),
    )
