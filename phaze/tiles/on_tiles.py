"""Transformers in a pipeline of tile groups on one chip, with contention (PALM, V.B).

A stage is so many layers on a group of tiles; inside it samples are divided among N_d replicas of N_m slices,
which work on a microbatch together. What a group does step by step is the tile level's (`tile.steps`); here
all groups do it at the same time, in the order of the pipeline, over the links and memories of one chip.

Groups are virtual tiles: all tiles of a group do the same, so that an access is one message for each port,
between the port and the farthest of its tiles, with the bytes of all; a collective passes on in one round
what a ring has in all of its rounds. Every tile of a stage sends the whole of its replica's activation to the
tile at its place in the next. Layers are transformer blocks, as PALM's operator is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from phaze.base.errors import PhazeError
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.coarse import ring
from phaze.cost.network.messages import Message, Plan, then, together
from phaze.cost.network.ring_messages import Collective
from phaze.pipeline.durations import Kind
from phaze.pipeline.graph import synchronising_groups
from phaze.pipeline.pipeline import Pipeline, Schedule, StageCost
from phaze.pipeline.traffic import Carried, Script, Traffic, Turn, carry_out, script, silent
from phaze.tiles.chip import Chip
from phaze.tiles.group import tile_memory
from phaze.tiles.mapping import Placed, Tiles
from phaze.tiles.operators import Transformer
from phaze.tiles.outcome import port_resources
from phaze.tiles.sram import Strategy, Training
from phaze.tiles.steps import Exchange, Mode, Part, Program, Stage, Step

KINDS: dict[Kind, Part] = {
    Kind.FORWARD: "forward",
    Kind.RECOMPUTE: "recompute",
    Kind.BACKWARD: "backward",
    Kind.LAST_SYNC: "sync",
    Kind.UPDATE: "update",
}
RINGS: dict[Collective, int] = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}
"""How often a ring goes around."""
PRESENT = 1e-12
"""Seconds of a job whose time is that of its turns: the pipeline has to know that there is such a job."""


@dataclass(frozen=True)
class TiledRun:
    """A transformer on tile groups."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    """Samples in a batch."""
    microbatches: int
    """In a batch; each is divided among the replicas of a stage."""
    data: int
    tensor: int
    groups: tuple[Tiles, ...]
    """Tiles of every stage."""
    placed: Placed = "near"
    schedule: Schedule = "1f1b"
    mode: Mode = field(default_factory=lambda: Mode(Training(recompute=True), "peak"))

    def __post_init__(self) -> None:
        if self.layers < len(self.groups):
            stages = len(self.groups)
            raise PhazeError(f"tiles: layers must be at least the {stages} stages, got {self.layers}")
        if self.microbatch < self.data:
            raise PhazeError(
                f"tiles: batch must have a sample for each of {self.microbatches} microbatches × {self.data} "
                f"replicas, got {self.batch}"
            )

    @property
    def microbatch(self) -> int:
        """Return the samples of a microbatch; what is left over of a batch is left out."""
        return self.batch // self.microbatches

    @property
    def samples(self) -> int:
        """Return the samples that are simulated."""
        return self.microbatch * self.microbatches

    @property
    def layers_of(self) -> tuple[int, ...]:
        """Return the layers of every stage, which differ by one at most."""
        ends = [self.layers * (q + 1) // len(self.groups) for q in range(len(self.groups))]
        return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))

    @property
    def flops(self) -> float:
        """Return the FLOPs of a batch without recomputation, three times those of the forward pass."""
        forward = 24 * self.sequence * self.hidden**2 + 4 * self.sequence**2 * self.hidden
        return 3.0 * self.samples * self.layers * forward


@dataclass(frozen=True, eq=False)
class OnTiles:
    """A run that has been simulated."""

    run: TiledRun
    chip: Chip
    strategies: tuple[Strategy, ...]
    """What stays in SRAM, of every stage."""
    carried: Carried
    alone_s: float
    """Time of a batch if nothing were sent, fetched or stored."""
    uncontended_s: float
    """Time if every link and port carried all that comes at once."""

    @property
    def time_s(self) -> float:
        """Return the time of a batch."""
        return self.carried.time_s

    @property
    def samples_per_s(self) -> float:
        """Return the throughput."""
        return self.run.samples / self.time_s

    @property
    def compute_share(self) -> float:
        """Return the share of the time for which the tiles of stages work, recomputation included."""
        stages = len(self.run.groups)
        return float(self.carried.work_s[:stages].mean()) / self.time_s

    @property
    def model_share(self) -> float:
        """Return the FLOPs without recomputation over what all tiles could do in the time."""
        return self.run.flops / (self.chip.peak_flops_per_s * self.time_s)

    @cached_property
    def _ports(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return port_resources(self.chip)

    @property
    def link_busy_s(self) -> float:
        """Return for how long a link between tiles is held, on average: PALM's occupancy of the NoC."""
        return float(self.carried.busy_s[~self._ports].mean())

    @property
    def most_link_share(self) -> float:
        """Return the share of the time for which the link that is held longest is."""
        return float(self.carried.busy_s[~self._ports].max(initial=0.0)) / self.time_s

    @property
    def dram_share(self) -> float:
        """Return the share of the time for which ports of memories are held, on average."""
        return float(self.carried.busy_s[self._ports].mean()) / self.time_s if self._ports.any() else 0.0

    @property
    def most_dram_share(self) -> float:
        """Return the share of the time for which the port that is held longest is."""
        return float(self.carried.busy_s[self._ports].max(initial=0.0)) / self.time_s

    @property
    def bound_by(self) -> str:
        """Return what is busy for the largest share of the time; pipeline, if nothing is for half of it."""
        stages = len(self.run.groups)
        shares = {
            "compute": float(self.carried.work_s[:stages].max()) / self.time_s,
            "links": self.most_link_share,
            "dram": self.most_dram_share,
        }
        most = max(shares, key=lambda name: shares[name])
        return most if shares[most] >= 0.5 else "pipeline"


def simulate_on_tiles(chip: Chip, run: TiledRun) -> OnTiles:
    """Return what a run on a chip takes, with contention, without, and without anything sent."""
    programs = _programs(chip, run)
    found = script_of(chip, run, programs)
    return OnTiles(
        run,
        chip,
        tuple(program.strategy for program in programs),
        carry_out(found, chip.topology),
        carry_out(silent(found), chip.topology, "none").time_s,
        carry_out(found, chip.topology, "none").time_s,
    )


def script_of(chip: Chip, run: TiledRun, programs: Sequence[Program] | None = None) -> Script:
    """Return a run as messages."""
    programs = programs or _programs(chip, run)
    pipeline = Pipeline(
        tuple(_cost(program) for program in programs), run.microbatches, run.schedule,
        tensor=tuple(len(tiles) for tiles in run.groups),
    )  # fmt: skip
    element = parameter_bytes("sgd", run.mode.training.precision).weights
    tensor_bytes = run.microbatch / run.data * run.sequence * run.hidden * element
    sent = {
        (q, q + step): tensor_bytes * len(run.groups[q + step])
        for q in range(len(run.groups))
        for step in (-1, 1)
        if 0 <= q + step < len(run.groups)
    }
    return script(pipeline, Traffic(run.groups, sent, _turns(pipeline, programs)))


def _programs(chip: Chip, run: TiledRun) -> list[Program]:
    """Return the steps of every stage."""
    found = []
    for q, (tiles, layers) in enumerate(zip(run.groups, run.layers_of, strict=True)):
        operators = tuple(
            (
                Transformer(run.microbatch, run.hidden, run.sequence, run.heads, f"layer {k}"),
                (run.data, run.tensor, 1, 1),
            )
            for k in range(layers)
        )
        in_flight = min(len(run.groups) - q, run.microbatches)
        mode = replace(run.mode, training=replace(run.mode.training, in_flight=in_flight))
        found.append(Program(chip, Stage(tiles, operators, run.placed), mode))
    return found


def _cost(program: Program) -> StageCost:
    """Return which jobs a stage has, and what each of its tiles holds; what jobs take is in their turns."""
    there = {part: PRESENT if program.steps(part) else 0.0 for part in KINDS.values()}
    memory = tile_memory(program)
    return StageCost(
        there["forward"],
        there["backward"],
        there["recompute"],
        sync_s=there["sync"],
        update_s=there["update"],
        stash_bytes=memory.microbatch_bytes,
        fixed_bytes=memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes,
    )


def _turns(pipeline: Pipeline, programs: Sequence[Program]) -> dict[tuple[Kind, int, int], list[Turn]]:
    """Return what jobs do: workers, and synchronisation ports after them."""
    ports = {stage: len(programs) + k for k, stage in enumerate(synchronising_groups(pipeline))}
    found = {}
    for stage, program in enumerate(programs):
        for kind, part in KINDS.items():
            resource = ports.get(stage, -1) if kind == Kind.LAST_SYNC else stage
            found[kind, resource, stage] = turns_of(program, part)
    return found


def turns_of(program: Program, part: Part) -> list[Turn]:
    """Return the steps of a part as work, accesses and collectives."""
    chip, tiles = program.chip, program.stage.tiles
    found = []
    for step in program.steps(part):
        if step.before:
            found.append(Turn(0.0, _exchanged(chip, step.before)))
        after = _exchanged(chip, (*step.exchanges, *step.beside))
        found.append(Turn(step.work.busy_s, after, _accessed(chip, tiles, step)))
    return found


def _accessed(chip: Chip, tiles: Tiles, step: Step) -> Plan:
    """Return what a group reads and writes, one message each for every port."""
    plan = []
    read, write = step.access.read_bytes, step.access.write_bytes
    for port, (far, users) in _ports(chip, tiles).items() if read or write else ():
        plan += [Message(port, far, read * users)] if read else []
        plan += [Message(far, port, write * users)] if write else []
    return tuple(plan)


@lru_cache(maxsize=1024)
def _ports(chip: Chip, tiles: Tiles) -> dict[int, tuple[int, int]]:
    """Return the ports of a group, each with the farthest of its tiles and how many there are."""
    found: dict[int, list[int]] = {}
    for tile in tiles:
        found.setdefault(chip.port(tile), []).append(tile)
    hops = chip.topology.hops
    return {port: (max(mine, key=lambda tile: hops(port, tile)), len(mine)) for port, mine in found.items()}


def _exchanged(chip: Chip, exchanges: Sequence[Exchange]) -> Plan:
    """Return collectives that follow each other, all rounds of a ring in one message of every member."""
    return then(*(together(*(_ring(chip, some, group) for group in some.groups)) for some in exchanges))


def _ring(chip: Chip, exchange: Exchange, group: Tiles) -> Plan:
    if exchange.kind not in RINGS:
        raise PhazeError(f"tiles: collectives of a pipeline must be {', '.join(RINGS)}, got {exchange.kind}")
    rounds = RINGS[exchange.kind] * (len(group) - 1)
    return ring(chip.topology, group, exchange.size_bytes, rounds, 1)
