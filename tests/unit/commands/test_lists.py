"""Lists of what phaze knows, and the names that a shell completes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from tests.commands import invoke

LISTS = {verb: [verb] for verb in ("models", "systems", "stacks", "architectures")}
LISTS["devices"] = ["devices", "architectures"]


def printed(*arguments: str) -> str:
    return invoke(*arguments).stdout


@pytest.mark.parametrize("verb", LISTS)
def test_a_list_has_every_file_with_its_source(verb: str, project_root: Path) -> None:
    rows = json.loads(printed(verb, "--json"))
    folders = (project_root / "config" / name for name in LISTS[verb])
    named = [path.stem for folder in folders for path in sorted(folder.glob("*.yaml"))]
    key = verb.removesuffix("s")
    assert [row[key] for row in rows] == named
    assert all(row["source"] for row in rows)
    text = printed(verb)
    assert text.count("\n") == len(rows) + 1, "a line for each in a pipe, below the headings"
    assert all(line == line.rstrip() for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 100, "long texts are cut"


def test_a_list_says_where_texts_that_are_not_printed_stand() -> None:
    assert "--json has all of them" in invoke("recipes", "mixtral").stderr
    assert "--json" not in invoke("models", "gpt2-xl").stderr


def test_sizes_are_those_of_the_publications() -> None:
    (llama,) = json.loads(printed("models", "llama-3.1-8b", "--json"))
    assert (llama["parameters"], llama["layers"], llama["longest_sequence"]) == (8030261248, 32, 131072)
    assert "8.03 B" in printed("models", "LLAMA-3.1-8b")
    (h100,) = json.loads(printed("devices", "h100-80gb", "--json"))
    assert h100["peak_flops_per_s"] == pytest.approx(989e12, rel=1e-3)
    h100, *_ = json.loads(printed("systems", "Megatron-LM benchmarks", "--json"))
    assert [level["devices"] for level in h100["levels"]] == [8, 6144]
    assert "8 at 450, 6,144 at 50.0 GB/s" in printed("systems", "Megatron-LM benchmarks")


def test_only_sources_are_cut_where_there_is_room_for_networks() -> None:
    _, *lines = printed("systems").splitlines()
    assert all(line.split("GB/s")[0].count("…") == 0 for line in lines if "GB/s" in line)
    rows = json.loads(printed("systems", "--json"))
    assert sum("GB/s" in line for line in lines) == sum(bool(row["levels"]) for row in rows)


def test_recipes_name_layout_and_publication() -> None:
    (mixtral,) = json.loads(printed("recipes", "mixtral-8x7b", "--json"))
    assert (mixtral["gpus"], mixtral["layout"]) == ("64xh100", "ep 8 pp 4 vp 8 dp 16 mbs 1 ZeRO-1")
    assert "NVIDIA/Megatron-LM 022bcb5" in mixtral["source"]
    with pytest.raises(PhazeError, match="no row contains 'gpt9'"):
        printed("recipes", "gpt9")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("phaze plan llama-3", ["llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b"]),
        ("phaze plan gpt2 --gpus 64xh2", ["64xh20", "64xh200"]),
        ("phaze place -a tpu-v4-", ["tpu-v4-as-built"]),
        ("phaze validate --system dgx", ["dgx1-ethernet"]),
        ("phaze plan gpt2 --stack fsdp2-", ["fsdp2-2026"]),
        ("phaze plan gpt2 --gpus 64", []),
        ("phaze plan gpt2 --gpus 64,128xH2", ["64,128xH20", "64,128xH200"]),
        ("phaze plan gpt2 --gpus 64,128hx", []),
        ("phaze plan gpt2 --gpus 8xV100", ["8xV100", "8xV100-32gb"]),
        ("phaze place -a tpu-v4-as-built,TPU-v5p", ["tpu-v4-as-built,TPU-v5p"]),
        (
            "phaze plan meta-llama/llama-3.1-8",
            ["meta-llama/llama-3.1-8B", "meta-llama/llama-3.1-8B-Instruct"],
        ),
        ("phaze schema pl", ["plan"]),
    ],
)
def test_the_shell_completes_names(words: str, completed: list[str]) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_PHAZE_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [Path(sys.executable).with_name("phaze")], env=os.environ | asked, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == completed
