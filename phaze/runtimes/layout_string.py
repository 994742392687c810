"""Megatron-Core's pipeline layout string: modules of every virtual stage, such as `Ettt|(tttt|)*30mL`.

`E` is the embedding, `t` a block, `m` a layer of multi-token prediction and `L` the loss. `|` separates
virtual stages in data-flow order. `t*n` and `(...)*n` repeat, and commas are ignored
(`--pipeline-model-parallel-layout`, class `PipelineParallelLayerLayout`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, pairwise

from phaze.base.errors import PhazeError
from phaze.base.printed import short

_GROUP = re.compile(r"\(([^()]+)\)\*(\d+)")
_ONE = re.compile(r"([EtmL])\*(\d+)")
TRAILING = 2
"""Number of modules after the head in nanotron's models: a cast of the logits, and the loss."""
MOST_CHARACTERS = 100_000
"""Maximum length of an expanded layout string; longer ones are rejected."""


def layout_string(layers: Sequence[int], mtp: int = 0) -> str:
    """Write the layout string for the layers per virtual stage; the last `mtp` are multi-token prediction."""
    ends = [0, *accumulate(layers)]
    # The first stage begins with E and the last one ends with L, which count as entries.
    ends = [0, *(1 + end for end in ends[1:-1]), ends[-1] + 2]
    entries = "E" + "t" * (sum(layers) - mtp) + "m" * mtp + "L"
    return written([entries[start:end] for start, end in pairwise(ends)])


def entries_of(blocks: Sequence[int], mtp: int = 0) -> tuple[str, ...]:
    """Entries of every virtual stage, given its blocks; multi-token prediction layers precede the loss."""
    last = len(blocks) - 1
    return tuple(
        "E" * (q == 0) + "t" * count + ("m" * mtp + "L") * (q == last) for q, count in enumerate(blocks)
    )


def written(stages: Sequence[str]) -> str:
    """Write the layout string for the entries of every virtual stage, with repeats run-length encoded."""
    if len(stages) == 1:
        return _short(stages[0])
    runs = [(stage, len(list(run))) for stage, run in groupby(stages[1:-1])]
    inner = [f"({_short(stage)}|)*{times}" if times > 1 else f"{_short(stage)}|" for stage, times in runs]
    return f"{_short(stages[0])}|{''.join(inner)}{_short(stages[-1])}"


def _short(stage: str) -> str:
    runs = [(entry, len(list(run))) for entry, run in groupby(stage)]
    # Up to three entries are no longer than their repeat, `t*3`.
    return "".join(entry * count if count < 4 else f"{entry}*{count}" for entry, count in runs)


def counted(layers: int, mtp: int, count: int) -> tuple[str, ...]:
    """Split layers into `count` virtual stages; embedding, loss and multi-token prediction count as layers.

    Stage lengths differ by at most one entry, and the longer stages are spread out. All layers of multi-token
    prediction are in one stage (recipes of Megatron-Bridge; `--account-for-embedding-in-pipeline-split`,
    …`-loss-`…).
    """
    entries = "E" + "t" * layers + "m" * mtp + "L"
    ends = [len(entries) * (q + 1) // count for q in range(count)]
    # A stage may not end inside multi-token prediction: its end moves to the layer before.
    apart = 1 + layers
    ends = [end if not apart < end < apart + mtp else apart for end in ends]
    return tuple(entries[start:end] for start, end in pairwise([0, *ends]))


def by_cost(layers: int, head_cost: float, count: int) -> tuple[str, ...]:
    """Split layers into `count` stages by cumulative cost; a block costs 1, the embedding nothing.

    An entry goes to the stage of the entry before it, or to the next stage once the cumulative cost exceeds
    the share of the stages up to there (nanotron, `build_model`). `TRAILING` modules without cost follow the
    head; PhazeError if they are too few to reach the last stage. The head is in the last stage in any case. A
    stage that has only trailing modules takes the last block of the stage before.
    """
    total, stages, cost = layers + head_cost, [""] * count, 0.0
    stages[0], q = "E", 0
    for _ in range(layers):
        stages[q] += "t"
        cost += 1.0
        q += cost > total * (q + 1) / count
    if q + TRAILING < count - 1:
        raise PhazeError(f"pp must be at most {q + TRAILING + 1} if stages are split by cost, got {count}")
    stages[-1] += "L"
    for empty in reversed(range(1, count)):
        if not stages[empty]:
            _shift(stages, empty)
    return tuple(stages)


def _shift(stages: list[str], empty: int) -> None:
    """Give an empty stage one block by moving blocks to later stages.

    They come from the nearest earlier stage with at least two entries.
    """
    source = max((q for q in range(empty) if len(stages[q]) > 1), default=0)
    for q in range(source, empty):
        stages[q + 1] = stages[q][-1] + stages[q + 1]
        stages[q] = stages[q][:-1]


def equal_stages(layers: int, mtp: int, count: int) -> tuple[str, ...]:
    """Split blocks into `count` virtual stages with equal numbers of blocks.

    Ends and multi-token prediction are additional. If the blocks cannot be split equally, these count as
    layers too (`counted`).
    """
    if layers % count:
        return counted(layers, mtp, count)
    return entries_of((layers // count,) * count, mtp)


def blocks_of(layout: str) -> tuple[int, ...]:
    """Blocks of every virtual stage in a layout string, including multi-token prediction layers.

    Raises PhazeError for a string that is not of a decoder.
    """
    return tuple(stage.count("t") + stage.count("m") for stage in stages_of(layout))


def stages_of(layout: str) -> tuple[str, ...]:
    """Parse a layout string into the entries of every virtual stage; PhazeError if Megatron-Core rejects it.

    Layers of multi-token prediction are in one stage. An empty stage is rejected: training with one does not
    end (Megatron-LM, issue 1852).
    """
    text = re.sub(r"[,\s]", "", layout)
    # Lengths are checked before anything is repeated, as a long number would fill the memory.
    for pattern in (_GROUP, _ONE):
        lengths = (len(part) * int(n.lstrip("0")[:7] or 0) for part, n in pattern.findall(text))
        if sum(lengths) > MOST_CHARACTERS:
            raise PhazeError(
                f"layout string: repeats expand to more than {MOST_CHARACTERS} entries, got {short(layout)}"
            )
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    stages = text.split("|")
    is_decoder = re.fullmatch(r"Et*m*L", "".join(stages))
    if not is_decoder or not all(stages) or sum("m" in stage for stage in stages) > 1:
        raise PhazeError(
            "layout string: must have E for the embedding, t for every block, m for every layer of "
            "multi-token prediction (all in one stage), L for the loss, and | between non-empty "
            f"stages, got {short(layout)}"
        )
    return tuple(stages)


def equal_counts(blocks: Sequence[int], mtp: int, count: int) -> tuple[int, ...]:
    """Recomputed blocks of every virtual stage if one number of blocks applies to all, (stages,).

    Layers of multi-token prediction are the last blocks, and recompute only if all blocks do (Megatron-Core,
    `--recompute-method block`).
    """
    # Multi-token prediction is on the last stage that has blocks.
    mtp_stage = max((q for q, stage_blocks in enumerate(blocks) if stage_blocks), default=0)
    return tuple(min(count, stage_blocks - mtp * (q == mtp_stage)) for q, stage_blocks in enumerate(blocks))


def cuts_of(stages: Iterable[str]) -> tuple[range, ...]:
    """Range of entries in every virtual stage, by position in the model, starting at the embedding."""
    ends = [0]
    for stage in stages:
        ends.append(ends[-1] + len(stage))
    return tuple(range(start, end) for start, end in pairwise(ends))
