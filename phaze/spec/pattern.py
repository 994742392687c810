"""Notation for the order of a model's blocks, such as `attention-dense*3 (mamba experts)*23`."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby

MIXERS = ("attention", "reuse", "window", "chunk", "mamba", "delta")
NETWORKS = ("dense", "experts")
# A factor in a pattern must not fill the memory with names of blocks.
MOST_BLOCKS = 10_000
_SIGN = re.compile(r"\s*(?:([a-z-]+)|([()])|\*\s*(\d+))")


def words_of(kind: str) -> tuple[str, ...]:
    """Names of the mixer and networks in a kind of block; ValueError for an invalid kind."""
    words = tuple(kind.split("-"))
    order = [word for word in (*MIXERS, *NETWORKS) if word in words]
    if list(words) != order or sum(word in MIXERS for word in words) > 1:
        raise ValueError(
            f"pattern: a kind of block must be at most one of {', '.join(MIXERS)}, then dense, experts or "
            f"both, joined by hyphens, got {kind!r}"
        )
    return words


@cache
def runs_of(pattern: str) -> tuple[tuple[str, int], ...]:
    """Runs of consecutive blocks of one kind in a pattern, as (kind, length); ValueError if invalid.

    Groups in parentheses do not nest.
    """
    kinds: list[str] = []
    group: int | None = None
    last, position = 0, 0
    while position < len(pattern.rstrip()):
        match = _SIGN.match(pattern, position)
        word, sign, times = match.groups() if match else (None, None, None)
        wrong = match is None or (sign == "(" and group is not None) or (sign == ")" and group is None)
        if match is None or wrong or (times and (last == len(kinds) or not 0 < int(times) <= MOST_BLOCKS)):
            raise ValueError(
                f"pattern: must be kinds such as attention-dense*3 (mamba experts)*2, got {pattern!r}"
            )
        position = match.end()
        if word:
            last = len(kinds)
            kinds.append(word)
        elif times:
            kinds += kinds[last:] * (int(times) - 1)
            last = len(kinds)
        elif sign == "(":
            group = len(kinds)
        else:
            last, group = group or 0, None
    if group is not None or not kinds:
        raise ValueError(
            f"pattern: must be kinds such as attention-dense*3 (mamba experts)*2, got {pattern!r}"
        )
    return tuple((kind, len(list(same))) for kind, same in groupby(kinds))


def period_of(values: Sequence[object]) -> int:
    """Length of the shortest group of values whose repetition gives the whole sequence."""
    count, values = len(values), list(values)
    return next(n for n in range(1, count + 1) if count % n == 0 and values[:n] * (count // n) == values)


def pattern_of(kinds: list[str]) -> str:
    """Write the shortest pattern for a list of kinds: a repeated group, or runs of one kind."""
    size, count = period_of(kinds), len(kinds)
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds[:size])]
    text = " ".join(kind if times == 1 else f"{kind}*{times}" for kind, times in runs)
    if size == 1:
        return f"{kinds[0]}*{count}"
    return text if size == count else f"({text})*{count // size}"
