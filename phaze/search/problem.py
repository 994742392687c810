"""A workload of a study with everything that its evaluation depends on, as a job of the workflow gets it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from phaze import tables
from phaze.base.units import UM2_PER_MM2
from phaze.cost.space import area_um2
from phaze.layout import Layout, layouts_of
from phaze.search.cosearch import Subject, Terms, extract_subject
from phaze.spec.architecture import Architecture, Technology
from phaze.spec.model import AnyModel
from phaze.spec.noun import Noun
from phaze.spec.settings import EstimateSettings, ExtractSettings, ScheduleSettings, Training, Triple
from phaze.spec.system import Scenario
from phaze.tables.store import EvaluationStore
from phaze.workload.workload import TABLES, Workload


class Problem(Noun):
    """What a job that evaluates architectures by itself is given by value."""

    sequence: int
    """Tokens in a sample."""
    flops_per_token: float
    """FLOPs that training needs for a token (PaLM, Appendix B)."""
    expert: Triple | None
    """Placement to evaluate on named architectures besides the best."""
    scenario: Scenario
    """Cluster and batch."""
    technology: Technology
    """Areas, energies and cycles."""
    training: Training
    """How the model is trained."""
    extract: ExtractSettings
    """Settings of extract."""
    estimate: EstimateSettings
    """Settings of estimate."""
    schedule: ScheduleSettings
    """Settings of schedule."""

    def terms(self, solutions: str, evaluations: EvaluationStore | None = None) -> Terms:
        """Return what evaluations depend on besides model and architectures, and where some are known."""
        return Terms(
            scenario=self.scenario,
            training=self.training,
            technology=self.technology,
            estimate=self.estimate,
            schedule=self.schedule,
            bytes_per_element=self.extract.bytes_per_element,
            solutions=Path(solutions),
            evaluations=evaluations,
        )

    def read_subject(self, files: Mapping[str, Sequence[str]]) -> Subject:
        """Return the model from its tables: the graph, and operators in each layout."""
        graph = tables.Graphs.load(*files["graph"])
        by_point = zip(*(files[table] for table in TABLES), strict=True)
        return Subject(
            points=tuple(_read_point(paths, graph) for paths in by_point),
            sequence=self.sequence,
            flops_per_token=self.flops_per_token,
            expert=self._expert,
        )

    def extract_subject(self, model: AnyModel, widths: Sequence[int]) -> Subject:
        """Return a model with operators extracted for each layout, where no tables are."""
        layouts = layouts_of(widths, self.training.microbatches)
        return extract_subject(model, self.sequence, layouts, self.extract, self._expert)

    @property
    def _expert(self) -> Layout | None:
        return None if self.expert is None else self.expert.layout


def _read_point(paths: Sequence[str], graph: pd.DataFrame) -> Workload:
    """Return the slice of one layout from its tables."""
    loaded = {name: tables.TABLES[name].load(path) for name, path in zip(TABLES, paths, strict=True)}
    return Workload.of_tables(loaded, graph)


def area_limit_um2(limit: float | dict[str, object], technology: Technology) -> float:
    """Return an area limit that is given in mm2, or as the architecture whose area it is."""
    if isinstance(limit, dict):
        return area_um2(Architecture.parse(limit, "area_limit"), technology.area_um2)
    return limit * UM2_PER_MM2
