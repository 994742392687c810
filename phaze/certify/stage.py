"""Certificate of a model's best architecture: the reason why each point of the space is not better.

A point is an architecture with TMP width, microbatch, HBM size and recompute. Let T* be the least time per
batch of all placed points. Every point falls into the first of these causes that applies:

    memory     nothing fits (the screen's lower bound is infinite)
    solved     its layers were scheduled and it was placed, in at least T*
    work       with every layer as short as its work allows, its time is above T*
    path       the same with the longest paths through the layers
    combined   the lower bound of the screen is above T*
    tied       the lower bound of the screen is T*: it can be as good, not better
    open       none of these: it could still be better

No throughput in the space is above the batch over the least lower bound of all points, where a solved point
has the bound of its placement. The certificate therefore holds, with a gap, even if layers are not proven.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats
from phaze.base.ranking import distinct_rows, name_ranks, order
from phaze.certify.plain import BOUNDS, DIRECTIONS, Estimated, estimated_s
from phaze.certify.space import Places, Shard, names_of_space, read_shards
from phaze.cost.memory import parameter_bytes
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze.chains import best_times, read_runs
from phaze.spec.settings import Training
from phaze.spec.system import Scenario
from phaze.tables import CAUSES, Architectures, Edges, Estimates, Layers, Operators, Ranges, are_among
from phaze.tables.columns import layout_of

EQUAL = 2.0**-28
"""Relative difference below which times count as equal: two steps of the grid of `base.ranking`."""


@dataclass(frozen=True)
class SliceTables:
    """Input tables of a certificate for one tensor-parallel width (TMP), microbatch size and shard."""

    operators: pd.DataFrame
    edges: pd.DataFrame
    layers: pd.DataFrame
    estimates: pd.DataFrame
    architectures: pd.DataFrame
    """All architectures of the shard."""

    @property
    def shard(self) -> str:
        """Name of the shard."""
        return str(self.architectures["shard"].iloc[0])

    def has(self, rows: pd.DataFrame) -> Bools:
        """Mask of the rows of a table that belong to this TMP width, microbatch and shard."""
        same = rows["layout"] == self.layers["layout"].iloc[0]
        row_names, shard_names = rows.loc[same, "architecture"], self.architectures["architecture"]
        mask: Bools = same.to_numpy(np.bool_, copy=True)
        mask[mask] = row_names.isin(shard_names[shard_names.isin(row_names.unique())]).to_numpy(np.bool_)
        return mask


def read_slices(files: Mapping[str, Sequence[str]], estimated: list[str]) -> Iterator[SliceTables]:
    """Yield the tables of each TMP width, microbatch and shard of a model, in order of the estimate files.

    `estimated` are the columns of estimates that are needed.
    """
    shards = [Architectures.load(path) for path in files["architectures"]]
    estimates = iter(files["estimates"])
    for operators, edges, layers in zip(files["operators"], files["edges"], files["layers"], strict=True):
        point = Operators.load(operators), Edges.load(edges), Layers.load(layers)
        for architectures in shards:
            yield SliceTables(*point, Estimates.load(next(estimates), columns=estimated), architectures)


@dataclass(frozen=True)
class CertificateTerms:
    """Scope of a certificate: cluster, training and area limit."""

    scenario: Scenario
    training: Training
    limit_um2: float
    """Area limit of a chip."""
    overlap_communication: bool = False


@dataclass
class CauseCounts:
    """Number of design points by cause of exclusion, and the smallest bounds, over all points so far."""

    causes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    points: int = 0
    contradictions: int = 0
    excluded_s: float = np.inf
    """Smallest lower bound of the unsolved points."""
    bound_s: float = np.inf
    """Smallest lower bound of all points."""
    ranges: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)
    """Smallest lower bound and feasible time (grid, A) of all TMP widths and microbatches, by shard."""

    def add(
        self,
        tables: SliceTables,
        screens: pd.DataFrame,
        shard: Shard,
        graph: pd.DataFrame,
        placed: pd.DataFrame,
        best: pd.Series | None,
        sizes: Sequence[float],
        terms: CertificateTerms,
    ) -> None:
        """Add the design points of one layout and shard to the counts; `sizes` are the study's HBM sizes."""
        grid = terms.training.memory_grid
        points = Architectures.may_have(shard.chips, sizes, [hbm_gib for hbm_gib, _ in grid])
        screened = Places(screens, shard, grid)
        lower, feasible, selected = (screened.matrix(column) for column in ("lower_s", "feasible_s", "kept"))
        placements = Places(placed[tables.has(placed)], shard, grid)
        time, bound = (placements.matrix(column) for column in ("time_per_batch_s", "bound_s"))
        placed_here, selected_here = ~np.isnan(time), selected == 1.0
        solved = placed_here & selected_here
        limit = np.inf if best is None else float(best["time_per_batch_s"]) * (1.0 + EQUAL)
        # Simple bounds explain only what the screen excludes as slower.
        remaining = points & np.isfinite(lower) & ~solved & (lower > limit)
        weak = _exclude_by_simple_bounds(tables, shard.chips, graph, remaining, limit, terms)
        flags = {
            "memory": lower == np.inf,
            "solved": solved,
            **weak,
            "combined": remaining,
            "tied": lower >= limit * (1.0 - 2.0 * EQUAL),
        }
        for cause, number in count_causes({cause: mask[points] for cause, mask in flags.items()}).items():
            self.causes[cause] += number
        self.points += int(points.sum())
        # A solved point also has its placement's bound; points outside the space do not count.
        bounds_s = np.where(solved, np.fmax(lower, bound), np.nan_to_num(lower, nan=0.0))
        bounds_s[~points] = np.inf
        # The screen promised a range for the time, and that exactly the kept points are placed.
        wrong = (solved & ~_within(time, lower, feasible)) | (placed_here != selected_here)
        self.contradictions += int(wrong.sum())
        self.bound_s = min(self.bound_s, float(bounds_s.min()))
        self.excluded_s = min(self.excluded_s, float(np.min(bounds_s[~solved], initial=np.inf)))
        least = self.ranges.get(tables.shard, (lower, feasible))
        self.ranges[tables.shard] = np.fmin(least[0], lower), np.fmin(least[1], feasible)


def certify_model(
    slices: Iterable[tuple[SliceTables, pd.DataFrame]],
    graph: pd.DataFrame,
    architectures: pd.DataFrame,
    placements: pd.DataFrame,
    solves: pd.DataFrame,
    terms: CertificateTerms,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables `certificates` (one row) and `ranges` of a model.

    `slices`, each with its table screens, are read one at a time; `architectures`, `placements` and `solves`
    cover all of them.
    """
    names = names_of_space(architectures, terms.limit_um2)
    sizes = terms.training.hbm_gib
    # Named architectures may have HBM sizes of their own, which become points as well.
    terms = replace(terms, training=terms.training.with_sizes(architectures["hbm_gib"].unique()))
    placed = placements[(placements["planner"] == "phaze") & are_among(placements["architecture"], names)]
    best = best_row(placed, architectures)
    count, shards = CauseCounts(), read_shards(architectures, names)
    for tables, screens in slices:
        if len(tables.architectures) and len(shards[tables.shard].chips):
            count.add(tables, screens, shards[tables.shard], graph, placed, best, sizes, terms)
    model = str(graph["model"].iloc[0])
    row = _row(count, names, best, terms.scenario.global_batch) | count_proofs(solves) | {"model": model}
    return pd.DataFrame([row]), _ranges(count, shards, sizes, terms.training, model)


def best_row(placed: pd.DataFrame, architectures: pd.DataFrame) -> pd.Series | None:
    """Best placement by time, area and name; None if nothing is placed."""
    rows = placed[placed["status"] == "placed"]
    if rows.empty:
        return None
    areas = rows["architecture"].map(
        architectures.drop_duplicates("architecture").set_index("architecture")["area_um2"]
    )
    ranks = name_ranks(rows["architecture"])
    first = order(rows["time_per_batch_s"].to_numpy(), areas.to_numpy(), ranks)[0]
    best: pd.Series = rows.iloc[first]
    return best


def count_causes(flags: Mapping[str, Bools]) -> dict[str, int]:
    """Number of points by the first cause that applies, or under `open` if none does."""
    masks = np.stack([*flags.values(), np.ones_like(flags["memory"])])
    counts = np.bincount(masks.argmax(axis=0).ravel(), minlength=len(masks))
    return dict(zip([*flags, "open"], counts.tolist(), strict=True))


def _within(time: Floats, lower: Floats, feasible: Floats) -> Bools:
    """Mask of the times that lie within their bounds; a time may be infinite only if nothing fits."""
    between = (time >= lower * (1.0 - EQUAL)) & (time <= feasible * (1.0 + EQUAL))
    return np.asarray(between & (np.isfinite(time) == np.isfinite(lower)))


def _ranges(
    count: CauseCounts, shards: dict[str, Shard], sizes: Sequence[float], training: Training, model: str
) -> pd.DataFrame:
    """Table `ranges`: smallest lower bound and feasible time by architecture and HBM size."""
    frames, grid = [Ranges.empty()], training.memory_grid
    for name, (lower, feasible) in count.ranges.items():
        for size in sorted(training.hbm_gib):
            rows = [g for g, (hbm_gib, _) in enumerate(grid) if hbm_gib == size]
            chips = shards[name].chips
            least = {"lower_s": lower[rows].min(axis=0), "feasible_s": feasible[rows].min(axis=0)}
            frame = pd.DataFrame({"architecture": chips["architecture"], **least, "hbm_gib": float(size)})
            frames.append(frame[Architectures.may_have(chips, sizes, [size])[0]])
    return pd.concat(frames[1:] or frames, ignore_index=True).assign(model=model)


def _exclude_by_simple_bounds(
    tables: SliceTables,
    chips: pd.DataFrame,
    graph: pd.DataFrame,
    remaining: Bools,
    limit_s: float,
    terms: CertificateTerms,
) -> dict[str, Bools]:
    """Masks (grid, A) of the remaining points that each simple bound excludes, the simplest bound first."""
    masks, layout = {}, layout_of(tables.layers)
    settings = Setting.grid(terms.scenario, terms.training, layout)
    per_parameter = parameter_bytes(terms.training.optimizer, terms.training.precision)
    runs, _ = read_runs(tables.layers, graph, per_parameter)
    passes = _passes(tables, chips, graph, terms) if remaining.any() else {}
    for name, bound in BOUNDS.items():
        masks[name] = np.zeros_like(remaining)
        if remaining.any():
            latency = np.column_stack([bound(p) for p in passes.values()])
            # Architectures with equal bounds on all layers have equal times: they are placed once.
            distinct, place = distinct_rows(latency)
            # Columns alternate between the passes, as the keys do.
            forward, backward = (distinct[:, i::2] for i in (0, 1))
            times = best_times(runs, forward, backward, layout, settings, limit_s)
            masks[name] = remaining & (times >= limit_s)[:, place]
            remaining = remaining & ~masks[name]
    return masks


def _passes(
    tables: SliceTables, chips: pd.DataFrame, graph: pd.DataFrame, terms: CertificateTerms
) -> dict[tuple[str, str], Estimated]:
    """Forward and backward pass of every kind of layer, in the order of the chain."""
    keys = [
        (layer, direction) for layer in graph.sort_values("position")["layer"] for direction in DIRECTIONS
    ]
    operators, edges = (
        dict(list(rows.groupby(["layer", "direction"]))) for rows in (tables.operators, tables.edges)
    )
    latencies = estimated_s(tables.estimates)
    return {
        key: Estimated(
            operators[key],
            edges.get(key, tables.edges.iloc[:0]),
            latencies,
            chips,
            overlap_communication=terms.overlap_communication,
        )
        for key in dict.fromkeys(keys)
    }


def _row(count: CauseCounts, names: pd.Index, best: pd.Series | None, batch: int) -> dict[str, object]:
    """Row of table `certificates`: number of points by cause, best design point, and throughput bounds."""
    value = 0.0 if best is None else batch / float(best["time_per_batch_s"])
    return {
        "architectures": len(names),
        "points": count.points,
        **count.causes,
        "contradictions": count.contradictions,
        "architecture": "" if best is None else best["architecture"],
        "hbm_gib": 0.0 if best is None else best["hbm_gib"],
        "best": value,
        "excluded": batch / count.excluded_s if count.excluded_s > 0 else np.inf,
        "bound": max(value, batch / count.bound_s) if count.bound_s > 0 else np.inf,
    }


def count_proofs(solves: pd.DataFrame) -> dict[str, object]:
    """Number of schedules, number without an optimality proof, and the largest optimality gap."""
    return {
        "schedules": len(solves),
        "unproven": int((solves["status"] != "optimal").sum()),
        "gap": float(solves["gap"].max()) if len(solves) else 0.0,
    }
