"""On how few whole nodes a model can be trained, with the bound that rules out fewer."""

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
"""Of a parameter at least: no cluster with less memory in all holds the model."""
ENOUGH = 0.5
"""Share of the step by which a better plan may be missed: any plan that fits will do."""


def fewest(asked: AskedPlan, folder: Path = FOLDER) -> FewestNodes:
    """Smallest number of whole nodes, of at most the devices asked for, on which some layout fits.

    Numbers are tried upwards, so that each smaller one is ruled out by its own bound. Raises PhazeError where
    the model fits on none of them.
    """
    cluster, device = load_cluster(asked.system, folder)
    node, smaller = min(cluster.levels[0].devices, asked.devices), dict[str, object]()
    least = asked.model.parameters * WEIGHT_BYTES / (device.hbm_gib * GIB * node)
    for nodes in range(max(ceil(least), 1), asked.devices // node + 1):
        question = question_of(asked.model_copy(update={"devices": nodes * node}), folder)
        found = plan_layouts(question.ranked(asked.rank), asked.fixed, gap=ENOUGH, wanted=1)
        if found.plans:
            return FewestNodes.parse({"nodes": nodes, "devices": nodes * node, **smaller}, "plan: --fewest")
        smaller = _ruled_out(found) | {"smaller": nodes}
    raise PhazeError(
        f"plan: --fewest: {asked.model.name} fits on no number of nodes up to {asked.devices} devices"
    )


def _ruled_out(found: LayoutPlans) -> dict[str, object]:
    """Why a number of nodes is too small: what every layout lacks, and how many are undecided.

    Those that another one dominates need no less memory than that one.
    """
    undecided = found.certificate.bounded["layout"]
    lacking_gib = None if found.closest is None else found.closest[2] / GIB
    return {"undecided": undecided, "lacking_gib": lacking_gib}
