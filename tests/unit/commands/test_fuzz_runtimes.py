"""Changed plans and flags are answered, or refused with a line that names the file; no output is
half-written.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from typer.main import get_command

from phaze.__main__ import app
from phaze.base.errors import PhazeError
from tests.unit.test_fuzz import KEYS, ODD, at, likely, places, put

RUN, COMMAND = CliRunner(), get_command(app)  # made once: that takes longer than most answers
EACH = 50
"""Changed inputs of each command."""
ANSWERED = 0.1
"""Minimum share of answered inputs, so that the test does not only cover refusals."""
WORDS = (
    "", "0", "-1", "1", "2", "3", "64", "1e400", "nan", "2.5", "1" * 400, "ä", "\x1b[31m", "--", "'", '"',
    "none", "full", "selective", "[1]*2", "([0]+[1]*3)", "Et|tL", "M*-", "flex", "local", "true",
)  # fmt: skip
FURTHER = (
    "--num-experts 8", "--multi-latent-attention", "--use-megatron-fsdp", "--fp8-format hybrid", "--swiglu",
    "--vocab-file vocab.txt", "--tp-comm-overlap", "--attention-backend unfused", "--transformer-impl local",
    "--recompute-granularity full", "--cp-comm-type a2a+p2p", "--window-size 5,0", "--mtp-num-layers 2",
    "CUDA_DEVICE_MAX_CONNECTIONS=8", "--hybrid-layer-pattern M*-|E/E", "--expert-model-parallel-size 4",
)  # fmt: skip


def changed_json(random: Random, base: object) -> str:
    """JSON document with up to three changes, sometimes truncated."""
    document = copy.deepcopy(base)
    for _ in range(random.randint(0, 3)):
        path = random.choice(places(document))
        kind = random.choice(("likely", "likely", "odd", "delete", "add"))
        if kind == "likely":
            put(document, path, random.choice(likely(at(document, path))))
        elif kind == "odd":
            put(document, path, copy.deepcopy(random.choice(ODD)))
        elif kind == "delete":
            del at(document, path[:-1])[path[-1]]  # type: ignore[attr-defined]
        elif isinstance(section := at(document, path), dict):
            section[random.choice(KEYS)] = copy.deepcopy(random.choice(ODD))
    text = json.dumps(document)
    return text[: random.randrange(len(text))] if random.random() < 0.05 else text


def changed_flags(random: Random, base: str) -> str:
    """Flags with up to three changes: values, omissions, duplicates or additions."""
    lines = base.splitlines()
    for _ in range(random.randint(0, 3)):
        place = random.randrange(len(lines))
        flag, _, value = lines[place].rstrip("\\ ").partition(" ")
        kind = random.choice(("value", "number", "number", "drop", "add", "garble"))
        if kind == "value":
            lines[place] = f"{flag} {random.choice(WORDS)} \\"
        elif kind == "number" and value.isdigit():
            lines[place] = f"{flag} {random.choice((int(value) * 2, int(value) // 2, int(value) + 1))} \\"
        elif kind == "drop":
            lines[place] = "\\"
        elif kind == "add":
            lines.insert(place, f"{random.choice(FURTHER)} \\")
        else:
            lines[place] = "".join(random.sample(lines[place], len(lines[place])))
    return "\n".join(lines)


def tried(verb: Sequence[str], file: Path, texts: Sequence[str], outs: Sequence[Path]) -> Counter[str]:
    """Outcomes of inputs, answered or refused; a refusal names the file or the command in every line."""
    counts: Counter[str] = Counter()
    for text in texts:
        file.write_text(text, errors="surrogatepass")
        try:
            found = RUN.invoke(COMMAND, list(verb), catch_exceptions=False)
        except PhazeError as error:
            for line in str(error).splitlines() or [""]:
                assert line.startswith((str(file), verb[0])), line
                assert len(line) < 1000, line
            assert [out for out in outs if out.exists()] == []
            counts["refused"] += 1
        else:
            assert found.exit_code == 0, found.output
            counts["answered"] += 1
        for out in outs:
            out.unlink(missing_ok=True)
        assert not list(file.parent.glob(".*.part"))
    print(f"{verb[0]}: {counts}")  # noqa: T201
    assert counts.total() == EACH
    assert counts["answered"] >= ANSWERED * EACH, counts
    return counts


@pytest.fixture(scope="module")
def flags(plan_file: Path) -> str:
    """Flags of the plan, as emitted."""
    return RUN.invoke(COMMAND, ["emit", str(plan_file), "--for", "megatron"], catch_exceptions=False).stdout


def test_emit(plan_file: Path, tmp_path: Path) -> None:
    random, base = Random(1), json.loads(plan_file.read_text())
    del base["sha256"]  # else every change would be refused for it
    file, out = tmp_path / "plan.json", tmp_path / "out.txt"
    texts = [changed_json(random, base) for _ in range(EACH)]
    tried(["emit", str(file), "--for", "megatron", "-o", str(out)], file, texts, [out])


@pytest.mark.slow
def test_read(flags: str, tmp_path: Path) -> None:
    random = Random(2)
    file, out = tmp_path / "flags.txt", tmp_path / "out.csv"
    texts = [changed_flags(random, flags) for _ in range(EACH)]
    verb = ["read", str(file), "--for", "megatron", "--system", "h100", "-o", str(out)]
    tried(verb, file, texts, [out, out.with_suffix(".yaml"), out.with_name("out-stack.yaml")])


def test_compare(flags: str, plan_file: Path, tmp_path: Path) -> None:
    random = Random(3)
    file = tmp_path / "flags.txt"
    texts = [changed_flags(random, flags) for _ in range(EACH)]
    tried(["compare", str(file), str(plan_file)], file, texts, [])
