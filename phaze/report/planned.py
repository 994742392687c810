"""Which architectures are planned on by all planners, and which by that of the study alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from phaze.report.inputs import Cluster
from phaze.report.winners import candidates, choose, own_hbm, rank, with_areas
from phaze.spec.noun import Noun

Chip = tuple[str, float]
"""An architecture and its HBM in GiB."""


@dataclass(frozen=True)
class Chips:
    """Architectures to plan on."""

    compared: tuple[Chip, ...]
    """By all planners: the best for the model, the common one and the baseline."""
    others: tuple[Chip, ...]
    """By the planner of the study: those ranked among the best by Phaze's, and the named ones."""


class Choice(Noun):
    """What of a study says which they are."""

    baseline: str | None
    """Name of the baseline."""
    named: tuple[str, ...]
    """All named architectures."""
    hbm_gib: dict[str, float]
    """HBM of the named architectures that have one of their own."""
    best: int
    """How many of the best are ranked."""
    tolerance: float
    """Distance from the best throughput within which the smallest HBM is chosen."""


def choose_chips(cluster: Cluster, choice: Choice) -> Chips:
    """Return what to plan on for a cluster that holds one model, each with the HBM that results give it."""
    mine = candidates(cluster)
    common = () if cluster.common is None else (cluster.common,)
    baseline = () if choice.baseline is None else (choice.baseline,)
    compared = _each_once(_chips([choose(mine, choice.tolerance)]), common, _named(cluster, choice, baseline))
    ranked = rank(mine, choice.best, choice.tolerance)
    best = [] if ranked is None else [row for _, row in ranked.iterrows()]
    others = _each_once(_chips(best), _named(cluster, choice, choice.named))
    return Chips(compared, tuple(chip for chip in others if chip not in compared))


def _named(cluster: Cluster, choice: Choice, names: Iterable[str]) -> Iterator[Chip]:
    """Yield named architectures with the HBM that is theirs, or that is chosen."""
    placed = cluster.placements[cluster.placements["planner"] == "phaze"]
    for name in names:
        rows = own_hbm(placed[placed["architecture"] == name], choice.hbm_gib)
        yield from _chips([choose(with_areas(cluster, rows), choice.tolerance)])


def _chips(rows: Iterable[pd.Series | None]) -> Iterator[Chip]:
    for row in rows:
        if row is not None:
            yield str(row["architecture"]), float(row["hbm_gib"])


def _each_once(*groups: Iterable[Chip]) -> tuple[Chip, ...]:
    return tuple(dict.fromkeys(chip for group in groups for chip in group))
