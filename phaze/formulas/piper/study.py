"""Use Piper in a study: plan models, and write the rows of planning cases.

A case plans a profile with every planner on every cluster of a point (Piper, Section 5). A profile also gives
deeper or shallower models, with another number of repeated layers. The layers of the most frequent name must
form a chain v_0 → … → v_{m-1}, m ≥ 3. The first and the last stay. Between them v_1 … v_{m-2} are repeated
cyclically, each with its own configurations and its inputs from outside the chain (Piper, Section 5.1:
"created by expanding our BERT-32 profiles").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, cycle, islice

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.formulas.flushing import Chain
from phaze.formulas.phaze.point import Conditions, read_devices, read_point
from phaze.formulas.piper.baselines import Contender
from phaze.formulas.piper.chain import read_layers
from phaze.formulas.piper.layers import Configurations, FlatCluster, PiperPlan, PlannedStage, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions
from phaze.layout import Layout
from phaze.spec.planning import PlanPoint
from phaze.tables import TABLES

Row = dict[str, object]


def study_layers(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    conditions: Conditions,
) -> ProfiledLayers:
    """Layers of a model on one architecture as Piper's input, with the widths of all its layouts."""
    chosen = architectures[["architecture"]].assign(kept=True)
    chains, names = dict[Layout, Chain](), list[str]()
    for layout, rows in layers.groupby("layout"):
        point = read_point(rows, graph, conditions)
        of_layout = solves[solves["layout"] == layout]
        (device,) = read_devices(point, of_layout, architectures, chosen, conditions)
        chains[point.layout], names = point.runs.chain(*device.latencies), point.layers
    return read_layers(chains, names, conditions.training.recompute)


def repeat_layers(layers: ProfiledLayers, times: int) -> ProfiledLayers:
    """Resize the chain of the most frequent layer name to `times` layers; PhazeError if it is not a chain."""
    chain = _chain(layers)
    if times == len(chain):
        return layers
    if times < 2:
        raise PhazeError(f"repeat: {times} given, at least 2 allowed: the first and the last layer stay")
    inner = islice(cycle(chain[1:-1]), times - 2)
    originals = [v for v in range(len(layers)) if v not in chain] + [chain[0], *inner, chain[-1]]
    edges = np.array(list(_edges(layers, chain, originals)), dtype=np.int64).reshape(-1, 4)
    return ProfiledLayers(
        ids=_ids(layers, originals),
        names=tuple(layers.names[v] for v in originals),
        edges=edges[:, :2],
        edge_bytes=layers.edge_bytes[edges[:, 2]],
        options={
            t: _repeated(options, np.array(originals), len(layers), edges)
            for t, options in layers.options.items()
        },
    )


def _chain(layers: ProfiledLayers) -> list[int]:
    """Repeated layers in the order of the data flow; PhazeError if they do not form a chain."""
    name, most = Counter(layers.names).most_common(1)[0]
    members = {v for v, other in enumerate(layers.names) if other == name}
    after = {u: v for u, v in layers.pairs if u in members and v in members}
    chain = [v for v in members if v not in after.values()][:1]
    while chain and chain[-1] in after:
        chain.append(after[chain[-1]])
    leaving = {u for u, v in layers.pairs if u in members and v not in members}
    joined = sum(1 for u, v in layers.pairs if u in members and v in members)
    if most < 3 or len(chain) != most or joined != most - 1 or leaving - set(chain[-1:]):
        raise PhazeError(
            f"repeat: the {most} layers named {name!r} must be a chain of at least three that only its last "
            "one leaves",
            "give no repeat for this input",
        )
    return chain


def _edges(
    layers: ProfiledLayers, chain: list[int], originals: list[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield each new edge: its source, its target, and the two old edges that provide its sizes.

    The first gives the values at the source, c(u, v) and c_bw; the second those at the target, c_fw.
    """
    # New positions: first the layers outside the chain, then the chain.
    outside = len(layers) - len(chain)
    new = {v: position for position, v in enumerate(originals[:outside])}
    links = [(e, u, v) for e, (u, v) in enumerate(layers.pairs) if u in chain and v in chain]
    leaving, arriving = {u: e for e, u, _ in links}, {v: e for e, _, v in links}
    for e, (u, v) in enumerate(layers.pairs):
        if u in new and v in new:
            yield new[u], new[v], e, e
        elif u in new:
            # An input from outside goes to every copy of the layer that reads it.
            yield from ((new[u], p, e, e) for p in range(outside, len(originals)) if originals[p] == v)
        elif v in new:
            yield len(originals) - 1, new[v], e, e
    for p in range(outside, len(originals) - 1):
        yield p, p + 1, leaving[originals[p]], arriving[originals[p + 1]]


def _ids(layers: ProfiledLayers, originals: list[int]) -> tuple[int, ...]:
    """Layer ids: first copies keep their ids, the others get new ones above all old ids."""
    first = {v: p for p, v in reversed(list(enumerate(originals)))}
    fresh = count(max(layers.ids) + 1)
    return tuple(layers.ids[v] if first[v] == p else next(fresh) for p, v in enumerate(originals))


def _repeated(options: Configurations, originals: Ints, layers: int, edges: Ints) -> Configurations:
    """Configurations of the repeated layers at one width."""
    first = options.first(layers)
    rows = np.concatenate([np.arange(first[v], first[v + 1]) for v in originals]).astype(np.int64)
    layer = np.repeat(np.arange(len(originals)), first[originals + 1] - first[originals])
    sources, targets, leaving, arriving = edges.T
    into, out = options.forward_sync_bytes, options.backward_sync_bytes
    return replace(
        options.take(rows),
        layer=layer,
        forward_sync_bytes=np.where(layer[:, None] == targets, into[np.ix_(rows, arriving)], 0.0),
        backward_sync_bytes=np.where(layer[:, None] == sources, out[np.ix_(rows, leaving)], 0.0),
    )


def plan_point(
    case: str, source: str, layers: ProfiledLayers, point: PlanPoint, contenders: Mapping[str, Contender]
) -> dict[str, pd.DataFrame]:
    """Tables `cases`, `pipelines` and `curves` for one point of a case.

    `source` is the name of the input. Raises PhazeError if its layers cannot be repeated.
    """
    sized = repeat_layers(layers, point.blocks) if point.blocks else layers
    rows: dict[str, list[Row]] = {name: [] for name in ("cases", "pipelines", "curves")}
    for mode in point.modes:
        for planner in point.planners:
            keys: Row = {
                "case": case,
                "blocks": point.blocks,
                "memory_gib": point.memory_gib,
                "microbatches": point.microbatches,
                "mode": mode,
                "planner": planner,
            }
            _record(rows, keys, source, sized, point, contenders[planner])
    return {
        name: TABLES[name].check(pd.DataFrame(table_rows)) if table_rows else TABLES[name].empty()
        for name, table_rows in rows.items()
    }


def _record(
    rows: dict[str, list[Row]],
    keys: Row,
    source: str,
    layers: ProfiledLayers,
    point: PlanPoint,
    contender: Contender,
) -> None:
    """Add one planner's rows, either curve points or plans."""
    restricted, rounds = contender.restrict(layers), keys["mode"] == "table-1"
    options, most = SearchOptions(linear=rounds), max(point.devices)
    cluster = FlatCluster(
        devices=most,
        memory_bytes=point.memory_gib * GIB,
        bandwidth_bytes_per_s=point.bandwidth_gib * GIB,
        microbatches=point.microbatches,
        synchronisation="round" if rounds else "batch",
    )

    def plan(devices: int) -> PiperPlan | None:
        return contender.plan(restricted, replace(cluster, devices=devices), options)

    def best_times() -> Floats:
        """Best times (K,) with at most 1, …, K devices, from one run or one plan per number of devices."""
        if len(point.devices) == 1:
            return contender.sweep(restricted, cluster, options)
        times = np.full(most, np.inf)
        for devices in point.devices:
            if piper_plan := plan(devices):
                times[devices - 1] = piper_plan.time_per_sample_s
        return times

    if point.show == "curve":
        times = best_times()
        # Only device counts at which the time falls are points of the curve.
        before = np.concatenate(([np.inf], np.minimum.accumulate(times)[:-1]))
        rows["curves"] += [
            {**keys, "input": source, "most_devices": most, "devices": k + 1, "time_per_sample": times[k]}
            for k in np.flatnonzero(times < before).tolist()
        ]
        return
    about = {"input": source, "layers": len(restricted), "bandwidth_gib_per_s": point.bandwidth_gib}
    for devices in point.devices:
        piper_plan = plan(devices)
        on = {**keys, "devices": devices}
        rows["cases"].append({**on, **about, **_case(piper_plan)})
        rows["pipelines"] += [
            {**on, "stage": number, **_pipeline(restricted, stage)}
            for number, stage in enumerate(piper_plan.stages if piper_plan else ())
        ]


def _case(plan: PiperPlan | None) -> Row:
    if plan is None:
        none = dict.fromkeys(("devices_used", "degree", "stages"), 0)
        return {"status": "infeasible", "time_per_sample": np.inf, **none}
    return {
        "status": "planned",
        "time_per_sample": plan.time_per_sample_s,
        "devices_used": plan.devices,
        "degree": plan.degree,
        "stages": len(plan.stages),
    }


def _pipeline(layers: ProfiledLayers, stage: PlannedStage) -> Row:
    names = layers.options[stage.layout.tp].names
    counts = Counter(names[c] for c in stage.configurations)
    return {
        "layers": " ".join(str(layers.ids[v]) for v in stage.layers),
        "data": stage.layout.dp,
        "tensor": stage.layout.tp,
        "configurations": ", ".join(f"{count} × {name}" for name, count in sorted(counts.items())),
        "in_flight": stage.in_flight,
        "time_per_sample": stage.time_s,
        "memory_bytes": stage.memory_bytes,
    }
