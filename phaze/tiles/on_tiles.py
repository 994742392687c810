"""Training of transformers in a pipeline of tile groups on one chip, with contention (PALM, V.B).

A stage is a number of layers on a group of tiles. Its samples are divided among N_d replicas of N_m
tensor-parallel ranks, which work on a microbatch together. The tile level (`steps`) defines the steps of a
group. Here all groups run at the same time, in the order of the pipeline, over the links and memories of one
chip.

A group is a virtual tile, because all of its tiles do the same. A memory access is one message per port,
between the port and its farthest tile, with the bytes of all tiles. A collective sends the bytes of all
rounds of a ring in one round. Every tile of a stage sends the whole activation of its replica to the tile at
the same position in the next stage. Layers are transformer blocks, like PALM's operator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import ring
from phaze.cost.network.messages import Message, Plan, then, together
from phaze.layout import Layout
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import synchronising_groups
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.trace import job_rows
from phaze.pipeline.traffic import NetworkResult, Script, Sends, Turn, script, silent, simulate_script
from phaze.spec.model import Model
from phaze.spec.tiled_study import StagePlacement, TiledPoint, check_tiled
from phaze.tables import Table, TiledJobs, TiledLinks, TiledRuns
from phaze.tiles.chip import Chip
from phaze.tiles.operators import TransformerLayer, communication_size
from phaze.tiles.placement import Placed, Tiles, line, own, s_shaped
from phaze.tiles.steps import GroupCollective, StagePart, StageProgram, TileStage, TileStep
from phaze.tiles.tile import TRAINED, SramStrategy, TileExecution

KINDS: dict[JobKind, StagePart] = {
    JobKind.FORWARD: "forward",
    JobKind.RECOMPUTE: "recompute",
    JobKind.BACKWARD: "backward",
    JobKind.LAST_SYNC: "sync",
    JobKind.UPDATE: "update",
}
Row = dict[str, object]
PRESENT = 1e-12
"""Placeholder duration, in s, of a job whose steps are timed individually; 0 would omit the job."""


@dataclass(frozen=True)
class TiledRun:
    """Training run of a transformer on tile groups."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    """Samples in a batch."""
    microbatches: int
    """Microbatches in a batch; each is divided among the replicas of a stage."""
    layout: Layout
    """Tensor-parallel ranks and replicas: tp × dp tiles in each stage."""
    groups: tuple[Tiles, ...]
    """Tiles of each stage."""
    placed: Placed = "near"

    def __post_init__(self) -> None:
        if self.layers < len(self.groups):
            stages = len(self.groups)
            raise PhazeError(f"tiles: layers must be at least the {stages} stages, got {self.layers}")
        if self.microbatch < self.layout.dp:
            raise PhazeError(
                f"tiles: batch must have a sample for each of {self.microbatches} microbatches × "
                f"{self.layout.dp} replicas, got {self.batch}"
            )

    @property
    def microbatch(self) -> int:
        """Samples per microbatch, rounded down; the rest of the batch is dropped."""
        return self.batch // self.microbatches

    @property
    def samples(self) -> int:
        """Simulated samples: the batch, rounded down to whole microbatches."""
        return self.microbatch * self.microbatches

    @property
    def layers_of(self) -> tuple[int, ...]:
        """Number of layers of each stage; they differ by at most one."""
        ends = [self.layers * (q + 1) // len(self.groups) for q in range(len(self.groups))]
        return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))

    @property
    def flops(self) -> float:
        """FLOPs of a batch without recomputation: three times the forward pass."""
        forward = 24 * self.sequence * self.hidden**2 + 4 * self.sequence**2 * self.hidden
        return 3.0 * self.samples * self.layers * forward


@dataclass(frozen=True, eq=False)
class TiledOutcome:
    """Result of a simulated run: batch times, SRAM strategies, and traffic on links and ports."""

    run: TiledRun
    chip: Chip
    strategies: tuple[SramStrategy, ...]
    """SRAM strategy of each stage."""
    carried: NetworkResult
    alone_s: float
    """Time of a batch without communication and memory accesses."""
    uncontended_s: float
    """Time of a batch without contention for links and ports."""

    @property
    def time_s(self) -> float:
        """Time of a batch."""
        return self.carried.time_s

    @cached_property
    def row(self) -> Row:
        """Row of table `tiled_runs` without key columns: throughput, busy shares and the bottleneck.

        compute_share includes recomputation. model_share excludes it, and is relative to the peak of all
        tiles. A link is busy for PALM's occupancy of the NoC. bound_by is the resource with the largest busy
        share, or "pipeline" if no resource is busy for half of the time.
        """
        run, carried, time_s = self.run, self.carried, self.time_s
        work_s, ports = carried.work_s[: len(run.groups)], self.chip.port_resources
        links_s, dram_s = carried.busy_s[~ports], carried.busy_s[ports]
        busy = {"compute": work_s, "links": links_s, "dram": dram_s}
        most = {name: float(seconds.max(initial=0.0)) / time_s for name, seconds in busy.items()}
        longest = max(most, key=lambda name: most[name])
        return {
            "data": run.layout.dp,
            "stages": len(run.groups),
            "batch": run.samples,
            "time_s": time_s,
            "samples_per_s": run.samples / time_s,
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
            "layer_bytes": communication_size(run.samples, run.sequence, run.hidden, run.layout),
            "sent_bytes": float(carried.sent_bytes.sum()),
            "received_bytes": float(carried.received_bytes.sum()),
        }

    @property
    def link_rows(self) -> Iterator[Row]:
        """Links between tiles, as rows of table `tiled_links` without its key."""
        topology, grid = self.chip.topology, self.chip.grid
        busy = self.carried.busy_s / self.time_s
        for number, link in enumerate(topology.links):
            if max(link.source, link.target) >= grid.tiles:
                continue
            (row, column), (to_row, to_column) = grid.place(link.source), grid.place(link.target)
            yield {
                "link": number,
                "source_row": row,
                "source_column": column,
                "target_row": to_row,
                "target_column": to_column,
                "bytes": float(self.carried.link_bytes[number]),
                "busy_share": float(busy[topology.resource_of[number]]),
            }


def simulate_on_tiles(chip: Chip, run: TiledRun) -> TiledOutcome:
    """Simulate a run with contention, without contention, and without communication and memory accesses."""
    programs = programs_of(chip, run)
    messages = script_of(run, programs)
    return TiledOutcome(
        run,
        chip,
        tuple(program.strategy for program in programs),
        simulate_script(messages, chip.topology),
        simulate_script(silent(messages), chip.topology, "none").time_s,
        simulate_script(messages, chip.topology, "none").time_s,
    )


def script_of(run: TiledRun, programs: Sequence[StageProgram]) -> Script:
    """Build the script of a run: the jobs and messages that the network simulation executes."""
    pipeline = Pipeline(
        tuple(_cost(program) for program in programs), run.microbatches,
        tensor=tuple(len(tiles) for tiles in run.groups),
    )  # fmt: skip
    tensor_bytes = run.microbatch / run.layout.dp * run.sequence * run.hidden * TRAINED.weights
    sent = {
        (q, q + step): tensor_bytes * len(run.groups[q + step])
        for q in range(len(run.groups))
        for step in (-1, 1)
        if 0 <= q + step < len(run.groups)
    }
    ports = {stage: len(programs) + k for k, stage in enumerate(synchronising_groups(pipeline))}
    turns = {
        # Resources are numbered: workers of the stages first, then their synchronisation ports.
        (kind, ports.get(stage, -1) if kind == JobKind.LAST_SYNC else stage, stage): turns_of(program, part)
        for stage, program in enumerate(programs)
        for kind, part in KINDS.items()
    }
    return script(pipeline, Sends(run.groups, sent, turns))


def programs_of(chip: Chip, run: TiledRun) -> list[StageProgram]:
    """Step program of each stage."""
    layer = TransformerLayer(run.microbatch, run.hidden, run.sequence, run.heads)
    degrees = (run.layout.dp, run.layout.tp, 1, 1)
    return [
        StageProgram(
            chip,
            TileStage(tiles, ((layer, degrees),) * layers, run.placed),
            TileExecution(in_flight=min(len(run.groups) - q, run.microbatches)),
        )
        for q, (tiles, layers) in enumerate(zip(run.groups, run.layers_of, strict=True))
    ]


def _cost(program: StageProgram) -> StageCost:
    """Cost of a stage for the schedule, with placeholder durations, because steps are timed one by one."""
    present = {part: PRESENT if program.steps(part) else 0.0 for part in KINDS.values()}
    fixed = zip(*((sizes.weights, sizes.gradients, sizes.optimizer) for sizes in program.sizes), strict=True)
    return StageCost(
        present["forward"],
        present["backward"],
        present["recompute"],
        sync_s=present["sync"],
        update_s=present["update"],
        stash_bytes=program.sizes[0].inputs,
        fixed_bytes=sum(sum(parts) for parts in fixed),
    )


def turns_of(program: StageProgram, part: StagePart) -> list[Turn]:
    """Simulated steps of one part of a stage, each with work, collectives and memory accesses."""
    chip, tiles = program.chip, program.stage.tiles
    return [
        Turn(step.work_s, _exchanged(chip, step.after), _accessed(chip, tiles, step))
        for step in program.steps(part)
    ]


def _accessed(chip: Chip, tiles: Tiles, step: TileStep) -> Plan:
    """Messages for the memory reads and writes of a group: one per port and direction."""
    plan = []
    read, write = step.access
    for port, (far, users) in _ports(chip, tiles).items() if read or write else ():
        plan += [Message(port, far, read * users)] if read else []
        plan += [Message(far, port, write * users)] if write else []
    return tuple(plan)


@lru_cache(maxsize=1024)
def _ports(chip: Chip, tiles: Tiles) -> dict[int, tuple[int, int]]:
    """Memory ports that a group uses, each with its farthest tile and the number of its tiles."""
    hops = chip.topology.hops
    return {
        port: (max(users, key=lambda tile: hops(port, tile)), len(users))
        for port, users in chip.users(tiles).items()
    }


def _exchanged(chip: Chip, collectives: Sequence[GroupCollective]) -> Plan:
    """Messages of consecutive collectives; each member sends all rounds of a ring as one message."""
    return then(
        *(
            together(
                *(
                    ring(chip.topology, exchange.kind, group, exchange.size_bytes, 1)
                    for group in exchange.groups
                )
            )
            for exchange in collectives
        )
    )


def simulate_point(case: str, point: TiledPoint, model: Model, chip: Chip) -> dict[str, pd.DataFrame]:
    """Simulate a study point; returns its tables, with jobs and links only if its pipeline is shown.

    Raises `PhazeError` if the tile level does not support an operator of the model.
    """
    check_tiled(model, f"tiled: case {case}")
    rows: dict[type[Table], list[Row]] = {TiledRuns: [], TiledJobs: [], TiledLinks: []}
    for key, run in _runs(case, point, model, chip):
        outcome = simulate_on_tiles(chip, run)
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


def _runs(case: str, point: TiledPoint, model: Model, chip: Chip) -> Iterator[tuple[Row, TiledRun]]:
    """Yield a run for every combination of a point's options, with its key columns.

    Raises `PhazeError` if the tensor-parallel size does not divide the tiles of a stage.
    """
    for shape, placed, tensor, microbatches in product(
        point.layouts, point.placed, point.tensor, point.microbatches
    ):
        groups = mapping(chip, point, shape)
        replicas, remainder = divmod(len(groups[0]), tensor)
        if remainder:
            raise PhazeError(f"tiled: tensor must divide the {len(groups[0])} tiles of a stage, got {tensor}")
        key = {
            "case": case, "system": point.system, "model": point.model, "layout": shape, "placed": placed,
            "tensor": tensor, "microbatches": microbatches,
        }  # fmt: skip
        layout = Layout(tp=tensor, pp=len(groups), dp=replicas)
        yield key, TiledRun(
            model.layers, model.hidden, model.heads, point.sequence, point.batch, microbatches, layout,
            groups, placed,
        )  # fmt: skip


def mapping(chip: Chip, point: TiledPoint, shape: StagePlacement) -> tuple[Tiles, ...]:
    """Tiles of each stage: in rows, in blocks along an S-shaped path, or as specified by the user."""
    if shape == "own":
        return own(chip.grid, point.own or ())
    if shape == "line":
        return line(chip.grid, point.stages)
    return s_shaped(chip.grid, *_block(chip, point.stages))


def _block(chip: Chip, stages: int) -> tuple[int, int]:
    """Rows and columns of a stage's block of tiles; PhazeError if blocks cannot fill the grid.

    The block is one chip of a multi-chip system if that fits, otherwise the squarest block.
    """
    size, remainder = divmod(chip.grid.tiles, stages)
    shapes = [
        (rows, size // rows)
        for rows in range(1, size + 1)
        if size % rows == 0 and chip.grid.rows % rows == 0 and chip.grid.columns % (size // rows) == 0
    ]
    if remainder or not shapes:
        raise PhazeError(
            f"tiled: {stages} stages cannot fill {chip.grid.rows} × {chip.grid.columns} tiles as blocks"
        )
    return min(shapes, key=lambda shape: (shape != chip.wires.block, sum(shape)))
