"""Compute and describe the results of single commands: extract, estimate, schedule and space."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from phaze.base.units import UM2_PER_MM2
from phaze.commands.roofline import Peaks, on_roofline
from phaze.cost.designs import DESIGN_OF_CORE
from phaze.cost.space import area_um2, describe_named, enumerate_grid
from phaze.layout import layouts_of
from phaze.search.cosearch import (
    Subject,
    Terms,
    estimate_point,
    evaluate_architectures,
    extract_subject,
)
from phaze.spec.architecture import TECHNOLOGY, Grid, load_technology
from phaze.spec.config import GRID_SHARDS, load_architecture
from phaze.spec.models import AnyModel, load_model_named
from phaze.spec.settings import ExtractSettings, ScheduleSettings, Training
from phaze.spec.systems import flat_scenario
from phaze.tables.columns import ENERGIES, OPERATOR, POINT
from phaze.workload.models import extract_workload
from phaze.workload.workload import Workload

Described = dict[str, object]
POWERS = (1, 2, 4, 8)
"""Default TMP widths to consider."""
_ESTIMATE_COLUMNS = [
    *POINT, "layer", "direction", "name", "core", "latency_s", "latency_all_s", "limit", "limit_all",
    "energy_all_j", "flops", "hbm_all_bytes", "roof", "roof_share", "layers",
]  # fmt: skip


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
    designs = {core: int(chips[column].iloc[0]) for core, column in DESIGN_OF_CORE.items()}
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
    """Inputs of the search: cluster, training, technology; the batch is at least the largest microbatch.

    Clock and HBM bandwidth are those of the architecture, or else of the system's device.
    """
    chip, scenario = load_architecture(architecture), flat_scenario(system, flat=flat_bandwidth)
    changes = {
        "clock_hz": chip.clock_hz or scenario.clock_hz,
        "hbm_bandwidth_bytes_per_s": chip.hbm_bandwidth_bytes_per_s or scenario.hbm_bandwidth_bytes_per_s,
        "global_batch": max(scenario.global_batch, *(point.layout.microbatch for point in subject.points)),
    }
    scenario = scenario.model_copy(update=changes)
    return Terms(scenario=scenario, training=Training(), technology=load_technology(TECHNOLOGY))


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
