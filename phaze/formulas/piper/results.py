"""Plans of Piper (with or without network levels) and of its baselines as JSON, or why there are none.

time_per_sample   of the slowest stage, null if there is no plan; in the unit of the input's times
devices, degree   sums of d t and of d over the stages
stages            in the order of the data flow: `layers` (ids), `d`, `t`, `configurations` (ids, one per
                  layer), `in_flight` (microbatches on each device, ceil(s/d)), `time_per_sample`,
                  `memory_bytes` (of each device)
reason            reason why there is no plan; only then
fits_memory       false if stages exceed the memory, which only PipeDream's may; only then
baselines         the same for each baseline by name; only if asked for

With levels:
devices           used devices of the highest level
degree            sum over the stages of d times all d around it
binding_level     level of the slowest device
stages            above level 1: `level`, `layers` (ids), `d`, `time_per_sample` (communication of a device of
                  the level) and `stages`, the parts that each of the d devices runs. At level 1 as above;
                  times are per sample of the whole
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np

from phaze.formulas.piper.baselines import CONTENDERS
from phaze.formulas.piper.hierarchy import MAX_DOWNSETS, plan_hierarchy
from phaze.formulas.piper.instance import PiperInstance
from phaze.formulas.piper.layers import FlatCluster, Hierarchy, PiperPlan, PlannedStage, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, why_no_plan
from phaze.formulas.piper.question import PiperQuestion

Content = dict[str, object]


def answer(instance: PiperInstance, question: PiperQuestion) -> Content:
    """Piper's plan and, if requested, the baselines' plans by name; or the reason why there is none."""
    layers, hierarchy = instance.layers(), question.hierarchy(instance)
    if hierarchy is not None:
        return _answer_levels(layers, question, hierarchy)
    cluster = question.cluster(instance)
    options = SearchOptions(question.paper_table1, question.exact_knapsack)
    if question.max_downsets:
        options = replace(options, max_downsets=question.max_downsets)
    results = {}
    for name, contender in CONTENDERS.items() if question.baselines else [("piper", CONTENDERS["piper"])]:
        restricted = contender.restrict(layers)
        reason = why_no_plan(layers, cluster) if name == "piper" else "no plan of this kind fits"
        plan = contender.plan(restricted, cluster, options)
        results[name.replace("-", "_")] = _content(restricted, cluster, plan, reason)
    piper = results.pop("piper")
    return {**piper, "baselines": results} if results else piper


def _content(layers: ProfiledLayers, cluster: FlatCluster, plan: PiperPlan | None, reason: str) -> Content:
    if plan is None:
        return {"time_per_sample": None, "devices": 0, "degree": 0, "stages": [], "reason": reason}
    content: Content = {
        "time_per_sample": plan.time_per_sample_s,
        "devices": plan.devices,
        "degree": plan.degree,
        "stages": [_stage(layers, stage) for stage in plan.stages],
    }
    fits = all(stage.memory_bytes <= cluster.memory_bytes for stage in plan.stages)
    return content if fits else {**content, "fits_memory": False}


def _stage(layers: ProfiledLayers, stage: PlannedStage) -> Content:
    """Stage as plain values, with the user's ids of layers and configurations."""
    ids = [layers.ids[v] for v in stage.layers]
    if stage.parts:
        return {
            "level": stage.level,
            "layers": ids,
            "d": stage.layout.dp,
            "time_per_sample": stage.time_s,
            "stages": [_stage(layers, part) for part in stage.parts],
        }
    names = layers.options[stage.layout.tp].names
    return {
        "layers": ids,
        "d": stage.layout.dp,
        "t": stage.layout.tp,
        "configurations": [names[x] for x in stage.configurations],
        "in_flight": stage.in_flight,
        "time_per_sample": stage.time_s,
        "memory_bytes": stage.memory_bytes,
    }


def _answer_levels(layers: ProfiledLayers, question: PiperQuestion, hierarchy: Hierarchy) -> Content:
    """Best plan on a hierarchical network, or the reason why there is none."""
    most = question.max_downsets or MAX_DOWNSETS
    plan = plan_hierarchy(layers, hierarchy, linear=question.paper_table1, max_downsets=most)
    if plan is None:
        # Widths are limited to level 1; memory counts over all devices.
        inner = hierarchy.inner
        runs = np.isfinite(layers.least(lambda _, options: options.time_s, inner.devices)).all()
        devices = hierarchy.devices(len(hierarchy.levels)) if runs else inner.devices
        reason = why_no_plan(layers, replace(inner, devices=devices))
        return {"time_per_sample": None, "stages": [], "reason": reason}
    return {
        "time_per_sample": plan.time_per_sample_s,
        "devices": plan.devices,
        "degree": plan.degree,
        "binding_level": plan.binding_level,
        "stages": [_stage(layers, stage) for stage in plan.stages],
    }


def as_text(content: Content) -> str:
    """Content as JSON, with lists of plain values on one line."""
    text = json.dumps(content, indent=2, allow_nan=False)
    lines = re.compile(r"\n\s+")
    return re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s+\]", lambda match: f"[{lines.sub(' ', match[1])}]", text)
