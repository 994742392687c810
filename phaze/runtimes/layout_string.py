"""Megatron-Core's layout string: blocks of every virtual stage, as `Ettt|(tttt|)*30L`.

`E` is the embedding, `t` a block, `L` the loss, `|` a boundary of virtual stages in the order of the data
flow; `t*n` and `(...)*n` repeat, commas mean nothing (`--pipeline-model-parallel-layout`, class
`PipelineParallelLayerLayout`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from phaze.base.errors import PhazeError
from phaze.spec.plain import short

_GROUP = re.compile(r"\(([^()]+)\)\*(\d+)")
_ONE = re.compile(r"([EtL])\*(\d+)")
MOST_CHARACTERS = 100_000
"""Characters of a layout string written out; a repetition beyond is no layout."""


def layout_string(blocks: Sequence[int]) -> str:
    """Layout string of the blocks of every virtual stage."""
    runs = [(count, len(list(run))) for count, run in groupby(blocks[1:-1])]
    inner = [
        f"({_repeated(count)}|)*{times}" if times > 1 else f"{_repeated(count)}|" for count, times in runs
    ]
    if len(blocks) == 1:
        return f"E{_repeated(blocks[0])}L"
    return f"E{_repeated(blocks[0])}|{''.join(inner)}{_repeated(blocks[-1])}L"


def _repeated(count: int) -> str:
    return "t" * count if count < 4 else f"t*{count}"


def blocks_of(layout: str) -> tuple[int, ...]:
    """Blocks of every virtual stage of a layout string; PhazeError for one that is not a decoder's."""
    text = re.sub(r"[,\s]", "", layout)
    for pattern in (_GROUP, _ONE):
        if sum(len(one) * int(n.lstrip("0")[:7] or 0) for one, n in pattern.findall(text)) > MOST_CHARACTERS:
            raise PhazeError(
                f"layout string: repeats more than {MOST_CHARACTERS} entries, got {short(layout)}"
            )
        text = pattern.sub(lambda found: found[1] * int(found[2]), text)
    if not re.fullmatch(r"Et*(\|t+)*(\|t*)?L", text):
        raise PhazeError(
            "layout string: must be E for the embedding, t for every block, L for the loss, and | between "
            f"stages, of which those in the middle have blocks, got {short(layout)}"
        )
    return tuple(stage.count("t") for stage in text.split("|"))
