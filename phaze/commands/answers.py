"""Compute and describe the results of single commands: place, extract, estimate, schedule and space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.base.store import Store
from phaze.base.units import GIB, UM2_PER_MM2
from phaze.commands.roofline import Peaks, on_roofline
from phaze.cost.space import area_um2, describe_named, enumerate_grid
from phaze.formulas.even import place_equally
from phaze.formulas.phaze.flush import Placement
from phaze.formulas.phaze.point import read_devices, read_point
from phaze.formulas.phaze.rows import PlannerRun, placement_row, stage_rows
from phaze.formulas.piper.chain import STASH
from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.formulas.replay import replay_plans
from phaze.formulas.side_by_side import plan_model
from phaze.layout import Layout, layouts_of
from phaze.search.cosearch import (
    Evaluation,
    Subject,
    Terms,
    best_placement,
    estimate_point,
    evaluate_architectures,
    extract_subject,
)
from phaze.spec.architecture import Grid, load_technology
from phaze.spec.config import GRID_SHARDS, load_architecture
from phaze.spec.models import AnyModel, load_model_named
from phaze.spec.settings import ExtractSettings, ScheduleSettings, Training
from phaze.spec.system import Cluster, Scenario
from phaze.spec.systems import load_device_as_architecture, load_network, load_system_of, sized
from phaze.tables.columns import OPERATOR, POINT, layout_of
from phaze.tables.plans import PLAN
from phaze.workload.models import extract_workload
from phaze.workload.workload import Workload

if TYPE_CHECKING:
    from phaze.commands.place_options import PlaceOptions

Described = dict[str, object]
SECONDS_PER_DAY = 86400.0
TOKENS = 300e9
"""Default number of training tokens of a language model, as for GPT-3 (Brown et al., 2020, Table 2.1)."""
POWERS = (1, 2, 4, 8)
"""Default TMP widths and microbatches to consider."""
LARGEST_HBM_GIB = 80.0
TECHNOLOGY = "22nm"
ENERGIES = ("mac", "register", "l2", "glb", "hbm", "link")
_ESTIMATE_COLUMNS = [
    *POINT, "layer", "direction", "name", "core", "latency_s", "latency_all_s", "limit", "limit_all",
    "energy_all_j", "flops", "hbm_all_bytes", "roof", "roof_share", "layers",
]  # fmt: skip
_HEADLINE_COLUMNS = (
    "status", "architecture", "tensor", "data", "stages", "microbatch", "recompute", "hbm_gib",
    "devices_used", "time_per_batch_s", "samples_per_s", "tokens_per_s", "mfu", "binding",
)  # fmt: skip
_SIMULATED_COLUMNS = ("tensor", "data", "stages", "microbatch", "planned_s", "simulated_s")
_STAGE_COLUMNS = ("stage", "first_layer", "last_layer", "devices", "load_s", "memory_bytes", "headroom_bytes")


@dataclass(frozen=True)
class PlacementAnswer:
    """All placements of a model, the best one, and simulated plans at the HBM size of the best placement."""

    evaluation: Evaluation
    best: pd.Series
    """Row of table `placements`, of the certified plan or of equal stages, whichever has the least simulated
    time; the row with the least memory if nothing fits."""
    stages: pd.DataFrame
    """Rows of table `stages` of the best placement, from its first stage."""
    simulated: pd.DataFrame
    """Table `simulations` by planner: `phaze` for the best placement, `equal` for equal stages."""


def answer(request: PlaceOptions) -> PlacementAnswer:
    """Find the placements of a model on an architecture and a cluster, and simulate the best one.

    Options that are not given are searched, or have their defaults. The batch is in samples.
    """
    training, model = _training(request), str(request.model)
    subject = read_subject(
        model, request.sequence, request.tensor or (), training.microbatches, request.backward
    )
    terms = Terms(scenario=_scenario(request), training=training, technology=load_technology(TECHNOLOGY))
    chips = read_architecture(request.architecture).assign(hbm_gib=0.0)  # the size is that of `training`
    evaluation = evaluate_architectures(subject, chips, terms)
    best = best_placement(evaluation.placements[evaluation.placements["planner"] == "phaze"])
    simulated = _simulated(subject, terms, evaluation, best)
    times_s = simulated["simulated_s"]
    # Differences below rounding are ties, and the certified plan wins them.
    if "equal" in times_s and times_s["equal"] < times_s["phaze"] * (1 - 1e-9):
        best, stages = _equal_stages(subject, terms, evaluation, best, simulated.loc[["equal"]].iloc[0])
    else:
        keys = [*POINT, "architecture", "hbm_gib", "recompute", "planner"]
        stages = evaluation.stages[(evaluation.stages[keys] == best[keys]).all(axis=1)].sort_values("stage")
    return PlacementAnswer(evaluation, best, stages, simulated)


def _training(request: PlaceOptions) -> Training:
    """Training settings of the search.

    Defaults: microbatches of 1, 2, 4, 8 that divide the batch, and the architecture's HBM or 80 GiB.
    """
    batch = request.global_batch or 1
    for microbatch in request.microbatch or ():
        if batch % microbatch:
            raise PhazeError(f"--microbatch: {microbatch} does not divide --global-batch {batch}")
    # Microbatches of unequal size are not modelled, so they must divide the batch.
    divisors = tuple(b for b in POWERS if batch % b == 0)
    usual_gib = load_architecture(request.architecture).hbm_gib
    hbm_gib = next(size for size in (request.hbm_gib, usual_gib, LARGEST_HBM_GIB) if size is not None)
    recompute = (False, True) if request.recompute is None else (request.recompute,)
    settings = {
        "microbatches": request.microbatch or divisors, "recompute": recompute, "hbm_gib": [hbm_gib],
        "optimizer": request.optimizer, "precision": request.precision, "schedule": request.pipeline,
    }  # fmt: skip
    return Training.parse(settings, "place")


def _scenario(request: PlaceOptions) -> Scenario:
    """Scenario: the cluster and the global batch."""
    system = load_system_of(request.architecture, request.system, flat=request.flat_bandwidth)
    devices = system.devices if request.devices is None else request.devices
    if devices > system.devices:
        network = load_network(request.system)
        if not isinstance(network, Cluster):
            raise PhazeError(
                f"place: --devices: must be at most the {system.devices} of system {request.system}, "
                f"got {devices}"
            )
        sized(network, devices, f"place: --devices: {request.system}")
    changes = {"global_batch": request.global_batch, "devices": devices}
    return Scenario.parse({**system.model_dump(), **changes}, "place")


def _assumptions(request: PlaceOptions) -> list[str]:
    """Assumptions underlying the answer."""
    scenario, model = _scenario(request), load_model_named(str(request.model))
    tokens = model.usual_sequence if request.sequence is None else request.sequence
    lines = [f"a flat network of {scenario.network_bandwidth_bytes_per_s:g} bytes/s"]
    device = load_device_as_architecture(request.architecture)
    if device is not None:
        clock, hbm = device.clock_hz, device.hbm_bandwidth_bytes_per_s
        lines.append(f"the clock of {device.name}, {clock:g} Hz, and its HBM, {hbm:g} bytes/s")
        lines += [f"all but its three figures as {device.assumed_from}"] * bool(device.assumed_from)
    lines.append(f"{request.optimizer} in {request.precision} precision, not shared among replicas")
    if model.token == "token":
        lines.append(f"samples of {tokens:,} tokens, attention scores kept in memory")
    factor = scenario.all_reduce_factor
    lines.append(f"gradients as {factor:g} (d - 1)/d of a stage's weights, exchanged after the batch")
    return lines


def _equal_stages(
    subject: Subject, terms: Terms, evaluation: Evaluation, certified: pd.Series, plan: pd.Series
) -> tuple[pd.Series, pd.DataFrame]:
    """Row of table `placements` and rows of table `stages` of the plan with equal stages."""
    layout = Layout(tp=int(plan["tensor"]), microbatch=int(plan["microbatch"]))
    conditions, chips = terms.conditions(subject), evaluation.architectures
    layers, solves = (rows[rows["layout"] == layout.key] for rows in (subject.layers, evaluation.solves))
    point = read_point(layers, subject.graph, conditions)
    (device,) = read_devices(point, solves, chips, chips.assign(kept=True), conditions)
    chain = point.runs.chain(*device.latencies)
    recompute = plan["memory"] != STASH
    setting = next(candidate for candidate in conditions.settings(layout) if candidate.recompute == recompute)
    # With unlimited memory nothing is recomputed: the difference is what memory costs.
    ample = replace(setting, memory_bytes=float("inf"), recompute=False)
    result, unlimited = (place_equally(chain, layout, s, *point.repeated()) for s in (setting, ample))
    unlimited_s = unlimited.time_s if isinstance(unlimited, Placement) else float("inf")
    placed = PlannerRun(device, chain, setting, "equal", result, float(certified["bound_s"]), unlimited_s)
    return pd.Series(placement_row(point, placed, conditions)), pd.DataFrame(stage_rows(point, placed))


def _simulated(subject: Subject, terms: Terms, evaluation: Evaluation, best: pd.Series) -> pd.DataFrame:
    requests = [PlansAsked(str(best["architecture"]), float(best["hbm_gib"]), ("phaze", "equal"))]
    conditions, chips = terms.conditions(subject), evaluation.architectures
    tables = subject.layers, subject.graph, evaluation.solves, chips
    plans, stages = plan_model(read_tasks(*tables, requests, conditions, None))
    simulations, _ = replay_plans(plans, stages, Store())
    shown = plans[[*PLAN, "tensor", "data", "stages", "microbatch", "memory"]]
    return simulations.merge(shown, on=list(PLAN)).set_index("planner")


def read_subject(
    name: str, sequence: int | None, widths: Sequence[int], microbatches: Sequence[int], backward: str
) -> Subject:
    """Operators of a model per TMP width and microbatch; default widths: all of `POWERS` that it supports."""
    model, tokens = _checked(name, sequence, widths)
    chosen = widths or [t for t in POWERS if model.divides(t)]
    settings = ExtractSettings.parse({"backward": backward}, "--backward")
    return extract_subject(model, tokens, layouts_of(chosen, microbatches), settings)


def read_workloads(
    name: str, sequence: int | None, widths: Sequence[int], microbatches: Sequence[int], backward: str
) -> list[Workload]:
    """Operators of a model's distinct layers per TMP width and microbatch; the model need not be a chain."""
    model, tokens = _checked(name, sequence, widths)
    settings = ExtractSettings.parse({"backward": backward}, "--backward")
    layouts = layouts_of(widths, microbatches)
    return [extract_workload(model, tokens, layout, settings) for layout in layouts]


def _checked(name: str, sequence: int | None, widths: Sequence[int]) -> tuple[AnyModel, int]:
    model = load_model_named(name)
    tokens = model.usual_sequence if sequence is None else sequence
    model.check_sequence(tokens, "--sequence")
    for width in widths:
        model.check_tensor_width(width, "--tensor")
    return model, tokens


def read_architecture(name: str) -> pd.DataFrame:
    """Table `architectures` with a single row, the named architecture."""
    return describe_named([load_architecture(name)], load_technology(TECHNOLOGY).area_um2, "named")


def estimate_subject(
    subject: Subject, architecture: str, system: str, flat_bandwidth: float | None = None
) -> pd.DataFrame:
    """Operators of a model with their estimates and rooflines, at all TMP widths and microbatches."""
    chips = read_architecture(architecture)
    terms = _terms(subject, architecture, system, flat_bandwidth)
    peaks = Peaks.of(chips.iloc[0], terms.hardware)
    estimates = [on_roofline(_estimated(point, chips, terms), peaks) for point in subject.points]
    return pd.concat(estimates, ignore_index=True)[_ESTIMATE_COLUMNS]


def _estimated(point: Workload, chips: pd.DataFrame, terms: Terms) -> pd.DataFrame:
    """Operators of one workload, with their estimates and the number of layers that contain them."""
    designs = {core: int(chips[f"{core}_design"].iloc[0]) for core in ("tensor", "vector", "fused")}
    designs["network"] = designs["vector"]
    operators = point.tables["operators"]
    rows = operators.assign(
        design=operators["core"].map(designs).fillna(-1).astype("int64"),
        layers=operators["layer"].map(dict(point.counts)),
    )
    joined = rows.merge(estimate_point(point, chips, terms), on=[*POINT, "work", "design"])
    # Energy is summed over parts of the chip and links; table `estimates` has a column for each.
    energy = joined[[f"{part}_all_j" for part in ENERGIES]].sum(axis=1)
    return joined.assign(energy_all_j=energy)


def schedule_subject(
    subject: Subject,
    architecture: str,
    system: str,
    flat_bandwidth: float | None = None,
    settings: ScheduleSettings | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables `solves` and `schedules` of a model on an architecture; `schedules` has operator names."""
    terms = _terms(subject, architecture, system, flat_bandwidth)
    if settings is not None:
        terms = terms.model_copy(update={"schedule": settings})
    evaluation = evaluate_architectures(subject, read_architecture(architecture), terms)
    keys = [*POINT, *OPERATOR]
    names = pd.concat([point.tables["operators"][[*keys, "name"]] for point in subject.points])
    named = evaluation.schedules.merge(names, on=keys, how="left", validate="many_to_one")
    named.insert(list(named.columns).index("operator") + 1, "name", named.pop("name"))
    return evaluation.solves, named


def _terms(subject: Subject, architecture: str, system: str, flat_bandwidth: float | None) -> Terms:
    """Inputs of the search: cluster, training, technology; the batch is at least the largest microbatch."""
    cluster = load_system_of(architecture, system, flat=flat_bandwidth).model_dump()
    largest = max(point.layout.microbatch for point in subject.points)
    scenario = Scenario.parse(cluster, system)
    batch = {"global_batch": max(scenario.global_batch, largest)}
    scenario = scenario.model_copy(update=batch)
    return Terms(scenario=scenario, training=Training(), technology=load_technology(TECHNOLOGY))


def describe_placement(request: PlaceOptions, placement: PlacementAnswer) -> Described:
    """Best placement as plain values, or the reason why nothing fits."""
    best, layout = placement.best, layout_of(placement.best)
    widths = {"tensor": layout.tp, "microbatch": layout.microbatch}
    described: Described = {
        key: widths[key] if key in widths else _plain(best[key]) for key in _HEADLINE_COLUMNS
    }
    if best["status"] != "placed":
        reason = str(best["reason"])
        return {"status": "infeasible", "reason": reason, "assumptions": _assumptions(request)}
    described["planner"] = str(best["planner"])
    described["simulated_s"] = float(placement.simulated["simulated_s"][best["planner"]])
    for key, planner in (("certified", "phaze"), ("equal_stages", "equal")):
        plans = placement.simulated[placement.simulated.index == planner][list(_SIMULATED_COLUMNS)]
        described[key] = next(iter(plans.to_dict(orient="records")), None)
    described["memory"] = placement.stages[list(_STAGE_COLUMNS)].to_dict(orient="records")
    token = load_model_named(str(request.model)).token
    described["token"] = token
    tokens = request.tokens
    training_tokens = TOKENS if tokens is None and token == "token" else tokens
    if training_tokens is not None:
        described["days_to_train"] = training_tokens / float(best["tokens_per_s"]) / SECONDS_PER_DAY
    # The bound holds for planned times, so the gap does not use the simulated one.
    described["gap"] = 1.0 - float(best["bound_s"]) / float(best["time_per_batch_s"])
    described["assumptions"] = _assumptions(request)
    return described


def _plain(value: object) -> object:
    return value.item() if hasattr(value, "item") else value


def in_one_line(described: Described) -> str:
    """One-line summary of a placement."""
    if described["status"] != "placed":
        return f"infeasible: {described['reason']}{_assumed(described)}"
    stages = described["memory"]
    assert isinstance(stages, list)
    memory = ", ".join(
        f"{stage['memory_bytes'] / GIB:.2f} (+{stage['headroom_bytes'] / GIB:.2f} free)" for stage in stages
    )
    layers = ", ".join(f"{stage['first_layer']}-{stage['last_layer']}" for stage in stages)
    days = f", {described['days_to_train']:.3g} days to train" if "days_to_train" in described else ""
    return (
        f"t={described['tensor']} d={described['data']} s={described['stages']}; layers {layers}; "
        f"microbatch {described['microbatch']}; {'recompute' if described['recompute'] else 'stash'}; "
        f"HBM {described['hbm_gib']:g} GiB, used {memory}; "
        f"{described['time_per_batch_s']:.4g} s per batch as planned, "
        f"{described['simulated_s']:.4g} s as simulated{_certified(described)}; "
        f"{described['tokens_per_s']:.4g} {described['token']}s/s, "
        f"MFU {100 * float(str(described['mfu'])):.1f} %{days}; bound by {described['binding']}"
        f"{_assumed(described)}"
    )


def _certified(described: Described) -> str:
    """Remark on the plan with the least planned time if equal stages are faster in simulation; else empty."""
    plan = described["certified"]
    if described["planner"] == "phaze" or not isinstance(plan, dict):
        return ""
    return (
        f" (equal stages; the least as planned, t={plan['tensor']} d={plan['data']} s={plan['stages']} "
        f"microbatch {plan['microbatch']}: {plan['planned_s']:.4g} s as planned, "
        f"{plan['simulated_s']:.4g} s as simulated)"
    )


def _assumed(described: Described) -> str:
    assumptions = described["assumptions"]
    assert isinstance(assumptions, list)
    return f"; assumes {'; '.join(map(str, assumptions))}"


def describe_space(area_limit_mm2: float | None, *, minimum_share: bool) -> Described:
    """Size and area limit of the search space, with its smallest and largest architecture."""
    figures = load_technology(TECHNOLOGY).area_um2
    if area_limit_mm2 is None:
        limit_um2 = area_um2(load_architecture("tpu-v4"), figures)
    else:
        limit_um2 = area_limit_mm2 * UM2_PER_MM2
    grid = Grid() if minimum_share else Grid(minimum_area_share=None)
    shards = [enumerate_grid(grid.restricted_to(s), figures, limit_um2, s) for s in GRID_SHARDS]
    architectures = pd.concat(shards).sort_values(["area_um2", "architecture"])
    return {
        "architectures": len(architectures),
        "area_limit_mm2": limit_um2 / UM2_PER_MM2,
        "smallest": _describe(architectures.iloc[0]) if len(architectures) else None,
        "largest": _describe(architectures.iloc[-1]) if len(architectures) else None,
    }


def _describe(row: pd.Series) -> Described:
    sizes = ["num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_bytes", "l2_tc_bytes", "l2_vc_bytes"]
    return {
        "architecture": str(row["architecture"]),
        "area_mm2": float(row["area_um2"]) / UM2_PER_MM2,
        **{name: int(row[name]) for name in sizes},
    }
