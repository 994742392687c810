"""Exhaustive search over mappings of small products; shares only the definition of cost with the mapper."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from phaze.cost.mapper.arrays import buffer_words, ceil_div, exposed_words
from tests.oracles.arrays import array_cycles, held_words, run_cycles


class Problem(NamedTuple):
    """Product on several cores."""

    batch: int
    m: int
    k: int
    n: int
    extra: float
    rows: int
    columns: int
    l2_words: int
    words_per_cycle: float
    cores: int
    preload: bool = False


@numba.njit
def fastest_part(p: Problem, parts_m: int, parts_n: int, repeats: int) -> float:
    """Return the fewest cycles over every integer tile, dataflow and innermost loop of a core's part."""
    m, k, n = ceil_div(p.m, parts_m), p.k, ceil_div(p.n, parts_n)
    left, right = float(p.batch * p.m * p.k * parts_n), float(p.batch * p.k * p.n * parts_m)
    result = float(p.batch * p.m * p.n)
    best = np.inf
    for tm in range(1, m + 1):
        for tk in range(1, k + 1):
            for tn in range(1, n + 1):
                if held_words(tm, tk, tn) > p.l2_words:
                    break
                am, ak, an = ceil_div(m, tm), ceil_div(k, tk), ceil_div(n, tn)
                for inner in range(3):
                    words = (
                        buffer_words(inner, left, right, result, float(am), float(ak), float(an)) + p.extra
                    )
                    for dataflow, down, across in ((0, k, n), (1, m, n), (2, k, m)):
                        tiled = ((m, tm), (k, tk), (n, tn))
                        cycles = array_cycles(dataflow, inner, *tiled, p.rows, p.columns, repeats, p.preload)
                        exposed = exposed_words(float(down), float(across), p.rows, p.columns)
                        best = min(best, run_cycles(cycles, words, exposed, p.words_per_cycle))
    return best


@numba.njit
def fastest(p: Problem) -> float:
    """Return the fewest cycles over every integer distribution (parts along batch, m, n) as well."""
    best = np.inf
    for parts_b in range(1, min(p.batch, p.cores) + 1):
        for parts_m in range(1, min(p.m, p.cores // parts_b) + 1):
            for parts_n in range(1, min(p.n, p.cores // parts_b // parts_m) + 1):
                best = min(best, fastest_part(p, parts_m, parts_n, ceil_div(p.batch, parts_b)))
    return best


@numba.njit
def fewest_hbm_words(m: int, k: int, n: int, capacity: int) -> float:
    """Return the fewest words over every integer tile and innermost loop."""
    best = np.inf
    for tm in range(1, m + 1):
        for tk in range(1, k + 1):
            for tn in range(1, n + 1):
                if held_words(tm, tk, tn) > capacity:
                    break
                am, ak, an = float(ceil_div(m, tm)), float(ceil_div(k, tk)), float(ceil_div(n, tn))
                for inner in range(3):
                    words = buffer_words(inner, float(m * k), float(k * n), float(m * n), am, ak, an)
                    best = min(best, words)
    return best
