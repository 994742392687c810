"""Number of draws by kind and outcome, which every law counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[tuple[str, ...]]]:
    """Number of draws by kind and outcome, printed at the end (`-s`)."""
    counts: Counter[tuple[str, ...]] = Counter()
    yield counts
    for kinds, number in sorted(counts.items()):
        print(*(f"{kind:24}" for kind in kinds), f"{number:8,}")  # noqa: T201
