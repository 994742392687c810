"""A column that is renamed in a valid table changes the answer, is named, or the table is refused.

`PHAZE_DRAWS=1000 pytest tests/laws/test_renamed_columns.py` draws more.
"""

from __future__ import annotations

import string
from pathlib import Path
from random import Random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError
from tests.laws.test_laws import LAWS


def row_of(text: str) -> dict[str, str]:
    """Cells by column, from words with an equals sign."""
    return dict(word.split("=") for word in text.split())


RUNS = row_of(
    "model=qwen3-30b-a3b seq=4096 gpus=64 global_batch=512 tp=2 ep=8 etp=1 microbatch=2 recompute=moe_act "
    "zero=1 sequence_parallel=true compute=fp8-cs load=1.2 replicate=2 overlap=dp offload=attn_norm mtp=0 "
    "flash_attention=true gradients=fp32 schedule=1f1b system=h100 stack=megatron-core measured_s=9 "
    "optimizer=sgd precision=mixed pp=1 cp=1"
)
"""A run with a value of its own in every column of `simulate --runs` that goes with the others."""
KERNELS = {
    "products": "precision=fp8 m=4096 n=4096 k=4096",
    "attention": "precision=bf16 kernel=3 direction=backward mask=none batch=2 sequence=4096 heads=32 "
    "kv_heads=8 head_size=128 value_size=64",
    "experts": "precision=bf16 model=deepseek-v3 kernel=grouped ep=16 tokens=4096 distribution=balanced",
    "collectives": "precision=half kind=all_reduce ranks=8 elements=65536",
}
"""A kernel with a value in every column of each part."""


def renamed(name: str, random: Random) -> str:
    """Name with one letter more, less or another one."""
    place, letter = random.randrange(len(name)), random.choice(string.ascii_lowercase)
    longer, shorter = name[:place] + letter + name[place:], name[:place] + name[place + 1 :]
    other = random.choice([longer, shorter or letter, name[:place] + letter + name[place + 1 :]])
    return other if other != name else longer


def answer(part: str, row: dict[str, str], folder: Path) -> tuple[str, str]:
    """Output of the command that reads a table, and the table that it writes; refusals as output."""
    path, out = folder / "table.csv", folder / "out.csv"
    pd.DataFrame([row]).to_csv(path, index=False)
    out.unlink(missing_ok=True)
    arguments = (
        ["simulate", "--runs", str(path), "--system", "h100", "-o", str(out)]
        if part == "runs"
        else ["validate", "--part", part, str(path), "--json"]
    )
    try:
        text = CliRunner().invoke(app, arguments, catch_exceptions=False).output
    except PhazeError as error:
        text = f"refused: {error} {error.fix}"
    return text, out.read_text().splitlines()[1] if out.exists() else ""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Answers to the valid tables."""
    folder = tmp_path_factory.mktemp("valid")
    valid = {part: answer(part, row, folder) for part, row in tables().items()}
    assert not any("refused" in text or "invalid" in cells for text, cells in valid.values()), valid
    return valid


def tables() -> dict[str, dict[str, str]]:
    """Valid row of every kind of table."""
    device = "device=H100-SXM latency_ms=50"
    return {"runs": RUNS} | {part: row_of(f"{device} {cells}") for part, cells in KERNELS.items()}


@LAWS
@given(seed=st.integers(0, 2**32))
def test_a_renamed_column_is_not_passed_over(
    answers: dict[str, tuple[str, str]], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = Random(seed)
    part = random.choice(list(answers))
    row = tables()[part]
    column = random.choice(list(row))
    other = renamed(column, random)
    if other in row:
        return
    changed = {other if name == column else name: cell for name, cell in row.items()}
    text, cells = answer(part, changed, tmp_path_factory.getbasetemp())
    passed_over = "refused" not in text and "invalid" not in cells and cells == answers[part][1]
    assert other in text or column in text or not passed_over, (part, column, other)
