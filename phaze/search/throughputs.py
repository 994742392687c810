"""Best throughput of architectures, without building tables, for searches over many architectures.

The walk down the areas needs it for every architecture it visits. Where the bounds of a screen meet, they
give it; elsewhere the layers are scheduled.
"""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.cost.designs import with_own_designs
from phaze.cost.memory import parameter_bytes
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze.chains import read_runs
from phaze.schedule.bounds import EQUAL
from phaze.search.bounds import Bounds, bound_layers, bound_times
from phaze.search.common import mean_of
from phaze.search.cosearch import Subject, Terms, estimate_point, schedule_point
from phaze.search.hysteresis import walk_areas
from phaze.spec.settings import ScreenSettings, Training
from phaze.tables.columns import widths_of
from phaze.workload.workload import Workload

_SEARCHED = ("hbm_gib", "recompute")
"""Columns of table `screens` whose considered values are fields of `Training`."""


def walk_models(
    subjects: Mapping[str, Subject],
    weights: Mapping[str, float],
    architectures: pd.DataFrame,
    terms: Terms,
    settings: ScreenSettings,
    *,
    name: str,
) -> pd.DataFrame:
    """Table `visits` of the search by descending area, for one model or the mean over several models.

    The throughput of an architecture is the best over HBM sizes, points and recompute. The mean is the one of
    `settings.common`. A normalised mean divides by the throughput of the first architecture, because the best
    is not known before the end.
    """
    first: dict[str, pd.DataFrame] = {}

    def evaluate(rows: pd.DataFrame) -> pd.DataFrame:
        times = {model: exact_times(subject, rows, terms) for model, subject in subjects.items()}
        samples = pd.DataFrame({model: terms.scenario.global_batch / time for model, time in times.items()})
        first.setdefault("reference", samples.loc[[rows["architecture"].iloc[0]]])
        mean = mean_of(samples, weights, settings.common, first["reference"])
        return _best_hbm(mean)

    return walk_areas(
        architectures,
        evaluate,
        model=name,
        hysteresis=settings.hysteresis,
        area_band_um2=settings.area_band_um2,
    )


def _best_hbm(samples_per_s: pd.Series) -> pd.DataFrame:
    """Best throughput of every architecture and the smallest HBM that reaches it; 0 if none does."""
    rows = samples_per_s.rename("samples_per_s").reset_index()
    rows = rows.sort_values(["samples_per_s", "hbm_gib"], ascending=[False, True], kind="stable")
    best = rows.drop_duplicates("architecture").set_index("architecture")
    return best.assign(hbm_gib=best["hbm_gib"].where(best["samples_per_s"] > 0, 0.0))


def exact_times(subject: Subject, architectures: pd.DataFrame, terms: Terms) -> pd.Series:
    """Best time per batch by (architecture, hbm_gib), over all layouts and recompute options.

    Equal to the times of `evaluate_architectures` without its tables, for many architectures at once. Where
    the bounds of a layer meet, they are its latency; elsewhere the layer is scheduled.
    """
    chips = with_own_designs(architectures)
    grid = terms.training.memory_grid
    best = np.min([_point_times(point, chips, terms) for point in subject.points], axis=0)
    columns = pd.MultiIndex.from_tuples(grid, names=["hbm_gib", "recompute"])
    times = pd.DataFrame(best.T, index=pd.Index(chips["architecture"], name="architecture"), columns=columns)
    by_hbm: pd.Series = times.T.groupby(level="hbm_gib").min().T.stack()  # type: ignore[assignment]
    return by_hbm


@dataclass
class ScreenedTimes:
    """Best throughput of architectures: from screens if their bounds meet, else computed exactly.

    `screens` cover all points of the subject on every architecture that may be queried.
    """

    subject: Subject
    terms: Terms
    screens: InitVar[pd.DataFrame]
    bounds: pd.DataFrame = field(init=False)
    """Bounds lower_s and feasible_s on the best time per batch, by architecture."""
    best: pd.DataFrame = field(init=False)
    """Columns samples_per_s and hbm_gib by architecture; valid if `exact` is true."""
    exact: pd.Series = field(init=False)

    def __post_init__(self, screens: pd.DataFrame) -> None:
        by_hbm = screens.groupby(["architecture", "hbm_gib"])[["lower_s", "feasible_s"]].min()
        met = by_hbm["lower_s"] >= by_hbm["feasible_s"] * (1.0 - EQUAL)
        self.bounds = by_hbm.groupby(level="architecture").min()
        self.best = _best_hbm(self.terms.scenario.global_batch / by_hbm["feasible_s"])
        self.exact = met.groupby(level="architecture").all()

    def __call__(self, architectures: pd.DataFrame) -> pd.DataFrame:
        """Exact best throughput of architectures, and the HBM size that reaches it."""
        names = architectures["architecture"]
        open_ = architectures[~self.exact.loc[names].to_numpy()]
        if len(open_):
            times = exact_times(self.subject, open_, self.terms)
            best = _best_hbm(self.terms.scenario.global_batch / times)
            self.best.loc[best.index] = best
            self.exact.loc[best.index] = True
        return self.best.loc[names]


def restrict_search(
    subject: Subject, terms: Terms, screens: pd.DataFrame, training: Training
) -> ScreenedTimes:
    """Throughputs of a search limited to the microbatches, HBM sizes and recompute options of `training`."""
    inside = np.logical_and.reduce([screens[key].isin(getattr(training, key)) for key in _SEARCHED])
    inside &= np.isin(widths_of(screens, "microbatch"), training.microbatches)
    points = [p for p in subject.points if p.layout.microbatch in training.microbatches]
    return ScreenedTimes(
        replace(subject, points=tuple(points)),
        terms.model_copy(update={"training": training}),
        screens[inside],
    )


def _point_times(point: Workload, chips: pd.DataFrame, terms: Terms) -> Floats:
    """Exact times per batch (settings, A) in one layout."""
    parameter_size = parameter_bytes(terms.training.optimizer, terms.training.precision)
    runs, names = read_runs(point.tables["layers"], point.graph, parameter_size)
    layers = _exact_layers(point, chips, terms)
    settings = Setting.grid(terms.scenario, terms.training, point.layout)
    return bound_times(runs, names, layers, point.layout, settings).feasible_s


def _exact_layers(point: Workload, chips: pd.DataFrame, terms: Terms) -> dict[tuple[str, str], Bounds]:
    """Exact latency of every layer from its schedule, as equal lower and feasible bounds."""
    estimates = estimate_point(point, chips, terms)
    overlap = terms.schedule.overlap_communication
    layers = bound_layers(
        point.tables["operators"], point.tables["edges"], estimates, chips, overlap_communication=overlap
    )
    gaps = np.any([b.lower_s < b.feasible_s * (1.0 - EQUAL) for b in layers.values()], axis=0)
    exact = {key: bounds.feasible_s for key, bounds in layers.items()}
    if gaps.any():
        solves, _ = schedule_point(point, estimates, chips, terms, gaps)
        for (layer, direction), latency in exact.items():
            layer_solves = solves[(solves["layer"] == layer) & (solves["direction"] == direction)]
            names = chips.loc[gaps, "architecture"]
            latency[gaps] = layer_solves.set_index("architecture").loc[names, "objective_s"].to_numpy()
    return {key: Bounds(latency, latency) for key, latency in exact.items()}
