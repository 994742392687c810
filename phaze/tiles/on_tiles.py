"""Training of models in a pipeline of tile groups on one chip, with contention (PALM, V.B).

A stage is a number of layers on a group of tiles. Its samples are divided among N_d replicas of N_m
tensor-parallel ranks, which work on a microbatch together, or its operators are cut one by one. The tile
level (`steps`) defines the steps of a group. Here all groups run at the same time, in the order of the
schedule, over the links and memories of one chip.

A group is a virtual tile, because all of its tiles do the same; `traffic` has its messages. Every tile of a
stage sends the activation that it has to the tile at the same position in the next stage.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from phaze.base.errors import PhazeError
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import synchronising_groups
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.trace import job_rows
from phaze.pipeline.traffic import NetworkResult, Script, Sends, Turn, script, silent, simulate_script
from phaze.spec.models import AnyModel
from phaze.spec.tiled_study import TiledPoint
from phaze.tables import Table, TiledJobs, TiledLinks, TiledRuns
from phaze.tiles.chains import PalmLayers
from phaze.tiles.chip import Chip
from phaze.tiles.operators import Phase, communication_size
from phaze.tiles.runs import Row, TiledRun, runs_of
from phaze.tiles.stages import (
    as_needed,
    check_dram,
    dram_needed,
    in_flight,
    together_on_tiles,
)
from phaze.tiles.steps import StagePart, StageProgram, TileStage
from phaze.tiles.tile import SramStrategy, TileExecution
from phaze.tiles.traffic import TileTraffic, traffic_of

KINDS: dict[JobKind, StagePart] = {
    JobKind.FORWARD: "forward",
    JobKind.RECOMPUTE: "recompute",
    JobKind.BACKWARD: "backward",
    JobKind.LAST_SYNC: "sync",
    JobKind.UPDATE: "update",
    JobKind.GATHER: "gather",
}
PRESENT = 1e-12
"""Placeholder duration, in s, of a job whose steps are timed individually; 0 would omit the job."""


@dataclass(frozen=True, eq=False)
class TiledOutcome:
    """Result of a simulated run: batch times, SRAM strategies, and traffic on links and ports."""

    run: TiledRun
    chip: Chip
    traffic: TileTraffic
    strategies: tuple[SramStrategy, ...]
    """SRAM strategy of each stage."""
    recomputed: int
    """Number of stages that recompute their activations."""
    dram_bytes: float
    """Bytes of all stages that do not stay in SRAM."""
    layer_bytes: float
    """Bytes that a layer exchanges inside its stage in a batch, per tile."""
    carried: NetworkResult
    alone_s: float
    """Time of a batch without communication and memory accesses."""
    uncontended_s: float
    """Time of a batch without contention for links and ports."""

    @property
    def time_s(self) -> float:
        """Time of a batch."""
        return self.carried.time_s

    @property
    def samples_per_s(self) -> float:
        """Throughput; in inference without set-up and drain, as requests follow each other (PALM, V.A.3)."""
        run, timeline = self.run, self.carried.timeline
        if not run.inference or run.microbatches == 1:
            return run.samples / self.time_s
        left_s = np.sort(timeline.end_s[timeline.jobs.stage == run.stages - 1])
        return run.microbatch * (run.microbatches - 1) / float(left_s[-1] - left_s[0])

    @cached_property
    def row(self) -> Row:
        """Row of table `tiled_runs` without key columns: throughput, busy shares and the bottleneck.

        compute_share includes recomputation. model_share excludes it, and is relative to the peak of all
        tiles. A link is busy for PALM's occupancy of the NoC. bound_by is the resource with the largest busy
        share, or "pipeline" if no resource is busy for half of the time.
        """
        run, carried, time_s = self.run, self.carried, self.time_s
        work_s, topology = carried.work_s[: len(run.groups)], carried.topology
        links_s = carried.busy_s[self.traffic.links(topology)]
        dram_s = carried.busy_s[topology.buffers]
        busy = {"compute": work_s, "links": links_s, "dram": dram_s}
        most = {name: float(seconds.max(initial=0.0)) / time_s for name, seconds in busy.items()}
        longest = max(most, key=lambda name: most[name])
        return {
            "data": run.layout.dp,
            "stages": run.stages,
            "batch": run.samples,
            "time_s": time_s,
            "samples_per_s": self.samples_per_s,
            "alone_s": self.alone_s,
            "uncontended_s": self.uncontended_s,
            "compute_share": float(work_s.mean()) / time_s,
            "model_share": run.flops / (self.chip.peak_flops_per_s * time_s),
            "link_busy_s": float(links_s.mean()),
            "most_link_share": most["links"],
            "dram_share": float(dram_s.mean()) / time_s if dram_s.size else 0.0,
            "most_dram_share": most["dram"],
            "bound_by": longest if most[longest] >= 0.5 else "pipeline",
            "strategy": ",".join(dict.fromkeys(self.strategies)),
            "layer_bytes": self.layer_bytes,
            "sent_bytes": float(carried.sent_bytes.sum()),
            "received_bytes": float(carried.received_bytes.sum()),
            "recomputed": self.recomputed,
            "tile_bytes": float(carried.timeline.peak_bytes.max()),
            "dram_bytes": self.dram_bytes,
        }

    @property
    def link_rows(self) -> Iterator[Row]:
        """Links between tiles, as rows of table `tiled_links` without its key."""
        topology, place = self.carried.topology, self.traffic.place
        busy = self.carried.busy_s / self.time_s
        for number, link in enumerate(topology.links):
            source, target = place(link.source), place(link.target)
            if source is None or target is None:
                continue
            yield {
                "link": number,
                "source_row": int(source[0]),
                "source_column": int(source[1]),
                "target_row": int(target[0]),
                "target_column": int(target[1]),
                "bytes": float(self.carried.link_bytes[number]),
                "busy_share": float(busy[topology.resource_of[number]]),
            }


def simulate_on_tiles(chip: Chip, run: TiledRun) -> TiledOutcome:
    """Simulate a run with contention, without contention, and without communication and memory accesses."""
    programs = programs_of(chip, run)
    traffic = traffic_of(chip, run.groups)
    messages = script_of(run, programs, traffic)
    topology = traffic.topology
    return TiledOutcome(
        run,
        chip,
        traffic,
        tuple(program.strategy for program in programs),
        sum(program.execution.recompute for program in programs),
        dram_needed(programs),
        _layer_bytes(run, programs),
        simulate_script(messages, topology),
        simulate_script(silent(messages), topology, "none").time_s,
        simulate_script(messages, topology, "none").time_s,
    )


def script_of(run: TiledRun, programs: Sequence[StageProgram], traffic: TileTraffic | None = None) -> Script:
    """Build the script of a run: the jobs and messages that the network simulation executes.

    Default traffic: that of the chip's tiles.
    """
    traffic = traffic or traffic_of(programs[0].chip, run.groups)
    steps = [
        {
            part: turns_of(program, part, traffic) if part == "forward" or not run.inference else []
            for part in KINDS.values()
        }
        for program in programs
    ]
    pipeline = Pipeline(
        tuple(_cost(*pair) for pair in zip(programs, steps, strict=True)), run.microbatches,
        "inference" if run.inference else run.schedule,
        run.layout.vp, tensor=tuple(len(tiles) for tiles in run.groups),
    )  # fmt: skip
    sent = {
        (q, q + step): _sent_bytes(run, q, q + step)
        for q in range(run.stages)
        for step in ((1,) if run.inference else (-1, 1))
        if 0 <= q + step < run.stages
    }
    workers = len(run.groups)
    ports = {group: workers + k for k, group in enumerate(synchronising_groups(pipeline))}
    turns = {
        # Resources are numbered: workers of the groups first, then their synchronisation ports.
        (kind, ports.get(q % workers, -1) if kind == JobKind.LAST_SYNC else q % workers, q): parts[part]
        for q, parts in enumerate(steps)
        for kind, part in KINDS.items()
        if part == "forward" or not run.inference
    }
    return script(pipeline, Sends([traffic.nodes(tiles) for tiles in run.groups], sent, turns))


def _sent_bytes(run: TiledRun, source: int, target: int) -> float:
    """Bytes of the activations, or of their gradients, that all tiles of a stage receive from a neighbour."""
    return _passed_elements(run, source, target) * run.element_bytes * len(run.tiles_of(target))


def _passed_elements(run: TiledRun, source: int, target: int) -> float:
    """Elements that each tile of a stage receives from a neighbouring stage for a microbatch."""
    last_part = run.ranges[min(source, target)][-1]
    phase: Phase = "forward" if source < target else "backward"
    return run.chain.passed_elements(last_part, run.microbatch, run.layout_of(target), phase)


def programs_of(chip: Chip, run: TiledRun) -> list[StageProgram]:
    """Step program of each stage; raises `PhazeError` if they do not fit into the memory of the chip."""
    chunks = run.layout.vp
    if run.inference:
        stored: tuple[int, ...] = (1,) * run.stages
    else:
        stored = in_flight(run.stages, run.microbatches, run.schedule, chunks)
    execution = TileExecution(
        not run.inference, element_bytes=run.element_bytes, optimizer=run.optimizer,
        precision=run.layout.precision, zero=run.layout.zero,
        recompute=run.recompute == "always" and not run.inference, cached=run.decodes,
    )  # fmt: skip
    programs = together_on_tiles(
        [
            StageProgram(
                chip,
                TileStage(
                    run.tiles_of(q),
                    run.chain.cut(chip, parts, run.microbatch, run.layout_of(q), run.microbatches),
                    run.placed,
                ),
                execution._replace(in_flight=stored[q]),
                entering_elements=_passed_elements(run, q - 1, q) if q else None,
            )
            for q, parts in enumerate(run.ranges)
        ],
        chunks,
    )
    if run.recompute == "needed" and not run.inference:
        programs = as_needed(programs, chunks, 0.0 if chip.memory is None else run.dram_bytes)
    if chip.memory is not None:
        check_dram(programs, run.dram_bytes, chip.name)
    return programs


def _cost(program: StageProgram, turns: Mapping[StagePart, list[Turn]]) -> StageCost:
    """Cost of a stage for the schedule, with placeholder durations, because steps are timed one by one."""
    present = {part: PRESENT if part_turns else 0.0 for part, part_turns in turns.items()}
    fixed = zip(*((sizes.weights, sizes.gradients, sizes.optimizer) for sizes in program.sizes), strict=True)
    activations = program.held_bytes[1]
    if program.execution.recompute:
        stash = program.entering_bytes
    else:
        stash = sum(sizes.stash for sizes in program.sizes)
    return StageCost(
        present["forward"],
        present["backward"],
        present["recompute"] if program.execution.recompute else 0.0,
        sync_s=present["sync"],
        update_s=present["update"],
        gather_s=present["gather"],
        stash_bytes=stash,
        work_bytes=max(0.0, activations - program.execution.in_flight * stash),
        fixed_bytes=sum(sum(parts) for parts in fixed),
    )


def _layer_bytes(run: TiledRun, programs: Sequence[StageProgram]) -> float:
    """Bytes that a layer exchanges inside its stage in a batch, per tile (PALM, Equation 6), on average."""
    if isinstance(run.chain, PalmLayers):
        return communication_size(run.samples, run.chain.sequence, run.chain.hidden, run.layout)
    exchanged = sum(
        reduction.elements * run.element_bytes * (1 if reduction.phase == "update" else run.microbatches)
        for program in programs
        for share in program.shares
        for reduction in share.reductions
    )
    return exchanged / run.chain.layer_count


def turns_of(program: StageProgram, part: StagePart, traffic: TileTraffic) -> list[Turn]:
    """Simulated steps of one part of a stage, each with work, collectives and memory accesses."""
    tiles, turns = program.stage.tiles, []
    for step in program.steps(part):
        turns += [Turn(0.0, traffic.exchanged(tiles, step.before))] if step.before else []
        after, access = traffic.exchanged(tiles, step.after), traffic.accessed(tiles, step.access)
        turns.append(Turn(step.work_s, after, access))
    return turns


def simulate_point(case: str, point: TiledPoint, model: AnyModel, chip: Chip) -> dict[str, pd.DataFrame]:
    """Simulate a study point; returns its tables, with jobs and links only if its pipeline is shown.

    Raises `PhazeError` if the tile level does not support an operator of the model.
    """
    return tables_of(point, outcomes(case, point, model, chip))


def outcomes(case: str, point: TiledPoint, model: AnyModel, chip: Chip) -> Iterator[tuple[Row, TiledOutcome]]:
    """Yield the simulated run of every combination of a point's options, with its key columns.

    Raises `PhazeError`, with the case, for the first combination that is impossible or does not fit.
    """
    for key, run in runs_of(case, point, model, chip):
        try:
            outcome = simulate_on_tiles(chip, run)
        except PhazeError as error:
            raise error.under(f"tiled: case {case}") from error
        yield key, outcome


def tables_of(point: TiledPoint, simulated: Iterable[tuple[Row, TiledOutcome]]) -> dict[str, pd.DataFrame]:
    """Tables of simulated runs, by name; jobs and links only if the point shows its pipeline."""
    rows: dict[type[Table], list[Row]] = {TiledRuns: [], TiledJobs: [], TiledLinks: []}
    for key, outcome in simulated:
        rows[TiledRuns].append(key | outcome.row)
        if point.show == "pipeline":
            rows[TiledJobs] += [key | row for row in job_rows(outcome.carried.timeline)]
            rows[TiledLinks] += [key | row for row in outcome.link_rows]
    return {
        table.name: table.check(pd.DataFrame(table_rows, columns=list(table.fields())))
        if table_rows
        else table.empty()
        for table, table_rows in rows.items()
    }
