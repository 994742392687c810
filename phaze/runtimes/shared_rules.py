"""Rules for layouts that several runtimes have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.pipeline.schedules import SCHEDULES
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import MULTIPLES, PIPELINED, Rule, TrainingTask, most_stages
from phaze.spec.model import Model

PIPELINE = Rule(
    "pipeline",
    "{schedule} needs a pipeline, pp must be >= 2, got {pp}",
    ("schedule", "pp"),
    lambda _, grid: grid.under(*PIPELINED) & (grid.pp < 2),
)
STAGES = Rule(
    "stages",
    "pp * vp must be at most {most_stages}: no stage may be empty, and there are {layers} layers, "
    "an embedding and a head; got {stages}",
    ("pp", "vp"),
    lambda task, grid: grid.stages > most_stages(task.model, grid.pp),
)
SEQUENCE_PARALLEL = Rule(
    "sequence parallel",
    "sequence_parallel shards activations over tp, so tp must be >= 2, got {tp}",
    ("sequence_parallel", "tp"),
    lambda _, grid: grid.sequence_parallel & (grid.tp < 2),
)
SEQUENCE_SLICES = Rule(
    "sequence slices",
    "the sequence {sequence} must be a multiple of cp * tp with sequence_parallel, got cp {cp} and tp {tp}",
    ("sequence_parallel", "tp", "cp"),
    lambda task, grid: grid.sequence_parallel & not_divisible(task.sequence, grid.cp * grid.tp),
)
"""Rule for runtimes whose reduce-scatters along the sequence need equal shards."""
REPLICATED_SHARDS = Rule(
    "replicated shards",
    "replicate {replicate} needs zero >= 1, and must divide dp and the ranks with the same experts; got "
    "zero {zero}, dp {dp}",
    ("zero", "dp", "tp", "cp", "ep", "etp", "sequence_parallel"),
    lambda _, grid: (
        (grid.replicate > 1)
        & ((grid.zero < 1) | not_divisible(grid.dp, grid.replicate) | not_divisible(grid.edp, grid.replicate))
    ),
)


def not_divisible(number: int | Ints, by: int | Ints) -> Bools:
    """Mask of the numbers that are not a multiple of the divisor, (N,)."""
    uneven: Bools = np.mod(number, by) != 0
    return uneven


def expert_widths(model: Model, tp: int, ep: int, *, whole_experts: bool = False) -> dict[str, int]:
    """Widths ep and etp for runtimes without an etp option: tp, or 1 if `whole_experts` and ep >= 2."""
    return {"ep": ep, "etp": 1 if whole_experts and ep > 1 else tp} if model.experts else {"ep": 1, "etp": 1}


def uneven_sequence(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Mask of the layouts that do not shard the sequence evenly, (N,).

    Each context-parallel rank has two chunks, and tensor-parallel ranks share each chunk.
    """
    chunks = np.where(grid.cp > 1, 2 * grid.cp, 1)
    return not_divisible(task.sequence, np.where(grid.sequence_parallel, grid.tp, 1) * chunks)


def _low_precision(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Mask of the layouts whose GEMM shapes the compute format rejects, (N,); expert inputs are padded."""
    model, (rows, width) = task.model, MULTIPLES[grid.compute]
    # Widths that tp cuts: feed-forward, attention output and the fused query-key-value projection.
    cut = [model.feed_forward]
    if model.latent is None:
        cut += [model.query_width, model.query_width + 2 * model.kv_width]
    slices: list[int | Ints] = [model.hidden, *(size // grid.tp for size in cut)]
    if model.experts is not None:
        slices += [model.experts.width // grid.etp, model.experts.shared_width // grid.tp]
    broken: Bools = not_divisible(grid.microbatch * (task.sequence // grid.cp), np.array(rows))
    for size in slices:
        broken = broken | not_divisible(size, np.array(width))
    return broken


def _virtual_stages(_: TrainingTask, grid: LayoutGrid) -> Bools:
    least, most = np.array([SCHEDULES[name].chunks for name in grid.schedules])[grid.schedule].T
    outside: Bools = (grid.vp < least) | (grid.vp > most)
    return outside


def _expert_slices(task: TrainingTask, grid: LayoutGrid) -> Bools:
    experts = task.model.experts
    if experts is None:
        return grid.etp > 1
    return not_divisible(experts.width, grid.etp) | not_divisible(experts.shared_width, grid.tp)


def _key_value_groups(task: TrainingTask, grid: LayoutGrid) -> Bools:
    # Ranks beyond the number of groups share one, so each group needs equally many ranks.
    groups = task.model.kv_heads
    uneven = not_divisible(groups, grid.tp) & not_divisible(grid.tp, np.array(groups))
    return uneven | not_divisible(task.model.kv_width, grid.tp)


def _scans(task: TrainingTask, grid: LayoutGrid) -> Bools:
    # The model is asked once for each pair of widths, of which a grid has few.
    pairs, place = np.unique(np.stack((grid.tp, grid.cp)), axis=1, return_inverse=True)
    return np.array([not task.model.divides_scans(tp, cp) for tp, cp in pairs.T.tolist()], bool)[place]


def _shared_evenly(name: str, label: str, number: Callable[[Model], int]) -> Rule:
    """Build the rule that tp must divide a given model size."""
    broken = f"{label} must be a multiple of tp, got {{tp}}"
    return Rule(name, broken, ("tp",), lambda task, grid: not_divisible(number(task.model), grid.tp))


EXPERTS = Rule(
    "experts",
    "ep must divide the {experts} experts of a layer, got {ep}",
    ("ep",),
    lambda task, grid: not_divisible(max(task.experts, 1), grid.ep),
)
EXPERT_RANKS = Rule(
    "expert ranks",
    "ep * etp must divide tp * cp * dp {expert_ranks}, got {folded}",
    ("tp", "cp", "dp", "ep", "etp"),
    lambda _, grid: not_divisible(grid.expert_ranks, grid.folded),
)
EXPERT_SLICES = Rule(
    "expert slices",
    "the expert width {expert_width} must be a multiple of etp, got {etp}, and the width of "
    "shared experts {shared_width} a multiple of tp, got {tp}",
    ("tp", "etp"),
    _expert_slices,
)
EXPERT_BIAS = Rule(
    "expert bias",
    "experts with biases need etp 1, got {etp}",
    ("etp",),
    lambda task, grid: (task.model.experts is not None and task.model.experts.bias) & (grid.etp > 1),
)
"""Rule for runtimes that do not shard the biases of experts (Megatron-Core, `TransformerConfig`)."""
EXPERTS_BY_TENSOR = Rule(
    "expert widths",
    "tensor parallelism also shards the experts, so etp must be tp {tp}, got {etp}",
    ("tp", "etp"),
    lambda task, grid: (task.experts > 0) & (grid.etp != grid.tp),
)
"""Rule for runtimes that shard experts over tensor-parallel ranks like all other layers."""
EXPERTS_WHOLE = Rule(
    "expert widths",
    "experts are sharded whole with ep >= 2, else by tp, so etp must be 1 or tp, got ep "
    "{ep}, etp {etp} and tp {tp}",
    ("tp", "ep", "etp"),
    lambda task, grid: (task.experts > 0) & (grid.etp != np.where(grid.ep > 1, 1, grid.tp)),
)
"""Rule for runtimes that shard whole experts over ep, or experts by tp (torchtitan, `moe_sharding.py`)."""
EXPERTS_OF_ALL_TOKENS = Rule(
    "expert tokens",
    "without sequence_parallel each of tp {tp} ranks has all tokens: experts must be sharded by tp, so etp "
    "{tp}, or with ep >= 2 be whole, so etp 1; got ep {ep} and etp {etp}",
    ("tp", "ep", "etp", "sequence_parallel"),
    lambda task, grid: (
        (task.experts > 0)
        & ~grid.sequence_parallel
        & (grid.etp != grid.tp)
        & ((grid.ep == 1) | (grid.etp > 1))
    ),
)
"""Rule for runtimes whose experts may be sharded like dense layers or whole (DeepSpeed, `moe/layer.py`)."""
SCANS = Rule(
    "scans",
    "heads of scans must be a multiple of tp * cp, their groups a multiple of tp, and groups / tp "
    "a multiple or a divisor of cp, got tp {tp} and cp {cp}",
    ("tp", "cp"),
    _scans,
)
VIRTUAL_STAGES = Rule(
    "virtual stages", "vp must be {chunks} under {schedule}, got {vp}", ("schedule", "vp"), _virtual_stages
)
HEADS = _shared_evenly("heads", "heads {heads}", lambda model: model.heads)
KEY_VALUE_HEADS = _shared_evenly(
    "key-value heads", "key-value heads {kv_heads}", lambda model: model.kv_heads
)
"""Rule for runtimes that never replicate key-value heads."""
KEY_VALUE_GROUPS = Rule(
    "key-value heads",
    "key-value heads {kv_heads} must be a multiple or a divisor of tp, and their width "
    "{kv_width} a multiple of tp, got {tp}",
    ("tp",),
    _key_value_groups,
)
"""Rule for runtimes whose ranks have whole groups, or share one and gather it (`TransformerConfig`)."""
FEED_FORWARD = _shared_evenly(
    "feed-forward", "the feed-forward width {feed_forward}", lambda model: model.feed_forward
)
BATCH = Rule(
    "batch",
    "microbatch * dp must divide the global batch {global_batch}, got {samples}",
    ("microbatch", "dp"),
    lambda task, grid: not_divisible(task.global_batch, grid.microbatch * grid.dp),
)
LOW_PRECISION = Rule(
    "low precision",
    "products in {compute} need rows in multiples of {aligned_rows}, and shards of hidden, "
    "attention and feed-forward widths in multiples of {aligned_width}; got {rows} rows, hidden "
    "{hidden}, feed-forward {feed_forward} and experts {expert_width} with tp {tp} and etp {etp}",
    ("tp", "etp", "cp", "microbatch"),
    _low_precision,
)


def parallel_rules(key_value_heads: Rule) -> tuple[Rule, ...]:
    """Rules of pipeline, tensor and expert parallelism, with the runtime's rule for key-value heads."""
    dense = VIRTUAL_STAGES, PIPELINE, HEADS, key_value_heads, FEED_FORWARD, SCANS
    return (*dense, EXPERTS, EXPERT_RANKS, EXPERT_SLICES)
