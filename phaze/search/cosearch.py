"""Estimate, schedule and place given architectures in memory, without screening.

The workflow passes tables between jobs; this module passes them between functions. It answers single
questions, evaluates the candidates for a common architecture, and varies the cluster around the best
architectures.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field

from phaze import tables
from phaze.base.arrays import Bools
from phaze.base.progress import counted
from phaze.base.store import Plain, Store
from phaze.cost.designs import with_own_designs
from phaze.cost.mapper.loads import Hardware
from phaze.cost.network.fabric import network_of
from phaze.cost.operators import estimate_operators
from phaze.formulas.phaze.model import place_model
from phaze.formulas.phaze.point import Conditions
from phaze.layout import Layout, layouts_of
from phaze.schedule.stage import schedule_layers
from phaze.spec.architecture import Technology
from phaze.spec.counts import TokenFlops
from phaze.spec.models import AnyModel
from phaze.spec.noun import Noun
from phaze.spec.settings import EstimateSettings, ExtractSettings, ScheduleSettings, Training, Triple
from phaze.spec.system import Scenario
from phaze.tables.columns import by_numbers
from phaze.workload.models import extract_workload
from phaze.workload.workload import TABLES, Workload

log = logging.getLogger(__name__)

ABOUT = [name for name in tables.Architectures.columns if not name.endswith("_design")]
"""Columns that describe an architecture. Design ids are left out: they depend on the other architectures."""
EVALUATED = ("scenario", "training", "technology", "estimate", "schedule")
"""Sections of `Terms` of which evaluations depend on every setting."""


@dataclass(frozen=True)
class Subject:
    """Model to train, with its operators in every layout to consider."""

    points: tuple[Workload, ...]
    """Workloads of the model, one per layout."""
    sequence: int
    """Tokens per sample."""
    flops_per_token: TokenFlops
    """Training FLOPs per token."""
    expert: Layout | None = None
    """Reference placement evaluated on named architectures in addition to the best one."""

    @property
    def graph(self) -> pd.DataFrame:
        """Table `graphs`."""
        return self.points[0].graph

    @property
    def layers(self) -> pd.DataFrame:
        """Table `layers` of all layouts."""
        return pd.concat([point.tables["layers"] for point in self.points], ignore_index=True)


class Terms(Noun):
    """Inputs of an evaluation other than the model and the architectures: cluster, training and settings."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    scenario: Scenario
    """Scenario: the cluster and the global batch."""
    training: Training
    """Training settings."""
    technology: Technology
    """Technology: areas, energies and cycles."""
    extract: ExtractSettings = ExtractSettings()
    """Settings of the extraction stage."""
    estimate: EstimateSettings = EstimateSettings()
    """Settings of the estimation stage."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Settings of the scheduling stage."""
    solutions: Path | None = None
    """Folder in which jobs share verified solutions, or None."""
    evaluations: Store = Field(default_factory=Store)
    """Cache of evaluations."""

    @property
    def hardware(self) -> Hardware:
        """Properties of the cluster that the estimates depend on."""
        return Hardware(
            clock_hz=self.scenario.clock_hz,
            hbm_bandwidth_bytes_per_s=self.scenario.hbm_bandwidth_bytes_per_s,
            network=network_of(self.scenario),
            bytes_per_element=self.extract.bytes_per_element,
        )

    def conditions(self, subject: Subject) -> Conditions:
        """Training conditions under which a model is placed."""
        return Conditions(
            self.scenario,
            self.training,
            self.technology.energy,
            sequence=subject.sequence,
            flops_per_token=subject.flops_per_token,
        )


class Problem(Terms):
    """Inputs of a job that evaluates architectures itself, as values instead of files."""

    sequence: int
    """Tokens per sample."""
    flops_per_token: TokenFlops
    """Training FLOPs per token."""
    expert: Triple | None
    """Reference placement evaluated on named architectures in addition to the best one."""

    @classmethod
    def of(cls, params: Mapping[str, object]) -> Problem:
        """Build the problem from the params of a job, which may name a folder of earlier evaluations."""
        fields = {name: params[name] for name in cls.model_fields if name in params}
        if "evaluations" in fields:
            fields["evaluations"] = Store(Path(str(params["evaluations"])), str(params["code"]))
        return cls.parse(fields, "study")

    def read_subject(self, files: Mapping[str, Sequence[str]]) -> Subject:
        """Read a model from its tables: the graph, and the operators of each layout."""
        graph = tables.Graphs.load(*files["graph"])
        by_point = zip(*(files[table] for table in TABLES), strict=True)
        return Subject(
            points=tuple(_read_point(paths, graph) for paths in by_point),
            sequence=self.sequence,
            flops_per_token=self.flops_per_token,
            expert=self._expert,
        )

    def extract_subject(self, model: AnyModel, widths: Sequence[int]) -> Subject:
        """Extract the operators of a model for each layout when no tables exist."""
        layouts = layouts_of(widths, self.training.microbatches)
        return extract_subject(model, self.sequence, layouts, self.extract, self._expert)

    @property
    def _expert(self) -> Layout | None:
        return None if self.expert is None else self.expert.layout


def _read_point(paths: Sequence[str], graph: pd.DataFrame) -> Workload:
    """Read the workload of one layout from its tables."""
    loaded = {name: tables.TABLES[name].load(path) for name, path in zip(TABLES, paths, strict=True)}
    return Workload.of_tables(loaded, graph)


@dataclass(frozen=True)
class Evaluation:
    """Tables of all stages of the workflow, for all layouts of a model."""

    architectures: pd.DataFrame
    estimates: pd.DataFrame
    solves: pd.DataFrame
    schedules: pd.DataFrame
    placements: pd.DataFrame
    stages: pd.DataFrame


def extract_subject(
    model: AnyModel,
    sequence: int,
    layouts: Iterable[Layout],
    settings: ExtractSettings,
    expert: Layout | None = None,
) -> Subject:
    """Extract the operators of a model in all layouts."""
    model.check_chain("extract")
    return Subject(
        points=tuple(extract_workload(model, sequence, layout, settings) for layout in layouts),
        sequence=sequence,
        flops_per_token=model.flops_per_token(sequence),
        expert=expert,
    )


def evaluate_architectures(subject: Subject, architectures: pd.DataFrame, terms: Terms) -> Evaluation:
    """Schedules and best placements of a model on the given architectures, for all layouts.

    `architectures` are rows of table `architectures`, of any shards; their designs are renumbered.
    """
    chips = with_own_designs(architectures)
    points = counted(subject.points, "TMP width and microbatch")
    evaluations = [evaluate_point(subject, point, chips, terms) for point in points]
    names = [f.name for f in fields(Evaluation) if f.name != "architectures"]
    joined = {
        name: pd.concat([getattr(evaluation, name) for evaluation in evaluations], ignore_index=True)
        for name in names
    }
    return Evaluation(chips, **joined)


def evaluate_point(subject: Subject, point: Workload, chips: pd.DataFrame, terms: Terms) -> Evaluation:
    """Schedules and best placements in one layout, on architectures from `with_own_designs`."""
    estimates = estimate_point(point, chips, terms)
    all_kept = chips[["architecture"]].assign(kept=True)
    solves, schedules = schedule_point(point, estimates, chips, terms, np.ones(len(chips), dtype=np.bool_))
    placements, stages = place_model(
        point.tables["layers"],
        point.graph,
        solves,
        chips,
        all_kept,
        terms.conditions(subject),
        subject.expert,
    )
    return Evaluation(chips, estimates, solves, schedules, placements, stages)


def look_up_architectures(
    subject: Subject, architectures: pd.DataFrame, terms: Terms, names: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Tables of `Evaluation` by name, for all layouts. Cached evaluations are reused."""
    chips = architectures.drop_duplicates("architecture")
    points = [look_up_point(subject, point, chips, terms, names) for point in subject.points]
    return {
        name: pd.concat([point_tables[name] for point_tables in points], ignore_index=True) for name in names
    }


def look_up_point(
    subject: Subject, point: Workload, chips: pd.DataFrame, terms: Terms, names: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Tables of `evaluate_point` by name. Cached evaluations are reused.

    The cache key contains only the point's own microbatch.
    """
    training = terms.training.model_copy(update={"microbatches": (point.layout.microbatch,)})
    point_terms = terms.model_copy(update={"training": training})

    def evaluate(places: list[int]) -> list[dict[str, list[Plain]]]:
        log.info("%d of %d architectures are evaluated, the others known", len(places), len(chips))
        fresh = chips.iloc[places]
        evaluation = evaluate_point(subject, point, with_own_designs(fresh), point_terms)
        rows = {name: _rows_by_architecture(getattr(evaluation, name), name) for name in names}
        return [{name: rows[name].get(chip, []) for name in names} for chip in fresh["architecture"]]

    about: list[Plain] = [list(names), *_content_of(subject, point, point_terms)]
    contents = chips[["architecture", *ABOUT]].to_numpy(object).tolist()
    answers = terms.evaluations.each(contents, evaluate, about=about)
    return {name: _table(name, [row for answer in answers for row in answer[name]]) for name in names}


def _rows_by_architecture(frame: pd.DataFrame, name: str) -> dict[str, list[Plain]]:
    """Rows of a table as plain values, by architecture."""
    fields = list(tables.TABLES[name].fields())
    rows: dict[str, list[Plain]] = {}
    for row in frame[fields].to_numpy(object).tolist():
        rows.setdefault(row[fields.index("architecture")], []).append(row)
    return rows


def _table(name: str, rows: list[Plain]) -> pd.DataFrame:
    table = tables.TABLES[name]
    return table.check(pd.DataFrame(rows, columns=list(table.fields())))


def _content_of(subject: Subject, point: Workload, terms: Terms) -> list[Plain]:
    """Cache key of an evaluation: all inputs other than architectures and code."""
    return [
        *(getattr(terms, name).model_dump(mode="json") for name in EVALUATED),
        point.content,
        terms.extract.bytes_per_element,
        subject.sequence,
        subject.flops_per_token.model_dump(mode="json"),
        None if subject.expert is None else asdict(subject.expert),
    ]


def estimate_point(point: Workload, chips: pd.DataFrame, terms: Terms) -> pd.DataFrame:
    """Table `estimates` of the operators in one layout."""
    parts = point.tables["parts"]
    return estimate_operators(parts, chips, terms.hardware, terms.technology, terms.estimate)


def schedule_point(
    point: Workload, estimates: pd.DataFrame, chips: pd.DataFrame, terms: Terms, which: Bools
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables `solves` and `schedules` of the selected architectures."""
    flags = chips[["architecture"]].assign(kept=which)
    return schedule_layers(
        point.tables["operators"],
        point.tables["edges"],
        estimates,
        chips,
        flags,
        terms.schedule,
        Store(terms.solutions),
    )


def best_placement(placements: pd.DataFrame) -> pd.Series:
    """Row of the best placement: least time, then smallest HBM, then by recompute, layout and architecture.

    If nothing is placed, the result is the row that needs least memory, whose status gives the reason.
    """
    if not (placements["status"] == "placed").any():
        return tables.Placements.leanest_first(placements).iloc[0]
    order = ["time_per_batch_s", "hbm_gib", "recompute", "layout", "architecture"]
    return placements.sort_values(order, kind="stable", key=by_numbers).iloc[0]


def vary_cluster(
    subject: Subject, architectures: pd.DataFrame, terms: Terms, variations: Mapping[str, Mapping[str, float]]
) -> pd.DataFrame:
    """Table `sensitivities`: placements of the architectures with some values of the scenario changed.

    `variations` maps a name to the changed keys, as {"hbm-half": {"hbm_bandwidth_bytes_per_s": 0.6e12}}. An
    architecture's own HBM bandwidth changes by the same factor.
    """
    placed = []
    for name, changes in variations.items():
        scenario = Scenario.model_validate({**terms.scenario.model_dump(), **changes})
        varied = terms.model_copy(update={"scenario": scenario})
        over = scenario.hbm_bandwidth_bytes_per_s / terms.scenario.hbm_bandwidth_bytes_per_s
        scaled = {"hbm_bandwidth_bytes_per_s": over * architectures["hbm_bandwidth_bytes_per_s"]}
        chips = architectures.assign(**scaled)
        placements = look_up_architectures(subject, chips, varied, ["placements"])["placements"]
        placed.append(placements.assign(variation=name))
    if not placed:
        return tables.Sensitivities.empty()
    return tables.Sensitivities.check(
        pd.concat(placed, ignore_index=True)[list(tables.Sensitivities.fields())]
    )
