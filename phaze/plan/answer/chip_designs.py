"""Table of all designs among which a chip was chosen: sizes, area, and how good each is or can be at best."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.progress import counted
from phaze.plan.answer.chip_choice import ChipChooser
from phaze.plan.answer.model_chips import ModelChips
from phaze.spec.architecture import GRID_SIZES, Architecture

COLUMNS = (*GRID_SIZES, "hbm_gib", "area_mm2")
"""Sizes of a design in the table."""
CELL = ["pe_x", "pe_y", "glb_mib"]
"""Sizes of which every combination has a design with a plan, if any fits."""
MOST_PRICED = 1000
"""Maximum number of designs that get a plan without a search: the layout of the best plan."""


def designs_of(chooser: ChipChooser) -> pd.DataFrame:
    """Every design with its lower bounds on step time and score, and both of a plan where there is one.

    Times and scores are relative to the best that is known for each model, in the geometric mean over the
    models. A plan is that of a search or, on up to `MOST_PRICED` promising designs, the layout of the model's
    best plan. Without a plan of each model, its time and score are missing.
    """
    designs = sizes_of(chooser.chips)
    for model in chooser.models:
        model.search.bound_each()
    bounds = np.sum([np.log(model.search.bounds) for model in chooser.models], axis=0)
    places = promising(designs, bounds)
    # (2, M, D): times and scores
    plans = np.stack([plans_on(model, places) for model in chooser.models], axis=1)
    least = np.array([[getattr(m.search, name) for m in chooser.models] for name in ("bounds_s", "bounds")])
    best = np.nanmin(plans, axis=2, keepdims=True)
    means = np.exp(np.log([plans / best, np.fmin(plans, least) / best]).mean(axis=2))
    for row, name in enumerate(("time", "score")):
        designs[name], designs[f"{name}_bound"] = means[0, row], means[1, row]
    return designs


def sizes_of(chips: Sequence[Architecture]) -> pd.DataFrame:
    """Name, sizes, HBM and area of every design."""
    designs = pd.DataFrame([{name: getattr(chip, name) for name in COLUMNS} for chip in chips])
    designs.insert(0, "name", [chip.name for chip in chips])
    return designs


def promising(designs: pd.DataFrame, bounds: Floats) -> list[int]:
    """Indices of designs to try: the best bound of every cell, then others, at most `MOST_PRICED`."""
    ordered = designs.assign(bound=bounds).sort_values("bound", kind="stable")
    first = ordered.drop_duplicates(CELL).index
    return [*first, *ordered.index.difference(first, sort=False)][:MOST_PRICED]


def plans_on(model: ModelChips, places: Collection[int]) -> Floats:
    """Step time and score of the best known plan on every chip, NaN without one, (2, D).

    Chips of `places` are tried with the layout of the best plan.
    """
    plans = np.full((2, len(model.chips)), np.nan)
    for place, search in model.search.searches.items():
        if search.best_s < np.inf:
            plans[:, place] = search.best_s, model.search.score_on(place)
    same = ((place, model.with_best_layout(place)) for place in counted(places, "designs"))
    for place, evaluated in chain(model.evaluated.items(), same):
        if evaluated.priced is not None:
            plan = evaluated.priced.price.time_s, evaluated.score
            plans[:, place] = np.fmin(plans[:, place], plan)
    return plans
