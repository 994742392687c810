"""User's options for planning an instance with Piper, and the answer: its plan and its baselines' as JSON.

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
import math
import re
from dataclasses import dataclass, fields, replace

import numpy as np

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.formulas.piper.baselines import CONTENDERS
from phaze.formulas.piper.choices import PiperChoices
from phaze.formulas.piper.hierarchy import MAX_DOWNSETS, plan_hierarchy
from phaze.formulas.piper.instance import PiperInstance
from phaze.formulas.piper.layers import (
    FlatCluster,
    Hierarchy,
    NetworkLevel,
    PiperPlan,
    PlannedStage,
    ProfiledLayers,
)
from phaze.formulas.piper.planner import SearchOptions
from phaze.spec.names import MOST

Content = dict[str, object]
LEAST_GIB, MOST_GIB = 1e-12, 1e18
"""Allowed range of memory and bandwidth in GiB."""


@dataclass(frozen=True, kw_only=True)
class PiperQuestion(PiperChoices):
    """User's planning options, with the number of devices."""

    devices: int | None = None
    """Number of devices; None uses the instance's."""

    def __post_init__(self) -> None:
        """Raise PhazeError for values outside the allowed range."""
        for name, value in (("memory-gib", self.memory_gib), ("bandwidth-gib", self.bandwidth_gib)):
            if value is not None and not LEAST_GIB <= value <= MOST_GIB:
                raise PhazeError(
                    f"place: --{name}: must be from {LEAST_GIB:g} to {MOST_GIB:g}, got {value:g}"
                )
        for name, count in (("devices", self.devices), ("microbatches", self.microbatches)):
            if count is not None and not 1 <= count <= MOST:
                raise PhazeError(f"place: --{name}: must be from 1 to {MOST}, got {count}")

    def hierarchy(self, instance: PiperInstance) -> Hierarchy | None:
        """Hierarchical network and the batch; None if no levels are given."""
        if self.levels is None:
            return None
        for name in ("devices", "bandwidth-gib", "baselines"):
            if name.replace("-", "_") in self.given():
                raise PhazeError(
                    f"place: --{name}: not together with --levels, which says what the network is"
                )
        first, *above = [_level(text) for text in self.levels.split(",")]
        devices = math.prod(level.devices for level in (first, *above))
        if devices > MOST:
            raise PhazeError(f"place: --levels: {self.levels} make {devices} devices, allowed are {MOST}")
        return Hierarchy(self._cluster(instance, first), tuple(above))

    def cluster(self, instance: PiperInstance) -> FlatCluster:
        """Cluster with a flat network, and the batch."""
        devices = instance.max_devices if self.devices is None else self.devices
        bandwidth = instance.bandwidth if self.bandwidth_gib is None else self.bandwidth_gib * GIB
        return self._cluster(instance, NetworkLevel(devices, bandwidth))

    def _cluster(self, instance: PiperInstance, level: NetworkLevel) -> FlatCluster:
        memory = instance.max_memory_per_device if self.memory_gib is None else self.memory_gib * GIB
        return FlatCluster(
            devices=level.devices,
            memory_bytes=memory,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s,
            microbatches=instance.mbs_in_batch if self.microbatches is None else self.microbatches,
            exactly=self.exactly,
            synchronisation="round" if self.paper_table1 else "batch",
        )

    def given(self) -> list[str]:
        """Names of the fields that differ from their defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


def _level(text: str) -> NetworkLevel:
    """Parse a level such as 8@300: number of devices, and bandwidth converted to bytes per second."""
    match = re.fullmatch(r"\s*(\d+)@(\d+(?:\.\d+)?)\s*", text)
    if match is None or int(match[1]) < 1 or not LEAST_GIB <= float(match[2]) <= MOST_GIB:
        raise PhazeError(
            f"place: --levels: {text!r} is not a level, allowed are a number of devices and their bandwidth "
            f"in GiB/s (> 0, at most {MOST_GIB:g}) of each level from the inside out, such as 8@300,8@25"
        )
    return NetworkLevel(int(match[1]), float(match[2]) * GIB)


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


def why_no_plan(layers: ProfiledLayers, cluster: FlatCluster) -> str:
    """Reason why the planner found no plan."""
    # The necessary conditions that a plan can violate, the simplest first.
    single = layers.least(lambda _, c: c.stash_bytes + c.fixed_bytes, cluster.devices)
    total = layers.least(lambda width, c: width * (c.stash_bytes + c.fixed_bytes), cluster.devices)
    if np.isinf(single).any():
        v = int(np.isinf(single).argmax())
        widths = [str(t) for t, options in layers.options.items() if v in options.layer]
        return f"devices: {_name(layers, v)} needs t = {' or '.join(widths)} devices, {cluster.devices} given"
    batch = f"{'exactly' if cluster.exactly else 'at most'} {cluster.microbatches} microbatches"
    if cluster.exactly and cluster.microbatches > cluster.devices:
        return f"batch: {batch} are data parallel on as many devices, {cluster.devices} given"
    memory = f"{_gib(cluster.memory_bytes)} given"
    if single.max() > cluster.memory_bytes:
        name = _name(layers, int(single.argmax()))
        return f"memory: {name} alone takes at least {_gib(single.max())} of a device, {memory}"
    together = f"{cluster.devices} devices of {memory}"
    if total.sum() > cluster.memory_bytes * cluster.devices:
        return f"memory: all layers together take at least {_gib(total.sum())}, {together}"
    return f"memory or batch: no stages, degrees and configurations fit with {batch}, {together}"


def _name(layers: ProfiledLayers, v: int) -> str:
    return f"layer {layers.ids[v]} ({layers.names[v]})"


def _gib(size: float) -> str:
    return f"{size / GIB:.4g} GiB"
