"""Sets of nodes as bits: node v is bit v % 64 of word v // 64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools
from phaze.base.compiled import njit_inlined, njit_nested

Words = NDArray[np.uint64]

BITS = 64
"""Nodes per word."""


def word_count(nodes: int) -> int:
    """Number of words that store a set of nodes, at least one."""
    return max(1, -(-nodes // BITS))


def pack(member: Bools) -> Words:
    """Pack boolean masks (..., nodes) into bit words (..., words)."""
    nodes = member.shape[-1]
    padded = np.zeros((*member.shape[:-1], word_count(nodes) * BITS), dtype=np.bool_)
    padded[..., :nodes] = member
    packed = np.packbits(padded, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.dtype("<u8")).astype(np.uint64)


def unpack(words: Words, nodes: int) -> Bools:
    """Unpack bit words (..., words) into boolean masks (..., nodes)."""
    octets = np.ascontiguousarray(words.astype(np.dtype("<u8"))).view(np.uint8)
    return np.unpackbits(octets, axis=-1, bitorder="little", count=nodes).astype(np.bool_)


def members_of(words: Words, nodes: int) -> tuple[int, ...]:
    """Nodes of one set, ascending."""
    return tuple(int(v) for v in np.flatnonzero(unpack(words, nodes)))


@njit_nested
def contains(words: Words, row: int, v: int) -> bool:
    """True if set `row` of sets (count, words) contains node `v`; for compiled code."""
    return bool((words[row, v // BITS] >> np.uint64(v % BITS)) & np.uint64(1) != 0)


@njit_inlined
def holds(words: Words, outer: int, inner: int) -> bool:
    """True if set `outer` contains set `inner`, both among sets (count, words); for compiled code."""
    missing = np.uint64(0)
    for w in range(words.shape[1]):
        missing |= words[inner, w] & ~words[outer, w]
    return bool(missing == 0)
