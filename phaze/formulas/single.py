"""Single plan of a study: select it from the study's files, replay it and summarise it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.base.units import GIB, percent, signed
from phaze.cost.network.fabric import fabric
from phaze.formulas.networked import NetworkReplay, replay_on
from phaze.formulas.replay import read_plan, replay, simulated_stages, simulation_row
from phaze.pipeline.trace import stage_memory
from phaze.plan.plan import Plan
from phaze.plan.pricing.price import Price
from phaze.spec.network import Matrix
from phaze.spec.questions import PlanFilter
from phaze.spec.system import Cluster, System
from phaze.tables import PLANNERS, Plans, PlanStages
from phaze.tables.plans import PLAN

Row = dict[str, object]

FACTOR = (
    "Gradients: a planner with a flush charges the longest exchange of any stage after the batch, or that of "
    "the first; Piper charges every stage 4 (d - 1)/d of its weights. The simulator counts 2 (d - 1)/d in "
    "each direction, both at once, for every stage, while the stages before it still work."
)


@dataclass(frozen=True, eq=False)
class SimulatedPlan:
    """Plan read from a study's table, with its price from a simulation."""

    plan: pd.Series
    price: Price

    def as_row(self) -> Row:
        """Rows of tables simulations and simulation_stages, and the memory of stages over time."""
        hbm_bytes = float(self.plan["hbm_gib"]) * GIB
        key: Row = {name: self.plan[name] for name in PLAN}
        return {
            **key,
            **simulation_row(self.price),
            **self._busiest(),
            "stages": list(simulated_stages(self.price, hbm_bytes)),
            "memory": [
                {"stage": stage, "time_s": profile.time_s.tolist(), "bytes": profile.bytes_.tolist()}
                for stage, profile in stage_memory(self.price.timeline).items()
            ],
        }

    def in_words(self) -> str:
        """Summary of the simulated plan in plain text."""
        lines = [self.which(), self._times(), self._shares(), *self._links(), *self._stages(), FACTOR]
        return "\n".join(lines)

    def _busiest(self) -> Row:
        """Busiest link of the network and its utilisation; empty for a flat network."""
        if not isinstance(self.price, NetworkReplay):
            return {}
        topology, share = self.price.carried.topology, self.price.carried.utilisation
        link = topology.links[int(share.argmax())]
        return {
            "network": topology.name,
            "busiest_link": [link.source, link.target],
            "busiest_link_share": float(share.max(initial=0.0)),
        }

    def _links(self) -> list[str]:
        if not isinstance(self.price, NetworkReplay):
            return []
        topology, share = self.price.carried.topology, self.price.carried.utilisation
        used, busiest = share[share > 0], topology.links[int(share.argmax())]
        mean = used.mean() if len(used) else 0.0
        line = (
            f"{topology.name}: {len(used):,} of {len(share):,} links carry traffic, on average "
            f"{percent(mean)} of their capacity; the busiest, from node {busiest.source} to "
            f"{busiest.target}, {percent(share.max(initial=0.0))}"
        )
        return [line]

    def which(self) -> str:
        """One-line description of the plan."""
        plan = self.plan
        return (
            f"{plan['model']} on {plan['architecture']}, {plan['hbm_gib']:g} GiB, planned by "
            f"{plan['planner']}: t = {plan['tensor']}, d = {plan['data']}, s = {plan['stages']}, "
            f"microbatch {plan['microbatch']}, {plan['schedule']}"
        )

    def _times(self) -> str:
        planned, simulated = self.price.plan.planned_s, self.price.time_s
        longer = simulated / planned - 1
        return f"planned {planned:.4g} s per batch, simulated {simulated:.4g} s ({signed(longer)})"

    def _shares(self) -> str:
        row = simulation_row(self.price)
        return (
            f"{self.price.samples_per_s:,.4g} samples/s; compute {_share(row, 'compute_share')}, exposed "
            f"communication {_share(row, 'exposed_communication_share')}, bubbles "
            f"{_share(row, 'bubble_share')}; HBM {_share(row, 'hbm_share')} of what it could move; bound "
            f"by {self.price.bound_by}"
        )

    def _stages(self) -> list[str]:
        rows = simulated_stages(self.price, float(self.plan["hbm_gib"]) * GIB)
        return [
            f"stage {row['stage']}: layers {stage.first_layer} to {stage.last_layer}, d = {stage.layout.dp}, "
            f"t = {stage.layout.tp}, busy {_share(row, 'busy_share')}, HBM {_share(row, 'hbm_share')}, "
            f"{_link_words(row)}{row['in_flight']} in flight, {float(str(row['peak_bytes'])) / GIB:.3g} GiB"
            for row, stage in zip(rows, self.price.plan.stages, strict=True)
        ]


def simulate_file(
    path: Path, plan_filter: PlanFilter, network: System | Cluster | Matrix | None = None
) -> SimulatedPlan:
    """Replay a plan from a study's file: results/plans/<scenario>/<model>.parquet or report/plans.parquet.

    By default it is simulated on the flat network that its planner assumed. Raises PhazeError for another
    flat network, which the plan has no data for.
    """
    row, stages = read_wanted(path, plan_filter)
    if isinstance(network, System):
        _refuse_other_flat(row, network)
        network = None
    return replay_one(row, stages, network)


def _refuse_other_flat(row: pd.Series, network: System) -> None:
    for name in ("network_bandwidth_bytes_per_s", "hbm_bandwidth_bytes_per_s"):
        if getattr(network, name) != row[name]:
            raise PhazeError(
                f"simulate: --system: {name} is {getattr(network, name):g}, but the plan was made for "
                f"{row[name]:g}",
                "omit --system, or name a system with levels or a matrix of bandwidths",
            )


def read_wanted(path: Path, plan_filter: PlanFilter) -> tuple[pd.Series, pd.DataFrame]:
    """Read the fastest matching plan from a file, and the table plan_stages that belongs to the file."""
    _refuse_absent(path)
    plans, stages_path = Plans.load(path), stages_beside(path)
    _refuse_absent(stages_path)
    return _choose(plans, plan_filter, path), PlanStages.load(stages_path)


def _choose(plans: pd.DataFrame, plan_filter: PlanFilter, path: Path) -> pd.Series:
    """Fastest matching plan; PhazeError if none matches."""
    matching = plans
    for name in PLAN:
        value = getattr(plan_filter, name)
        if value is not None:
            values = sorted(matching[name].unique().tolist())
            matching = matching[matching[name] == value]
            if matching.empty:
                options = ", ".join(map(str, values)) or "none"
                raise PhazeError(f"{path}: has no plan with {name} {value}; allowed: {options}")
    placed = matching[matching["status"] == "placed"]
    if placed.empty:
        reason = f": {matching['reason'].iloc[0]}" if len(matching) else ""
        raise PhazeError(f"{path}: has no feasible plan of those asked for{reason}")
    # Of equal times the planner that comes first in the table wins, so that answers are repeatable.
    ranked = placed.assign(rank=placed["planner"].map(PLANNERS.index))
    return ranked.sort_values(["time_per_sample_s", "rank", *PLAN]).drop(columns="rank").iloc[0]


def plan_of(row: pd.Series, stages: pd.DataFrame) -> Plan:
    """Build the plan from a row of table `plans`; `stages` may include other plans' rows."""
    plan_stages = stages[(stages[list(PLAN)] == row[list(PLAN)]).all(axis=1)]
    return read_plan(row, plan_stages)


def replay_one(
    row: pd.Series, stages: pd.DataFrame, network: Cluster | Matrix | None = None
) -> SimulatedPlan:
    """Replay a row of table `plans`; `stages` may include other plans' rows."""
    plan = plan_of(row, stages)
    price = replay(plan) if network is None else replay_on(plan, fabric(network, plan.devices))
    return SimulatedPlan(row, price)


def _refuse_absent(path: Path) -> None:
    if path.is_dir() or path.suffix != ".parquet":
        raise PhazeError(f"{path}: must be a .parquet file with plans of a study")
    if not path.is_file():
        raise PhazeError(f"{path}: file does not exist; a study writes results/plans and plan_stages")


def _link_words(row: Mapping[str, object]) -> str:
    """Format the link utilisation of a stage's devices, in total and by kind; empty if it is unknown."""
    if "link_share" not in row:
        return ""
    kinds = ("slices", "stages", "replicas")
    parts = ", ".join(f"{kind} {_share(row, f'{kind}_link_share')}" for kind in kinds)
    return f"links {_share(row, 'link_share')} ({parts}), "


def stages_beside(path: Path) -> Path:
    """Path of the table plan_stages that belongs to a file of plans."""
    scenario = path.absolute().parent
    if path.name == "plans.parquet" or scenario.parent.name != "plans":
        return path.parent / "plan_stages.parquet"
    return scenario.parents[1] / "plan_stages" / scenario.name / path.name


def _share(row: Mapping[str, object], name: str) -> str:
    """Format a share of a row as a percentage."""
    return percent(float(str(row[name])))
