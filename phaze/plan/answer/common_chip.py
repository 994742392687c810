"""Search for the chip with the least geometric mean of the scores of several models.

A score is relative to the best chip of its model. The mean of the models' bounds on a chip bounds its mean.
Groups of chips (`bounds.chips`) are taken by increasing bound. A search over the layouts of each model on the
envelope of a group excludes all of its chips at once, if one of the models would have to be faster than any
layout on it for a mean below the best one. Otherwise the group is split, down to single chips, on which all
models are planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.progress import busy
from phaze.plan.answer.model_chips import ModelChips
from phaze.plan.bounds.chips import ChipGroup, groups_of
from phaze.plan.time_limit import TimeLimit

MOST = 1e9
"""Largest relative score, for chips on which a model does not fit."""


@dataclass(frozen=True, eq=False)
class CommonChip:
    """Branch and bound over chips for several models, whose own searches are finished."""

    models: Sequence[ModelChips]
    gap: float
    """Relative gap to the best mean at which the search ends."""
    limit: TimeLimit

    @property
    def _logs(self) -> Floats:
        """Logarithms of the lower bounds on the relative scores of each model on every chip, (M, D)."""
        bounds = [model.search.bounds / model.best_score for model in self.models]
        logs: Floats = np.log(np.minimum(bounds, MOST))
        return logs

    @property
    def bounds(self) -> Floats:
        """Lower bound on the geometric mean of relative scores on every chip, (D,)."""
        means: Floats = np.exp(self._logs.mean(axis=0))
        return means

    def mean(self, place: int) -> float:
        """Geometric mean of the relative scores of the best plans on a chip."""
        scores = [min(model.on_chip(place).score / model.best_score, MOST) for model in self.models]
        return float(np.exp(np.log(scores).mean()))

    def search(self, first: Iterable[int]) -> dict[int, float]:
        """Find the mean of the first chips, and of all others that no bound excludes.

        A bound excludes a chip if its mean is at most by the gap below the best one.
        """
        means = {place: self.mean(place) for place in first}
        devices = self.models[0].search.chips
        queue = groups_of(devices)
        with busy("all models"):
            while queue and not self.limit.reason:
                bounds, target = self.bounds, min(means.values()) * (1 - self.gap)
                queue.sort(key=lambda group: -bounds[list(group.places)].min())
                group = queue.pop()
                if bounds[list(group.places)].min() >= target:
                    break
                if self._excludes(group, target):
                    continue
                if len(group.places) > 1:
                    queue += group.parts(devices)
                else:
                    means[group.places[0]] = self.mean(group.places[0])
        return means

    def _excludes(self, group: ChipGroup, target: float) -> bool:
        """True if the bounds of the models, raised one after the other, exclude means below a target."""
        at = list(group.places)
        for number, model in enumerate(self.models):
            logs = self._logs[:, at]
            # The score that this model needs on each chip, if the others have their bounds.
            needed = np.exp(len(self.models) * np.log(target) - np.delete(logs, number, axis=0).sum(axis=0))
            if len(at) > 1:
                model.search.exclude(group, needed * model.best_score)
            else:
                model.on_chip(at[0])
            if self.bounds[at].min() >= target:
                return True
        return False
