"""Findings of a report as tables: computed once, then shown as figures, page and Markdown.

Tables `memories`, `rankings` and `results` have the best placements by design and model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from phaze.pages.document import Section
from phaze.report.inputs import Families, Inputs
from phaze.search.winners import (
    PRICED,
    Outcome,
    best_of_each_hbm,
    candidates,
    choose,
    common_placement,
    rank,
    with_areas,
)
from phaze.tables import Memories, Rankings, Results

if TYPE_CHECKING:
    from phaze.spec.study import Study

PER_MODEL = "per-model"
COMMON = "common"
EXPERT = "expert"
COPIED = ("fronts", "simulations", "times", "certificates", "audits")


@dataclass(frozen=True)
class Design:
    """Design in the results: an accelerator, or one per model, with the planner of its placements."""

    name: str
    planner: str
    architectures: Mapping[str, str]
    """Accelerator by model; models without one are absent."""


def named_designs(study: Study, families: Families) -> Iterator[Design]:
    """Yield the designs of named accelerators: baseline, families (a design per model), and all others."""
    named, models = study.architectures.named, study.models
    baseline = study.architectures.baseline
    members = {name for family in families.values() for name in family.values()}
    if baseline is not None:
        for planner in ("expert-even", "expert", "phaze"):
            yield Design(_title(baseline, planner), planner, dict.fromkeys(models, baseline))
    for family, by_model in families.items():
        present = {model: by_model[model] for model in models if by_model.get(model) in named}
        for planner in ("expert", "phaze") if present else ():
            yield Design(_title(family, planner), planner, present)
    for name in named:
        if name != baseline and name not in members:
            yield Design(name, "phaze", dict.fromkeys(models, name))


def _title(name: str, planner: str) -> str:
    return name if planner == "phaze" else f"{name} {planner}"


def baseline_design(study: Study) -> str | None:
    """Reference design for speed-ups: the baseline with the expert placement; None without a baseline."""
    return None if study.architectures.baseline is None else _title(study.architectures.baseline, EXPERT)


def memory_table(inputs: Inputs) -> pd.DataFrame:
    """Table `memories`: the best placement of each model with each HBM capacity."""
    every = candidates(inputs.cluster)
    placed = (rows for _, rows in every.groupby("model") if (rows["status"] == "placed").any())
    best = [best_of_each_hbm(rows, inputs.study.screen.tolerance) for rows in placed]
    return Memories.check(pd.concat(best)[list(Memories.fields())]) if best else Memories.empty()


def ranking_table(inputs: Inputs) -> pd.DataFrame:
    """Table `rankings`: best architectures at the chosen HBM size, and the smallest within tolerance."""
    screen, every = inputs.study.screen, candidates(inputs.cluster)
    ranked = (rank(rows, screen.best, screen.tolerance) for _, rows in every.groupby("model"))
    best = [rows for rows in ranked if len(rows)]
    return Rankings.check(pd.concat(best)[list(Rankings.fields())]) if best else Rankings.empty()


def result_table(inputs: Inputs, cluster: Outcome) -> pd.DataFrame:
    """Table `results`: one row per model and evaluated design, feasible or not."""
    rows = pd.DataFrame(row for model in inputs.study.models for row in _results_of(inputs, cluster, model))
    if rows.empty:
        return Results.empty()
    reference = rows[rows["design"] == baseline_design(inputs.study)].set_index("model")["samples_per_s"]
    base = rows["model"].map(reference).fillna(0.0)
    speedup = (rows["samples_per_s"] / base.where(base > 0, np.inf)).astype("float64")
    return Results.check(rows.assign(speedup=speedup)[list(Results.fields())])


def _results_of(inputs: Inputs, cluster: Outcome, model: str) -> Iterator[pd.Series]:
    tolerance = inputs.study.screen.tolerance
    placements = with_areas(cluster, cluster.placements[cluster.placements["model"] == model])
    rows: dict[str, pd.Series | None] = {}
    for design in named_designs(inputs.study, inputs.families):
        named = placements["architecture"] == design.architectures.get(model, "")
        of_planner = placements[named & (placements["planner"] == design.planner)]
        rows[design.name] = choose(of_planner, tolerance)
    every = candidates(cluster)
    rows[PER_MODEL] = choose(every[every["model"] == model], tolerance)
    rows[COMMON] = common_placement(cluster, model)
    for name, row in rows.items():
        if row is not None:
            yield pd.concat([row, pd.Series({"design": name})])


def geometric_means(speedups: pd.DataFrame) -> pd.DataFrame:
    """Geometric mean of the speed-ups of each design, and the number of models that it covers."""
    # a design that cannot train a model has the speed-up 0, which has no logarithm
    positive = speedups[speedups["speedup"] > 0]
    logs = np.log(positive["speedup"]).groupby(positive["design"])
    return pd.DataFrame({"speedup": np.exp(logs.mean()), "models": logs.size()}).reset_index()


def placed_rows(results: pd.DataFrame, *designs: str) -> pd.DataFrame:
    """Placed results of some designs."""
    return results[results["design"].isin(designs) & (results["status"] == "placed")]


def row_of(results: pd.DataFrame, model: str, design: str) -> pd.Series | None:
    """Placed result of a model and design; None if absent."""
    rows = placed_rows(results[results["model"] == model], design)
    return rows.iloc[0] if len(rows) else None


@dataclass(frozen=True)
class Findings:
    """Result tables of a study, by name as in `phaze.tables`; `COPIED` ones come from the inputs."""

    results: pd.DataFrame
    gains: pd.DataFrame
    comparisons: pd.DataFrame
    memories: pd.DataFrame
    rankings: pd.DataFrame
    fronts: pd.DataFrame
    breakdowns: pd.DataFrame
    bindings: pd.DataFrame
    energies: pd.DataFrame
    areas: pd.DataFrame
    complexities: pd.DataFrame
    variations: pd.DataFrame
    simulations: pd.DataFrame
    walks: pd.DataFrame
    searches: pd.DataFrame
    times: pd.DataFrame
    proofs: pd.DataFrame
    certificates: pd.DataFrame
    audits: pd.DataFrame
    checks: pd.DataFrame

    @cached_property
    def means(self) -> pd.DataFrame:
        """Geometric mean of the planned speed-ups of each design, with the number of models."""
        return geometric_means(self.results)

    def in_order(self, models: tuple[str, ...]) -> Findings:
        """Copy in which the models of each table are in the order of the study, for display."""
        place = {model: number for number, model in enumerate(models)}
        shown = {
            name: frame.sort_values("model", key=lambda m: m.map(place), kind="stable", ignore_index=True)
            for name, frame in self.tables().items()
            if "model" in frame
        }
        return replace(self, **shown)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Result tables by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def priced_designs(study: Study, findings: Findings) -> pd.DataFrame:
    """Rows of table `simulations` with their design and the simulated speed-up over the experts' baseline.

    The speed-up is 0 without a price of the reference.
    """
    priced = findings.simulations.merge(findings.results[[*PRICED, "design"]], on=PRICED)
    reference = priced[priced["design"] == baseline_design(study)].set_index("model")["samples_per_s"]
    base = priced["model"].map(reference).astype("float64").fillna(np.inf)
    return priced.assign(speedup=priced["samples_per_s"] / base)


Part = Callable[[Inputs, Findings], Iterator[Section]]
"""Function that yields report sections on some of the findings; nothing if there is nothing to show."""
RESULT_TABLES = tuple(field.name for field in fields(Findings) if field.name != "times")
"""Tables written by the report: all but the measured times, so that equal studies write equal tables."""
