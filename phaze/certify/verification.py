"""Solve points of a certificate again: schedule, confirm by integer programs, place with independent code.

Schedules come from the stage `schedule` and are verified. A schedule counts as optimal only if a bound of
`certify.plain` or an integer program proves it. All later steps are code of `certify`, which shares none with
screen and place. Results of an earlier audit by the same code are reused if no input has changed, tables byte
for byte.
"""

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.store import Plain, Store
from phaze.certify.audit import VALUES, AuditedModel, Times, is_proven, judge_points, time_points
from phaze.certify.plain import DESIGNS, ChipPass, bound_piece, layer_of_piece, pieces_of, read_passes
from phaze.certify.stage import SliceTables
from phaze.schedule.bounds import EQUAL
from phaze.schedule.decomposition import confirm_schedule
from phaze.schedule.graphs import LayerSchedule, ScheduledLayer
from phaze.schedule.stage import schedule_layers
from phaze.schedule.verify import find_faults
from phaze.spec.settings import ScheduleSettings, Training
from phaze.spec.system import Scenario
from phaze.tables import Architectures, Edges, Estimates, Layers, Operators, are_among, content_digest

POINT = ["architecture", "hbm_gib", "recompute", "lower_s"]
"""Columns that the times of points depend on; of the lower bound only whether it is finite."""
PieceTimes = dict[bytes, tuple[float, float, float]]
"""Cached plain bound, proven bound and latency of layer components, by content."""


@dataclass(frozen=True, eq=False)
class AuditConditions:
    """Inputs, other than tables, on which the times of design points depend."""

    graph: pd.DataFrame
    scenario: Scenario
    training: Training
    schedule: ScheduleSettings

    def model(self, layers: pd.DataFrame) -> AuditedModel:
        """The model, sharded for one layout."""
        return AuditedModel(layers, self.graph, self.scenario, self.training)

    @cached_property
    def content(self) -> Plain:
        """Conditions as plain values for the cache key, without the settings that only select points."""
        return [
            content_digest(self.graph),
            self.scenario.model_dump(mode="json", exclude={"area_limit_mm2"}),
            self.training.model_dump(mode="json", exclude={"microbatches", "hbm_gib", "recompute"}),
            self.schedule.model_dump(mode="json"),
        ]


@dataclass(frozen=True, eq=False)
class StoredSlice:
    """Files of one TMP width, microbatch and shard, with the architectures to audit."""

    operators: str
    edges: str
    layers: str
    estimates: str
    architectures: pd.DataFrame
    """Architectures to audit."""

    @property
    def content(self) -> Plain:
        """Digests of the slice's files, for the cache key."""
        files = (self.operators, self.edges, self.layers, self.estimates)
        return [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files]

    def read(self) -> SliceTables:
        """Read the slice's tables; estimates are limited to core designs of the audited architectures."""
        estimates = Estimates.load(self.estimates, columns=list(Estimates.fields()))
        used = self.architectures[list(DESIGNS)]
        return SliceTables(
            Operators.load(self.operators),
            Edges.load(self.edges),
            Layers.load(self.layers),
            estimates[estimates["design"].isin(np.unique(used))],
            self.architectures,
        )


def find_slices(
    points: pd.DataFrame, files: Mapping[str, Sequence[str]]
) -> Iterator[tuple[pd.DataFrame, StoredSlice]]:
    """Yield the points of each TMP width, microbatch and shard, with the files that they need.

    Estimate files are ordered by layers, then by shards.
    """
    shards = [Architectures.load(path) for path in files["architectures"]]
    chips = [shard[are_among(shard["architecture"], pd.Index(points["architecture"]))] for shard in shards]
    estimates = iter(files["estimates"])
    for operators, edges, layers in zip(files["operators"], files["edges"], files["layers"], strict=True):
        of_layout = points["layout"] == Layers.load(layers, columns=["layout"])["layout"].iloc[0]
        for among, estimated in zip(chips, estimates, strict=False):
            slice_points = points[of_layout & points["architecture"].isin(among["architecture"])]
            used = among[among["architecture"].isin(slice_points["architecture"])]
            if len(slice_points):
                yield slice_points, StoredSlice(operators, edges, layers, estimated, used)


def audit_slice(
    points: pd.DataFrame, stored: StoredSlice, conditions: AuditConditions, best_s: float, store: Store
) -> pd.DataFrame:
    """Rows of table `audits` for design points with the same tables, from cached times where possible.

    Points with a layer that a time or node limit left unproven are solved again as well.
    """
    rows = stored.architectures
    chips = dict(zip(rows["architecture"], rows.to_numpy(object).tolist(), strict=True))
    requests: list[Plain] = [
        [chips[name], hbm_gib, recompute, lower_s < np.inf]
        for name, hbm_gib, recompute, lower_s in points[POINT].itertuples(index=False, name=None)
    ]

    def solve(places: list[int]) -> list[Times]:
        tables = stored.read()
        return solve_points(points.iloc[places], tables, conditions.model(tables.layers), conditions.schedule)

    about: list[Plain] = [stored.content, conditions.content]
    return judge_points(
        points, store.each(requests, solve, about=about, holds=is_proven, lasts=is_proven), best_s
    )


def solve_points(
    points: pd.DataFrame, tables: SliceTables, model: AuditedModel, settings: ScheduleSettings
) -> list[Times]:
    """Times per batch of design points with the same tables, in the form of `time_points`.

    If nothing fits according to the screen, latencies do not matter: zeros test whether any placement fits.
    """
    fits = np.isfinite(points["lower_s"])
    chips = tables.architectures[tables.architectures["architecture"].isin(points.loc[fits, "architecture"])]
    passes = tables.operators[["layer", "direction"]].drop_duplicates()
    others = pd.DataFrame({"architecture": points.loc[~fits, "architecture"].unique()})
    # Zeros are below every latency: a placement found with them shows that the memory suffices.
    idle = others.merge(passes, how="cross").assign(plain_s=0.0, bound_s=0.0, exact_s=0.0, programs=0)
    latencies = [idle.assign(fits=False)]
    if len(chips):
        latencies.append(reschedule(tables, chips, settings).assign(fits=True))
    return time_points(points, pd.concat(latencies, ignore_index=True), model)


def reschedule(tables: SliceTables, chips: pd.DataFrame, settings: ScheduleSettings) -> pd.DataFrame:
    """Bounds and scheduled latency of every layer on every architecture, one row per direction.

    Columns plain_s (bound of `certify` alone), bound_s (the same, with an integer program where plain_s does
    not meet the schedule), exact_s (the verified schedule) and programs (number of integer programs).
    """
    selection = chips[["architecture"]].assign(kept=True)
    inputs = tables.operators, tables.edges, tables.estimates, chips
    _, schedules = schedule_layers(*inputs, selection, settings, Store())
    runs = dict(iter(schedules.groupby(["architecture", "layer", "direction"])))
    cache: PieceTimes = {}
    passes = read_passes(*inputs, overlap_communication=settings.overlap_communication)
    return pd.DataFrame([_confirm(chip_pass, runs, settings, cache) for chip_pass in passes])


def _confirm(
    chip_pass: ChipPass,
    runs: Mapping[tuple[Hashable, ...], pd.DataFrame],
    settings: ScheduleSettings,
    cache: PieceTimes,
) -> dict[str, object]:
    """Row of `reschedule` for one pass, from its scheduled operators in `runs`."""
    names = {name: getattr(chip_pass, name) for name in ("architecture", "layer", "direction")}
    operators = runs[tuple(names.values())].sort_values("operator")
    start, end, core = (operators[column].to_numpy() for column in ("start_s", "end_s", "core"))
    if faults := find_faults(chip_pass.content, LayerSchedule(start, end, core)):
        raise RuntimeError(f"{chip_pass.layer} on {chip_pass.architecture}: {'; '.join(faults)}")
    totals, programs = np.zeros(3), 0
    for piece in pieces_of(chip_pass.content.core, chip_pass.content.edges):
        members = list(piece.operators)
        # Components run one after the other, so each is a schedule of its own from its first start.
        begin = float(start[members].min())
        schedule = LayerSchedule(start[members] - begin, end[members] - begin, core[members])
        values = _piece_times(layer_of_piece(chip_pass.content, piece), schedule, settings, cache)
        totals, programs = totals + values, programs + int(values[1] > values[0])
    return {**names, **dict(zip(VALUES, totals.tolist(), strict=True)), "programs": programs}


def _piece_times(
    layer: ScheduledLayer, schedule: LayerSchedule, settings: ScheduleSettings, cache: PieceTimes
) -> tuple[float, float, float]:
    """Plain bound, proven bound and latency of a component, cached by content."""
    numbers = np.concatenate([layer.latency_s, layer.latency_all_s, [layer.num_tc, layer.num_vc]])
    key = numbers.tobytes() + repr((layer.core, layer.edges)).encode()
    if key not in cache:
        plain_s, exact_s = bound_piece(layer), schedule.latency_s
        if plain_s >= exact_s * (1.0 - EQUAL):
            # The plain bound meets the schedule: proven, without an integer program.
            cache[key] = exact_s, exact_s, exact_s
        else:
            cache[key] = plain_s, *confirm_schedule(layer, schedule, plain_s, settings)
    return cache[key]
