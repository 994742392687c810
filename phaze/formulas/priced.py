"""Prices of a study's placements: a step with every pass, transfer and exchange, next to the formula's claim.

A placement has its stages and widths from a planner's formula. Its price is that of any plan on a chip
(`phaze plan --architecture`): the operators of each layer are scheduled on the cores, with attention as one
operator, and all microbatches pass the pipeline event by event (`plan.pricing.price`). Weights are in mixed
precision. The network is that of the scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd

from phaze.base.progress import counted
from phaze.base.units import GIB
from phaze.cost.space import as_architectures
from phaze.cost.vector import cycle_figures
from phaze.layout import Layout, Optimizer
from phaze.plan.machines import machine_of
from phaze.plan.pricing.lowering import Lowering, ModelTraining
from phaze.plan.pricing.price import KERNELS, Price, price
from phaze.spec.architecture import Technology
from phaze.spec.models import AnyModel
from phaze.spec.settings import Training
from phaze.spec.system import Device, Scenario, Stack
from phaze.tables import Placements, Simulations

Row = dict[str, object]


@dataclass(frozen=True, eq=False)
class PlacementPricing:
    """Prices of placements of a model, on chips of any architecture in the network of a scenario."""

    training: ModelTraining
    optimizer: Optimizer
    scenario: Scenario
    stack: Stack
    """Software stack, whose operators are scheduled."""
    vector_cycles: Mapping[tuple[str, str], float]
    """Cycles of vector operations by role and kind."""

    @classmethod
    def of(
        cls,
        model: AnyModel,
        sequence: int,
        scenario: Scenario,
        training: Training,
        stack: Stack,
        technology: Technology,
    ) -> Self:
        """Pricing under the settings of a study, with attention as one operator."""
        work = ModelTraining(
            model,
            sequence,
            scenario.global_batch,
            flash_attention=True,
            schedule=training.schedule,
        )
        return cls(work, training.optimizer, scenario, stack, cycle_figures(technology.vector_cycles, {}))

    def price(self, chip: pd.Series, placement: pd.Series, stages: pd.DataFrame) -> Price:
        """Price a row of table `placements`, with its rows of table `stages`, on a row of `architectures`."""
        (architecture,) = as_architectures(chip.to_frame().T)
        sized = architecture.model_copy(update={"hbm_gib": float(placement["hbm_gib"])})
        device = Device.of_architecture(sized, self.scenario, self.stack)
        machine = machine_of(self.scenario, device, self.stack, cycles=self.vector_cycles)
        layout = replace(
            Layout.of_key(str(placement["layout"])),
            dp=int(placement["data"]),
            pp=len(stages),
            recompute="full" if placement["recompute"] else "none",
            optimizer=self.optimizer,
        )
        rows = stages.sort_values("stage")
        cuts = [
            range(first, last + 1)
            for first, last in zip(rows["first_layer"], rows["last_layer"], strict=True)
        ]
        # A stage without tensor-parallel layers takes one device of a pipeline.
        layouts = [replace(layout, tp=int(devices)) for devices in rows["devices"]]
        lowering = Lowering(self.training.padded(layout), machine)
        return price(lowering.placed(cuts, layouts), machine)


def price_placements(
    pricing: PlacementPricing,
    placements: pd.DataFrame,
    stages: Sequence[pd.DataFrame],
    architectures: pd.DataFrame,
) -> pd.DataFrame:
    """Table `simulations`: the price of every placement, whose stages and architectures are in the tables.

    At most one placement by a planner on an architecture and HBM size is allowed. The first table with stages
    of a placement counts.
    """
    chips = architectures.drop_duplicates("architecture").set_index("architecture", drop=False)
    by_placement: dict[object, pd.DataFrame] = {}
    for table in reversed(stages):
        by_placement |= dict(list(table.groupby(list(Placements.keys))))
    rows = []
    for _, placement in counted(list(placements.iterrows()), "placement"):
        of_placement = by_placement[tuple(placement[name] for name in Placements.keys)]
        plan_price = pricing.price(chips.loc[placement["architecture"]], placement, of_placement)
        rows.append(
            {str(name): value for name, value in placement.items()} | simulation_row(plan_price, placement)
        )
    return Simulations.check(pd.DataFrame(rows, columns=list(Simulations.fields())))


def simulation_row(plan_price: Price, placement: pd.Series) -> Row:
    """Columns of table `simulations` that follow from the price of a placement."""
    peaks, bound, shares = plan_price.peak_bytes, plan_price.bound_by, plan_price.shares
    return {
        "schedule": plan_price.plan.schedule,
        "planned_s": placement["time_per_batch_s"],
        "simulated_s": plan_price.time_s,
        "samples_per_s": plan_price.samples_per_s,
        "passes_share": sum(shares[name] for name in KERNELS.values()),
        "communication_share": shares["pipeline transfers"] + shares["gradient synchronisation"],
        "update_share": shares["optimizer step"],
        "bubble_share": shares["pipeline bubble"],
        "peak_bytes": float(peaks.max()),
        "fullest_stage": int(np.argmax(peaks)),
        "fits": float(peaks.max()) <= placement["hbm_gib"] * GIB,
        "bound_by": bound.resource,
        "bound_stage": bound.group,
    }
