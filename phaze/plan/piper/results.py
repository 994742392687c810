"""Plans as JSON: the stages of Piper, with or without levels, and of its baselines, or why there are none.

time_per_sample   of the slowest stage, null if there is no plan; in the unit of the input's times
devices, degree   the sums of d t and of d over the stages
stages            in the order of the data flow: `layers` (ids), `d`, `t`, `configurations` (ids, one for
                  each layer), `in_flight` (microbatches on each device, ceil(s/d)), `time_per_sample`,
                  `memory_bytes` (of each device)
reason            why there is no plan; only then
fits_memory       false where stages exceed the memory, which only PipeDream's may; only then
baselines         the same for each baseline by name; only if asked for

With levels:
devices           of the highest level that are used
degree            the sum over the stages of d times all d around it
binding_level     the level of the slowest device
stages            above level 1: `level`, `layers` (ids), `d`, `time_per_sample` (the communication of a
                  device of the level) and `stages`, what each of the d devices is cut into. At level 1 as
                  above; times are per sample of the whole
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

import numpy as np

from phaze.plan.piper.baselines import plan_baselines
from phaze.plan.piper.hierarchy import MAX_DOWNSETS as MOST_WITH_LEVELS
from phaze.plan.piper.hierarchy import plan_hierarchy
from phaze.plan.piper.instance import Instance
from phaze.plan.piper.layers import Cluster, Layers, Plan, PlannedStage
from phaze.plan.piper.nested import Hierarchy, Superstage
from phaze.plan.piper.planner import MAX_DOWNSETS, plan, why_no_plan
from phaze.plan.piper.question import Question

Content = dict[str, object]


@dataclass(frozen=True)
class ResultStage:
    """A stage of a plan."""

    layers: tuple[int, ...]
    """Their ids."""
    d: int
    t: int
    configurations: tuple[str, ...]
    """The name of each layer's."""
    in_flight: int
    time_per_sample: float
    memory_bytes: float


@dataclass(frozen=True)
class Result:
    """A plan, or why there is none."""

    time_per_sample: float | None
    devices: int
    """Devices used, the sum of d t."""
    degree: int
    """The sum of d."""
    stages: tuple[ResultStage, ...]
    reason: str | None = None
    """Why there is no plan."""
    fits_memory: bool = True
    """Whether all stages fit; PipeDream's planner does not look."""


def answer(instance: Instance, question: Question) -> tuple[Result, dict[str, Result]]:
    """Return Piper's plan, and those of the baselines by name if they are asked for."""
    layers, cluster = instance.layers(), question.cluster(instance)

    def planner(layers: Layers, cluster: Cluster, most_data: int | None) -> Plan | None:
        return plan(
            layers,
            cluster,
            linear=question.paper_table1,
            exact_knapsack=question.exact_knapsack,
            most_data=most_data,
            max_downsets=question.max_downsets or MAX_DOWNSETS,
        )

    found = planner(layers, cluster, None)
    others = plan_baselines(layers, cluster, planner) if question.baselines else {}
    return _result(layers, cluster, found, why_no_plan(layers, cluster)), {
        name: _result(layers, cluster, other, "no plan of this kind fits") for name, other in others.items()
    }


def result_text(found: Result, baselines: dict[str, Result]) -> str:
    """Return results as JSON; what does not apply is left out."""
    content = _plain(found)
    if baselines:
        content["baselines"] = {name: _plain(result) for name, result in baselines.items()}
    return as_text(content)


def as_text(content: Content) -> str:
    """Return content as JSON, lists of plain values in a line."""
    text = json.dumps(content, indent=2, allow_nan=False)
    return re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s+\]", lambda found: f"[{_one_line(found[1])}]", text)


def _one_line(items: str) -> str:
    return re.sub(r"\n\s+", " ", items)


def _plain(result: Result) -> Content:
    left_out = {"reason": result.reason is None, "fits_memory": result.fits_memory}
    return {key: value for key, value in asdict(result).items() if not left_out.get(key)}


def _result(layers: Layers, cluster: Cluster, found: Plan | None, reason: str) -> Result:
    if found is None:
        return Result(None, 0, 0, (), reason)
    return Result(
        time_per_sample=found.time_per_sample_s,
        devices=found.devices,
        degree=found.degree,
        stages=tuple(_result_stage(layers, stage) for stage in found.stages),
        fits_memory=all(stage.memory_bytes <= cluster.memory_bytes for stage in found.stages),
    )


def _result_stage(layers: Layers, stage: PlannedStage) -> ResultStage:
    """Return a stage in the user's words: ids of layers and configurations."""
    names = layers.options[stage.layout.tp].names
    return ResultStage(
        layers=tuple(layers.ids[v] for v in stage.layers),
        d=stage.layout.dp,
        t=stage.layout.tp,
        configurations=tuple(names[x] for x in stage.configurations),
        in_flight=stage.in_flight,
        time_per_sample=stage.time_s,
        memory_bytes=stage.memory_bytes,
    )


def answer_levels(instance: Instance, question: Question, hierarchy: Hierarchy) -> Content:
    """Return the best plan on a network with levels, or why there is none."""
    layers = instance.layers()
    found = plan_hierarchy(
        layers,
        hierarchy,
        linear=question.paper_table1,
        max_downsets=question.max_downsets or MOST_WITH_LEVELS,
    )
    if found is None:
        return {"time_per_sample": None, "stages": [], "reason": _why_none(layers, hierarchy)}
    return {
        "time_per_sample": found.time_per_sample_s,
        "devices": found.devices,
        "degree": found.degree,
        "binding_level": found.binding_level,
        "stages": [_part(layers, part) for part in found.parts],
    }


def _part(layers: Layers, part: Superstage | PlannedStage) -> Content:
    if isinstance(part, PlannedStage):
        return asdict(_result_stage(layers, part))
    return {
        "level": part.level,
        "layers": [layers.ids[v] for v in part.layers],
        "d": part.data,
        "time_per_sample": part.time_s,
        "stages": [_part(layers, inner) for inner in part.parts],
    }


def _why_none(layers: Layers, hierarchy: Hierarchy) -> str:
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
