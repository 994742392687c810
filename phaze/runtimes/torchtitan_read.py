"""Recipes of torchtitan runs, by the changes of a configuration or by flags.

What neither says is as torchtitan has it without (`config/configs.py`, version 0.3.0); the model is not among
them. Of a pipeline whose modules are not given, the stages are those that torchtitan makes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TypeVar

from phaze.base.errors import PhazeError
from phaze.layout import Layout, Recompute, Zero
from phaze.pipeline.schedules import SCHEDULES as ORDERS
from phaze.runtimes.flags import parse_flags
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import ENDS
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import BY_FILE, CHECKPOINT, CHECKPOINTING, NAMES
from phaze.spec.model import Model
from phaze.spec.plain import short

Said = Mapping[str, object]
Word = TypeVar("Word", bound=str)
REPLICAS, SHARDS = (f"parallelism.data_parallel_{kind}_degree" for kind in ("replicate", "shard"))
MODULES, SCHEDULE = "parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_schedule"
SEQUENCE_PARALLEL, RESHARD = "parallelism.enable_sequence_parallel", "parallelism.fsdp_reshard_after_forward"
BATCH = "training.global_batch_size"
DEFAULTS: Said = {
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.pipeline_parallel_microbatch_size": 1,
    REPLICAS: 1,
    SHARDS: -1,
    RESHARD: "default",
    SEQUENCE_PARALLEL: True,
    SCHEDULE: "1F1B",
    MODULES: None,
    "training.local_batch_size": 8,
    BATCH: -1,
    "training.seq_len": 2048,
    CHECKPOINT: "selective",
}
"""Settings without which torchtitan does something."""
UNPRICED = (
    "parallelism.expert_parallel_degree", "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_first_stage_less_layers",
    "parallelism.pipeline_parallel_last_stage_less_layers", "training.enable_cpu_offload",
)  # fmt: skip
"""Settings that change the price, and that no recipe has a word for."""
SCHEDULES = {name: ours for ours, name in NAMES.items()} | {BY_FILE: "zb-h1"}
CHECKPOINTS: Mapping[str, Recompute] = {
    **{theirs: ours for ours, theirs in CHECKPOINTING.items()},
    **{ours: ours for ours in CHECKPOINTING},
}


def read_torchtitan(text: str, model: Model, devices: int) -> Recipe:
    """Recipe of a file of changes, or of flags, for a model on so many devices.

    Raises PhazeError for a value that is not possible or not priced, and for what torchtitan cannot run.
    """
    found = _assigned(text) if "config." in text else _flagged(text)
    refused = next((name for name in UNPRICED if name in found), None)
    if refused is not None:
        raise PhazeError(f"{refused}: is not modelled, got {short(found[refused])}")
    said = {**DEFAULTS, **found}
    tp, cp, pp = (
        _whole(said, f"parallelism.{kind}_parallel_degree") for kind in ("tensor", "context", "pipeline")
    )
    copies, shards = _copies(said, devices, tp * pp, cp)
    blocks = _blocks(said, model.layers, pp)
    recompute = _word(said, CHECKPOINT, CHECKPOINTS)
    local = _whole(said, "training.local_batch_size")
    layout = Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=len(blocks) // pp,
        dp=copies * shards,
        microbatch=_whole(said, "parallelism.pipeline_parallel_microbatch_size") if pp > 1 else local,
        sequence_parallel=said[SEQUENCE_PARALLEL] in (True, "True", "true") and tp > 1,
        zero=_zero(said, shards * cp, pp),
        recompute=recompute,
    )
    batch = local * layout.dp if str(said[BATCH]) == "-1" else _whole(said, BATCH)
    schedule = _word(said, SCHEDULE, SCHEDULES) if pp > 1 else "1f1b"
    recomputed = blocks if recompute == "full" else (0,) * len(blocks)
    recipe = Recipe(model, _whole(said, "training.seq_len"), batch, layout, schedule, blocks, recomputed)
    recipe.check(TORCHTITAN)
    return recipe


def _assigned(text: str) -> dict[str, object]:
    """Values of the lines `config.section.name = value`; of another expression its text."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PhazeError(f"changes: cannot be read as Python: {error}") from error
    found: dict[str, object] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("config."):
            name = ast.unparse(node.targets[0]).removeprefix("config.")
            try:
                found[name] = ast.literal_eval(node.value)
            except ValueError:
                found[name] = ast.unparse(node.value)
    return found


def _flagged(text: str) -> dict[str, object]:
    """Values of flags `--section.name value`, `--section.no-name` being false."""
    found: dict[str, object] = {}
    for flag, values in parse_flags(text).items():
        section, _, name = flag[2:].replace("-", "_").partition(".")
        off = name.startswith("no_") and not values
        value = " ".join(values) if values else not off
        key = f"{section}.{name.removeprefix('no_') if off else name}"
        found[CHECKPOINT if key == f"{CHECKPOINT}.mode" else key] = value
    return found


def _whole(said: Said, name: str) -> int:
    """Whole number >= 1 of a setting."""
    text = str(said[name])
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:19]) < 10**18):
        raise PhazeError(f"{name}: must be a whole number >= 1, got {short(said[name])}")
    return int(text)


def _word(said: Said, name: str, words: Mapping[str, Word]) -> Word:
    """Our word for the value of a setting."""
    value = str(said[name])
    if value not in words:
        raise PhazeError(f"{name}: must be one of {', '.join(words)}, got {short(value)}")
    return words[value]


def _copies(said: Said, devices: int, slices: int, cp: int) -> tuple[int, int]:
    """Copies of the weights, and the shards of each beside those of cp, of which one is 1."""
    copies, slices = _whole(said, REPLICAS), slices * cp
    if devices % (slices * copies):
        raise PhazeError(
            f"devices: must be a multiple of {slices * copies}, the product of degrees, got {devices}"
        )
    shards = devices // (slices * copies) if str(said[SHARDS]) == "-1" else _whole(said, SHARDS)
    if copies > 1 and shards * cp > 1:
        raise PhazeError(
            f"{REPLICAS}: must be 1 where weights are sharded, hybrids are not modelled, got {copies}"
        )
    return copies, shards


def _zero(said: Said, shards: int, pp: int) -> Zero:
    """ZeRO's stage: without shards none, else by whether the forward pass keeps gathered weights."""
    policy = _word(said, RESHARD, {word: word for word in ("default", "always", "never")})
    if shards == 1:
        return 0
    return 3 if policy == "always" or (policy == "default" and pp == 1) else 2


def _blocks(said: Said, layers: int, pp: int) -> tuple[int, ...]:
    """Blocks of every virtual stage, by the modules where they are given."""
    parts = said[MODULES]
    if pp == 1:
        return (layers,)
    if parts is None:
        stages = pp * ORDERS[_word(said, SCHEDULE, SCHEDULES)].chunks[0]
        return made_stages(layers, stages)
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts) or len(parts) % pp:
        raise PhazeError(f"{MODULES}: must be lists of modules, a multiple of pp {pp}, got {short(parts)}")
    held = [[name for name in part if str(name).startswith("layers.")] for part in parts]
    if [name for part in held for name in part] != [f"layers.{i}" for i in range(layers)]:
        raise PhazeError(f"{MODULES}: must hold layers.0 to layers.{layers - 1} in order, got {short(parts)}")
    return tuple(map(len, held))


def made_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of the stages that torchtitan makes: even, the embedding and the head each counted as a block.

    PhazeError where there are more stages than that (`_generate_llm_fqn_per_model_part`).
    """
    if stages > layers + ENDS:
        raise PhazeError(f"stages: must be at most {layers + ENDS}, got {stages}")
    each, more = divmod(layers + ENDS, stages)
    blocks = [each + (q < more) for q in range(stages)]
    blocks[0] -= 1
    blocks[-1] -= 1
    return tuple(blocks)
