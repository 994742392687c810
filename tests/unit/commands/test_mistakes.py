"""The commonest mistakes of people who know other programs: message and help say what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phaze.__main__ import main

FILES = {
    "mine.yaml": "layers: 4\nhiden: 8\nhidden: 8\nheads: 1\nfeed_forward: 8\nvocabulary: 8\n"
    "position_count: 8\n",
    "runs.csv": "hidden,heads,layers,seq,vocab,gpus,global_batch\n64,4,4,64,512,8,8\n",
    "flags.txt": "--num-layers 4 --hiden-size 64\n",
}
PLAN = "plan gpt2 --gpus 8xH100"
MISTAKES = (
    ("pln gpt2", "No such command 'pln'", "did you mean plan"),
    ("plan lama-3.1-8b --gpus 8xH100", "there is no model 'lama-3.1-8b'", "did you mean llama-3.1-8b"),
    ("plan meta-llama/Llama-3.1-9B --gpus 8xH100", "no model .* this", "config.json.*similar.* llama-3"),
    ("plan none.yaml --gpus 8xH100", r"none\.yaml: cannot be read: No such file", None),
    ("plan mine.yaml --gpus 8xH100", r"mine\.yaml: hiden: is not a known key", "did you mean hidden"),
    ("plan gpt2 --gpus 8xH10", "there is no system 'H10'", "did you mean h100"),
    ("plan gpt2 --gpus H100", "must be a number, x and a system, such as 256xH100", "--gpus 64,128xH100"),
    ("plan gpt2 --gpus 8 H100", r"unexpected extra argument\(s\) \(H100\)", r"Usage: .* plan \[OPTIONS\]"),
    ("plan gpt2", "the cluster is missing", "pass --gpus, such as --gpus 256xH100"),
    ("plan --gpus 8xH100", "Missing argument 'model'", r"Usage: .* plan \[OPTIONS\] \{model\}"),
    ("plan gpt2 --gpu 8xH100", "No such option: --gpu", "did you mean --gpus"),
    (f"{PLAN} --tp 4", "No such option: --tp", "--fix tp=VALUE"),
    (f"{PLAN} --pipeline-parallel-size 2", "No such option: --pipeline-p", "--fix pp=VALUE"),
    (f"{PLAN} --fix tensor=4", "got 'tensor=4'", "did you mean tp"),
    (f"{PLAN} --fix tp:4", "got 'tp:4'", "write tp=VALUE"),
    (f"{PLAN} --runtime megatron-lm", "'megatron-lm' is not one of", "did you mean megatron"),
    (f"{PLAN} --rank predicted", "'predicted' is not one of 'prudent', 'expected'", "mean expected"),
    (f"{PLAN} --precision fp16", "must be one of bf16, fp8, .*got fp16", None),
    (f"{PLAN} --stack megatron", "there is no stack 'megatron'", "did you mean megatron-lm"),
    (f"{PLAN} --global-batch 4M", "at most 67,108,864 tokens .*got 4,000,000", "--batch-tokens 4000000"),
    (f"{PLAN} --seq-length 4096", "4096 must be > 0 and at most position_count of model gpt2, 1024", None),
    (f"{PLAN} --tokens 15X", "optionally with the suffix k, M, G or T, such as 15T, got 15X", None),
    (f"{PLAN} --gap 1%", "'--gap': must be a valid number, got '1%'", None),
    (f"{PLAN} --price 2", "--price needs --tokens", "such as --tokens 15T"),
    (f"{PLAN} --page plan.pdf", "must end in .html", None),
    ("plan gpt2 --gpus 12xH100", "must be a multiple of 8, whole groups of a level, got 12", None),
    ("read flags.txt --for megatron --gpus 8xH100", "--hiden-size: .* did you mean --hidden-size", "name"),
    ("compare runs.csv", "Missing argument 'PLAN'", r"Usage: .* compare \[OPTIONS\] \{RUN\} \{PLAN\}"),
    ("place gpt2", "there is no such instance file", "phaze place --model gpt2"),
    ("place --model gpt2 --architecture tpuv4", "there is no architecture 'tpuv4'", "did you mean tpu-v4"),
    ("validate --system h100", "--system h100: is for files of yours", "--support for the published runs"),
)  # fmt: skip
"""Commands, a pattern of their message, and one of their help; None where the message has the fix."""


def test_there_are_the_31_commonest_mistakes() -> None:
    assert len({command for command, _, _ in MISTAKES}) == 31


@pytest.mark.parametrize(("command", "message", "fix"), MISTAKES, ids=[command for command, _, _ in MISTAKES])
def test_a_mistake_is_answered_with_what_to_write_instead(
    command: str,
    message: str,
    fix: str | None,
    tmp_path: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "config").symlink_to(project_root / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["phaze", *command.split()])
    assert main() in (1, 2)
    told = dict(line.split(": ", 1) for line in capsys.readouterr().err.splitlines())
    assert re.search(message, told["error"])
    assert not re.fullmatch(r".*see .*(-h|--help).*", told.get("help", ""))
    assert (fix is None and "help" not in told) or re.search(str(fix), told["help"])
