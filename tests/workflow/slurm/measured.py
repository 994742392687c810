"""Resources used by jobs, next to those declared by rules: `python -m tests.workflow.slurm.measured
RESULTS`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

RULES = Path(__file__).resolve().parents[3] / "rules"


@dataclass(frozen=True)
class Declared:
    """Rule with the resources of its jobs at the first attempt, and its measurements."""

    rule: str
    benchmark: re.Pattern[str]
    mem_mb: int
    runtime: int
    """Minutes."""


def declared() -> list[Declared]:
    """Return every rule that runs something."""
    texts = (path.read_text() for path in sorted(RULES.glob("*.smk")))
    blocks = [block for text in texts for block in re.split(r"(?m)^(?=rule )", text)[1:]]
    return [_declared(block) for block in blocks if "script:" in block]


def _declared(block: str) -> Declared:
    path = re.search(r'log:\s+"<logs>/([^"]+)\.log"', block)
    memory = re.search(r"mem_mb=(?:growing\()?(\d+)", block)
    minutes = re.search(r"runtime=(?:growing\()?(\d+)", block)
    assert path, block
    assert memory, block
    assert minutes, block
    parts = re.split(r"\{\w+\}", path[1])
    pattern = re.compile("[^/]+".join(map(re.escape, parts)) + r"\.tsv")
    return Declared(block.split()[1].rstrip(":"), pattern, int(memory[1]), int(minutes[1]))


def measure(results: Path) -> pd.DataFrame:
    """Return job counts, longest time (s) and peak memory (MB) by rule, with the declared limits."""
    folder = results / "benchmarks"
    rows = []
    rules = sorted(declared(), key=lambda one: one.benchmark.pattern.count("[^/]+"))
    for path in folder.rglob("*.tsv"):
        name = path.relative_to(folder).as_posix()
        found = next((one for one in rules if one.benchmark.fullmatch(name)), None)
        if found is not None:  # what else lies there was written by jobs of other versions
            one = pd.read_csv(path, sep="\t").iloc[0]
            rows.append((found.rule, float(one["s"]), float(one["max_rss"]), found.runtime, found.mem_mb))
    frame = pd.DataFrame(rows, columns=["rule", "seconds", "memory_mb", "runtime", "mem_mb"])
    table = frame.groupby("rule").agg(
        jobs=("seconds", "size"),
        seconds=("seconds", "max"),
        memory_mb=("memory_mb", "max"),
        runtime_minutes=("runtime", "first"),
        mem_mb=("mem_mb", "first"),
    )
    return table.round({"seconds": 1, "memory_mb": 0}).reset_index()


if __name__ == "__main__":
    measure(Path(sys.argv[1])).to_csv(sys.stdout, index=False)
