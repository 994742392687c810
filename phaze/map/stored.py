"""From what is found to files of mappings."""

from __future__ import annotations

from dataclasses import dataclass

from phaze.map.ensemble import Candidate, Mapped, MapSettings
from phaze.pipeline.gpipe import simulate_step
from phaze.spec.mapping import StoredMapping, StoredSearch


@dataclass(frozen=True)
class About:
    """What a mapping is of."""

    model: str
    topology: str
    """As the user names it."""
    settings: MapSettings


def stored_mapping(mapped: Mapped, about: About, chosen: Candidate | None = None) -> StoredMapping:
    """Return the file of what was found, with the mapping that is chosen: unless given, the best."""
    best, problem = chosen or mapped.best, mapped.problem
    memory_bytes_per_s = about.settings.memory_bytes_per_s
    step = simulate_step(problem.stages, best.mapping, problem.network, memory_bytes_per_s)
    value = problem.value_s(best.mapping)
    last = step.critical_stage
    return StoredMapping(
        format="phaze-mapping",
        version=1,
        model=about.model,
        topology=about.topology,
        devices=problem.network.devices,
        mapping=tuple(tuple(row) for row in best.mapping.tolist()),
        found_by=best.way,
        step_time_s=step.step_s,
        pipeline_s=step.pipeline_s,
        all_reduce_s=float(step.all_reduce_s[last]),
        update_s=float(step.update_s[last]),
        compute_s=step.compute_s,
        objective_s=value,
        bound_s=min(mapped.bound_s, value),
        proven=mapped.bound_s >= value * (1 - 2e-9),
        seed=about.settings.seed,
        ways=tuple(_stored_way(one) for one in mapped.ways),
        heuristics=tuple(_stored_way(one) for one in mapped.heuristics),
    )


def _stored_way(one: Candidate) -> StoredSearch:
    found = one.found
    if found is None:
        return StoredSearch(name=one.way, step_time_s=one.step_s)
    return StoredSearch(
        name=one.way,
        step_time_s=one.step_s,
        objective_s=found.value_s,
        bound_s=found.bound_s,
        proven=found.proven,
        searched=found.searched,
        gave_up=found.stopped,
        timed_out=found.timed_out,
        tries=found.tries,
    )
