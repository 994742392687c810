"""Map the stages of a partition to the devices of any network."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from phaze.commands import map_options as given
from phaze.commands import options
from phaze.commands.output import refuse_as_picture, refuse_unwritable

if TYPE_CHECKING:
    from phaze.map.ensemble import Mapped
    from phaze.spec.mapping import StoredMapping, StoredSearch
    from phaze.theory.device_networks import DeviceNetwork


def map_stages(
    stages: given.StagesArgument,
    topology: given.TopologyOption,
    out: given.OutOption = None,
    instantiation: given.InstantiationOption = given.Choice.ENSEMBLE,
    seed: given.SeedOption = 0,
    heuristics: given.HeuristicsOption = True,
    tries: given.TriesOption = 4_000_000,
    steps: given.StepsOption = 1_000_000,
    time_limit_s: given.TimeLimitSOption = math.inf,
    memory_gib_per_s: given.MemoryGibPerSOption = math.inf,
    times: given.TimesOption = None,
    picture: given.PictureOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Map the stages of a partition to the devices of a network, for a short training step.

    The file holds the devices of all stages and replicas, the simulated step, the longest stage time with its
    bound and whether it is proven to be the least, what each way to map found, and CS and p2p map beside it.
    """
    from phaze.documents import read_as, text_of, write_document
    from phaze.files import write_text
    from phaze.map.ensemble import MapSettings
    from phaze.map.ensemble import map_stages as find_mapping
    from phaze.map.matrices import read_topology
    from phaze.map.search import Limits
    from phaze.map.stored import stored_mapping
    from phaze.spec.stages import StoredStages
    from phaze.theory.stored_graphs import stage_graph
    from phaze.units import GIB

    refuse_as_picture(picture)
    refuse_unwritable(times, out, picture)
    stored = read_as(StoredStages, stages)
    settings = MapSettings(
        instantiation.value, seed, heuristics, Limits(tries, time_limit_s), steps,
        memory_bytes_per_s=memory_gib_per_s * GIB,
    )  # fmt: skip
    network = read_topology(_topology_path(topology))
    mapped = find_mapping(stage_graph(stored), network, settings)
    found = stored_mapping(
        mapped,
        model=stored.model,
        topology=topology,
        seed=seed,
        memory_bytes_per_s=settings.memory_bytes_per_s,
    )
    if times is not None:
        write_text(times, json.dumps(mapped.seconds, indent=1) + "\n")
    if out is not None:
        write_document(found, out)
    if picture is not None:
        _write_picture(mapped, network, picture)
    typer.echo(text_of(found) if as_json else _summary(found), nl=False)


def _write_picture(mapped: Mapped, network: DeviceNetwork, path: Path) -> None:
    import pandas as pd

    from phaze.map.cases import device_rows
    from phaze.report.maps.figures import mappings
    from phaze.report.style import save

    shown = {one.way: one for one in (mapped.best, *mapped.heuristics)}
    devices = pd.DataFrame([row for one in shown.values() for row in device_rows(one)])
    save(path, lambda: mappings(network, devices))


def _topology_path(topology: str) -> Path:
    """Return the file of a topology given by name or by path."""
    from phaze.spec.files import FOLDER, named_file

    path = Path(topology)
    return path if path.suffix else named_file("topology", topology, FOLDER / "topologies")


def _summary(found: StoredMapping) -> str:
    """Return what a reader wants to know first."""
    proof = "proven the least" if found.proven else f"no mapping below {found.bound_s:.6g} s"
    known = found.ways + tuple(one for one in found.heuristics if one not in found.ways)
    lines = [
        f"step {found.step_time_s:.6g} s, found by {found.found_by}",
        f"without communication {found.compute_s:.6g} s",
        f"longest stage time {found.objective_s:.6g} s, {proof}",
        *(f"{one.name}: step {one.step_time_s:.6g} s{_proof(one)}" for one in known),
    ]
    return "\n".join(lines) + "\n"


def _proof(one: StoredSearch) -> str:
    """Return the least longest stage time that a way searched for, as far as it is known."""
    if one.objective_s is None:
        return ""
    known = "proven the least" if one.proven else f"none below {one.bound_s:.6g} s"
    return f", longest stage time as it counts {one.objective_s:.6g} s, {known}"
