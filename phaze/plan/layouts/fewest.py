"""Smallest number of whole nodes that can train a model, with bounds that rule out fewer."""

from __future__ import annotations

from math import ceil
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.plan.layouts.answer import question_of
from phaze.plan.layouts.found import LayoutPlans
from phaze.plan.layouts.search import plan_layouts
from phaze.spec.files import FOLDER
from phaze.spec.systems import load_cluster
from phaze.spec.training_plan import AskedPlan, FewestNodes

WEIGHT_BYTES = 2
"""Minimum bytes per parameter: a cluster with less total memory cannot store the model."""
ENOUGH = 0.5
"""Gap of the search: any plan that fits is good enough."""


def fewest(asked: AskedPlan, folder: Path = FOLDER) -> FewestNodes:
    """Smallest number of whole nodes, within the question's devices, on which some layout fits.

    Numbers are tried in increasing order, so that each smaller one is ruled out by its own bound. Raises
    PhazeError if the model fits on none of them.
    """
    cluster, device = load_cluster(asked.system, folder)
    node, smaller = min(cluster.levels[0].devices, asked.devices), dict[str, object]()
    least = asked.model.parameters * WEIGHT_BYTES / (device.hbm_gib * GIB * node)
    for nodes in range(max(ceil(least), 1), asked.devices // node + 1):
        question = question_of(asked.model_copy(update={"devices": nodes * node}), folder)
        found = plan_layouts(
            question.ranked(asked.rank), asked.fixed, gap=ENOUGH, wanted=1, named=f"nodes {nodes}: "
        )
        if found.plans:
            return FewestNodes.parse({"nodes": nodes, "devices": nodes * node, **smaller}, "plan: --fewest")
        smaller = _ruled_out(found) | {"smaller": nodes}
    raise PhazeError(
        f"plan: --fewest: {asked.model.name} fits on no number of nodes up to {asked.devices} devices"
    )


def _ruled_out(found: LayoutPlans) -> dict[str, object]:
    """Why this node count is too small: smallest memory shortfall, and number of undecided layouts.

    Dominated layouts need at least the memory of the layout that dominates them.
    """
    undecided = found.certificate.bounded["layout"]
    lacking_gib = None if found.closest is None else found.closest[2] / GIB
    return {"undecided": undecided, "lacking_gib": lacking_gib}
