"""Map the stages of a partition to the devices of any network."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.units import percent
from phaze.commands import options
from phaze.commands.output import refuse_as_picture, refuse_outputs, refuse_table, telling
from phaze.spec.names import InstantiationChoice

if TYPE_CHECKING:
    from phaze.base.deadline import Deadline
    from phaze.cost.network.device_networks import DeviceNetwork
    from phaze.map.ensemble import Mapped, MappingCandidate, MapSettings
    from phaze.spec.mapping import StoredMapping, StoredSearch
    from phaze.spec.training_plan import TrainingPlan


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Options of `phaze map`: stages, network and search settings."""

    context: typer.Context
    stages: Annotated[Path, typer.Argument()]
    """Stages written by `phaze partition`, or a plan of `phaze plan -o` or `phaze place -o`."""
    topology: str | None = None
    """Network: a topology of config/topologies, or a matrix or graph of bandwidths (.csv, .json or .graphml).
    Default for a plan of `phaze plan`: its own system."""
    out: Annotated[Path | None, typer.Option("-o", "--out")] = None
    """File for the mapping. Default: print a summary."""
    instantiation: InstantiationChoice = "ensemble"
    """Stage time that the search minimises: messages (p2p), all-reduce, or both (exact). auto: messages or
    all-reduce, whichever moves more bytes. authors: the better result of these two. ensemble: all three
    and a local search; the shortest step wins."""
    seed: Annotated[int, typer.Option(min=0, max=2**62)] = 0
    """Seed of all random numbers."""
    heuristics: Annotated[bool, typer.Option("--heuristics/--no-heuristics")] = True
    """Allow CS and p2p map as the answer, and as starting bounds of the searches."""
    tries: Annotated[int, typer.Option(min=1, max=2**62)] = 4_000_000
    """Devices tried for one target time before it is given up."""
    steps: Annotated[int, typer.Option(min=0, max=2**40)] = 1_000_000
    """Steps of every chain of the local search."""
    time_limit_s: Annotated[float, typer.Option("--time-limit", min=0)] = math.inf
    """Time limit of the whole command in seconds. With a limit, results may differ from run to run and bounds
    are looser. Default: none."""
    memory_gib_per_s: Annotated[float, typer.Option(min=1e-09)] = math.inf
    """Memory bandwidth of the optimizer update in GiB/s. Default: the update takes no time."""
    times: Path | None = None
    """File for the seconds spent by every method (JSON)."""
    picture: Path | None = None
    """Picture of the mapping next to CS and p2p map (.svg, .png or .pdf): bandwidths, with devices in the
    order of replicas and stages."""
    as_json: options.JsonOption = False


@options.takes(MapOptions)
def map_stages(request: MapOptions) -> None:
    """Map stages or a plan to the devices of a network.

    The file contains the devices of all stages and replicas, the simulated step, the longest stage time with
    its lower bound and whether it is proven optimal, and the result of each method next to CS and p2p map.
    For a plan of `phaze plan` the file contains the device of every rank, and the price of the step before
    and after.
    """
    from phaze.base.deadline import Deadline

    # The limit is for the whole command, so its clock starts before imports and reads.
    until = Deadline(request.time_limit_s)
    refuse_as_picture(request.picture)
    refuse_table("map", request.stages)
    reads = [request.stages, *([] if request.topology is None else [topology_path(request.topology)])]
    refuse_outputs(request.times, request.out, request.picture, reads=reads)
    options.readable(request.stages)
    if request.topology is not None:
        options.readable(topology_path(request.topology))

    from phaze.base.errors import PhazeError
    from phaze.base.files import write_text
    from phaze.base.units import GIB
    from phaze.map.ensemble import MapSettings
    from phaze.map.networks import read_topology
    from phaze.map.search import SearchLimits
    from phaze.spec.documents import text_of, write_document

    settings = MapSettings(
        request.instantiation, request.seed, request.heuristics,
        SearchLimits(request.tries, request.time_limit_s), request.steps,
        memory_bytes_per_s=request.memory_gib_per_s * GIB,
    )  # fmt: skip
    with telling("map"):
        planned = _training_plan(request.stages)
        if planned is not None:
            stored, mapped, best = _map_ranks(planned, request.topology, settings, until)
        elif request.topology is None:
            raise PhazeError("map: --topology is missing; only a plan of `phaze plan` is mapped without it")
        else:
            network = read_topology(topology_path(request.topology))
            stored, mapped, best = _map_stages(request, request.topology, network, settings, until)
    if request.times is not None:
        write_text(request.times, json.dumps(mapped.seconds, indent=1) + "\n")
    if request.out is not None:
        write_document(stored, request.out)
    if request.picture is not None:
        _write_picture(mapped, best, request.picture)
    typer.echo(text_of(stored) if request.as_json else _summary(stored), nl=False)


def _map_stages(
    request: MapOptions, topology: str, network: DeviceNetwork, settings: MapSettings, until: Deadline
) -> tuple[StoredMapping, Mapped, MappingCandidate]:
    from phaze.map.ensemble import map_stages as find_mapping
    from phaze.map.ensemble import stored_mapping
    from phaze.spec.documents import read_as
    from phaze.spec.stages import StoredStages
    from phaze.workload.operator_graphs import stage_graph

    stored = read_as(StoredStages, request.stages)
    mapped = find_mapping(stage_graph(stored), network, settings, until)
    return stored_mapping(mapped, stored.model, topology, settings), mapped, mapped.best


def _training_plan(file: Path) -> TrainingPlan | None:
    """Plan written by `phaze plan`; None if the file contains something else."""
    from phaze.spec.documents import read_as
    from phaze.spec.plain import read_json
    from phaze.spec.training_plan import TrainingPlan

    content = read_json(file)
    is_one = isinstance(content, dict) and content.get("format") == "phaze-plan"
    return read_as(TrainingPlan, file) if is_one else None


def _map_ranks(
    planned: TrainingPlan, topology: str | None, settings: MapSettings, until: Deadline
) -> tuple[StoredMapping, Mapped, MappingCandidate]:
    from phaze.cost.network.fabric import network_of
    from phaze.map.ensemble import stored_mapping
    from phaze.map.networks import check_devices, device_network, read_topology, refuse_speeds
    from phaze.map.rank_maps import map_ranks
    from phaze.spec.systems import sized

    question = planned.question
    if topology is not None:
        devices = network = read_topology(topology_path(topology))
        refuse_speeds(network, topology)
        rank_map = map_ranks(planned, devices, network, settings, until)
    else:
        cluster = sized(question.stored_machine().cluster, question.devices, question.system)
        check_devices(cluster.devices, question.system)
        rank_map = map_ranks(planned, device_network(cluster), network_of(cluster), settings, until)
    name = topology or str(question.system)
    stored = stored_mapping(rank_map.mapped, question.model.name, name, settings, rank_map.best)
    return stored.model_copy(update={"ranks": rank_map.stored()}), rank_map.mapped, rank_map.best


def _write_picture(mapped: Mapped, best: MappingCandidate, path: Path) -> None:
    import pandas as pd

    from phaze.map.study import device_rows
    from phaze.pages.vega import save
    from phaze.report.plan_figures import mappings

    # A heuristic that is also the answer is drawn once.
    shown = {mapping.method: mapping for mapping in (best, *mapped.heuristics)}
    devices = pd.DataFrame([row for mapping in shown.values() for row in device_rows(mapping)])
    save(path, mappings(mapped.problem.network, devices, width=220))


def topology_path(topology: str) -> Path:
    """Path of a topology file, given its name or path."""
    from phaze.spec.files import FOLDER, named_file

    path = Path(topology)
    return path if path.suffix else named_file("topology", topology, FOLDER / "topologies")


def _summary(stored: StoredMapping) -> str:
    """Text summary of a mapping."""
    proof = "proven optimal" if stored.proven else f"no mapping below {stored.bound_s:.6g} s"
    times: dict[str, str] = {}
    if stored.ranks is not None:
        times = {method.name: f"price {method.time_s:.6g} s, " for method in stored.ranks.times}
    # Without heuristics as answers they are still shown for comparison.
    methods = stored.ways + tuple(method for method in stored.heuristics if method not in stored.ways)
    lines = [
        *_rank_lines(stored),
        f"step {stored.step_time_s:.6g} s with the mapping of {stored.found_by}",
        f"without communication {stored.compute_s:.6g} s",
        f"longest stage time {stored.objective_s:.6g} s, {proof}",
        *(
            f"{method.name}: {times.get(method.name, '')}step {method.step_time_s:.6g} s{_proof(method)}"
            for method in methods
        ),
    ]
    return "\n".join(lines) + "\n"


def _rank_lines(stored: StoredMapping) -> list[str]:
    ranks = stored.ranks
    if ranks is None:
        return []
    widths = f"pp {len(stored.mapping)} and dp {len(stored.mapping[0])}"
    units = f"units of {ranks.unit} devices" if ranks.unit > 1 else "single devices"
    saved = 1 - ranks.time_s / ranks.default_s
    less = f"{percent(saved, 2)} less than the" if saved > 0 else "as with the"
    return [
        f"{stored.model} on {stored.topology}: {widths} on {units}",
        f"{ranks.time_s:.6g} s a step, {less} {ranks.default_s:.6g} s in the runtime's own order",
        "Under the GPipe model of the search:",
    ]


def _proof(method: StoredSearch) -> str:
    """Format a mapping method's longest stage time and its lower bound; empty if there is no result."""
    if method.objective_s is None:
        return ""
    proof = "proven optimal" if method.proven else f"none below {method.bound_s:.6g} s"
    return f", longest stage time under its own cost model {method.objective_s:.6g} s, {proof}"
