"""Inputs of the report: tables of the whole study, and lookups of the rows of one design."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pandas as pd

from phaze import tables
from phaze.base.errors import PhazeError
from phaze.search.winners import Outcome
from phaze.spec.architecture import EnergyFigures

if TYPE_CHECKING:  # plots and study settings, which jobs on a single cluster do not need
    from phaze.pages.pipeline_picture import PipelinePicture
    from phaze.spec.study import Study

COMMON_SHARD = "common"
"""Shard of the stages and schedules of candidates for the common architecture."""
READ_COLUMNS = {"screens": ["model", "layout", "architecture", "lower_s", "feasible_s"]}
"""Columns to read from large tables, to save time; other tables are read in full."""
Families = Mapping[str, Mapping[str, str]]
"""Accelerator designed for each workload, by family and model."""


class Slicing(NamedTuple):
    """Point of a study: a model, and the layout key with which its operators are lowered."""

    model: str
    layout: str


class Only(NamedTuple):
    """Row filter: a column and its accepted values."""

    column: str
    values: tuple[str, ...] | tuple[int, ...]


class Details(Protocol):
    """Lookup of rows in large tables, by point and, for sharded tables, by shard."""

    def rows(
        self, table: type[tables.Table], point: Slicing, shard: str, only: Only | None = None
    ) -> pd.DataFrame:
        """Table rows for a point and shard, filtered by `only`; empty if the table does not exist."""

    def __hash__(self) -> int:
        """Hash, required to cache lookups."""


# without eq, objects hash by identity, as cached lookups by `Details` require
@dataclass(frozen=True, eq=False)
class DetailFiles:
    """Lookup in Parquet files, located by a path pattern per table."""

    patterns: Mapping[str, str]
    """Path patterns by table, such as `results/stages/paper/{model}/{layout}/{shard}.parquet`."""
    common: Mapping[str, str] = field(default_factory=dict)
    """Patterns for common-architecture candidates, such as `results/stages/paper/{model}/common.parquet`."""

    @classmethod
    def under(cls, results: Path, scenario: str, estimates: str) -> DetailFiles:
        """Locate a scenario's large tables in a folder; scenario `estimates` has the estimates."""
        shards = {"screens": scenario, "stages": scenario, "schedules": scenario, "estimates": estimates}
        point = "{model}/{layout}"
        patterns = {table: f"{results}/{table}/{point}.parquet" for table in ("operators", "layers")}
        for table, name in shards.items():
            patterns[table] = f"{results}/{table}/{name}/{point}/{{shard}}.parquet"
        common = {t: f"{results}/{t}/{scenario}/{{model}}/common.parquet" for t in ("stages", "schedules")}
        return cls(patterns, common)

    def rows(
        self, table: type[tables.Table], point: Slicing, shard: str, only: Only | None = None
    ) -> pd.DataFrame:
        """Table rows for the point; empty if the table has no path pattern or its file is missing."""
        patterns = self.common if shard == COMMON_SHARD else self.patterns
        if table.name not in patterns:
            return table.empty()
        path = Path(patterns[table.name].format(**point._asdict(), shard=shard))
        return _load(table.name, path, point, only)


@lru_cache(maxsize=512)
def _load(table: str, path: Path, point: Slicing, only: Only | None) -> pd.DataFrame:
    """Load rows of a table, cached and not checked again, because a report reads hundreds of files."""
    if not path.is_file():
        return tables.TABLES[table].empty()
    where = {} if only is None else {only.column: only.values}
    where |= {column: (value,) for column, value in point._asdict().items()}
    columns = READ_COLUMNS.get(table, list(tables.TABLES[table].fields()))
    return tables.TABLES[table].load(path, columns=columns, where=where)


@dataclass(frozen=True)
class Inputs:
    """Inputs of a report; tables that a study lacks are empty."""

    study: Study
    clusters: Mapping[str, Outcome]
    """Results by scenario name; the report covers the first scenario."""
    graphs: pd.DataFrame
    solves: pd.DataFrame
    """Table `solves` of the first scenario."""
    details: Details
    """Operators, layers, estimates, schedules and stages of the first scenario."""
    energy: EnergyFigures
    """Energy per action and leakage power of the study's technology."""
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Published parameter count of models, with tied parameters once; default: the count of their layers."""
    families: Families = field(default_factory=dict)
    """Families of named accelerators: the accelerator designed for each workload."""
    fronts: pd.DataFrame = field(default_factory=tables.Fronts.empty)
    trials: pd.DataFrame = field(default_factory=tables.Trials.empty)
    sensitivities: pd.DataFrame = field(default_factory=tables.Sensitivities.empty)
    readings: pd.DataFrame = field(default_factory=tables.Readings.empty)
    """Table `readings`, all models."""
    simulations: pd.DataFrame = field(default_factory=tables.Simulations.empty)
    """Table `simulations` of the first scenario, all models."""
    times: pd.DataFrame = field(default_factory=tables.Times.empty)
    certificates: pd.DataFrame = field(default_factory=tables.Certificates.empty)
    """Table `certificates` of the first scenario, with the common architecture."""
    audits: pd.DataFrame = field(default_factory=tables.Audits.empty)
    """Table `audits` of the first scenario, all models."""
    source_scores: pd.DataFrame = field(default_factory=tables.SourceScores.empty)
    """Errors of predictions of published training runs, by source."""
    pictures: Callable[[pd.Series, pd.DataFrame], PipelinePicture] | None = None
    """Function that simulates a placement with its stages for a picture; None omits pictures."""

    def graph_of(self, model: str) -> pd.DataFrame:
        """Rows of table `graphs` for a model; may be empty."""
        return self.graphs[self.graphs["model"] == model]

    @property
    def cluster(self) -> Outcome:
        """Results of the scenario that the report covers."""
        return next(iter(self.clusters.values()))


def table_of(table: type[tables.Table], rows: Iterable[object]) -> pd.DataFrame:
    """Build and check a table from rows; extra columns are dropped."""
    frame = pd.DataFrame(list(rows))
    return table.empty() if frame.empty else table.check(frame[list(table.fields())])


def read_times(benchmarks: Mapping[tuple[str, str], Iterable[Path]]) -> pd.DataFrame:
    """Table `times` from the benchmark files of jobs by (stage, model); missing files are skipped."""
    rows = []
    for (stage, model), paths in benchmarks.items():
        jobs = [_read_benchmark(path) for path in paths if path.is_file()]
        if jobs:
            wall_s, cpu_s, peak_mib = zip(*jobs, strict=True)
            spent = {"jobs": len(jobs), "wall_s": sum(wall_s), "cpu_s": sum(cpu_s)}
            rows.append({"model": model, "stage": stage, **spent, "peak_bytes": max(peak_mib) * 2**20})
    return table_of(tables.Times, rows)


def _read_benchmark(path: Path) -> tuple[float, ...]:
    """Wall time in s, CPU time in s and peak memory in MiB of a job; 0 if not measured."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) < 2:
        raise PhazeError(f"{path}: is not a benchmark of a job: a header and a row are expected", "delete it")
    read = pd.Series(dict(zip(lines[0].split("\t"), lines[-1].split("\t"), strict=False)))
    # Snakemake writes no number for what it did not measure, for example of a very short job
    measured = pd.to_numeric(read.reindex(["s", "cpu_time", "max_rss"]), errors="coerce")
    return tuple(measured.fillna(0.0).clip(lower=0))
