"""Runs priced from their runtime's settings: kernels and overlap of the flags, and messages."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from phaze.spec.files import FOLDER
from tests.commands import assert_refused, invoke, invoke_json

FLAGS = """
pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048
    --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 32 --vocab-file bpe/vocab.json
    --merge-file bpe/merges.txt --bf16 --tensor-model-parallel-size 2 --sequence-parallel
    --use-distributed-optimizer
"""
ALL = "--overlap-grad-reduce --overlap-param-gather --tp-comm-overlap --grad-reduce-in-bf16"


def _read(folder: Path, more: str, *options: str) -> dict[str, object]:
    file = folder / "flags.txt"
    file.write_text(f"{FLAGS} {more}")
    found: dict[str, object] = invoke_json(f"read {file} --for megatron --system h100", *options)
    return found


def _time(found: dict[str, object]) -> float:
    time_s = found["time_s"]
    assert isinstance(time_s, float)
    return time_s


def _memory(found: dict[str, object]) -> float:
    memory = found["memory_gib"]
    assert isinstance(memory, list)
    return float(max(memory))


def test_what_flags_do_not_say_does_not_overlap(tmp_path: Path) -> None:
    overlapped, plain = (_read(tmp_path, more, "--devices", "16") for more in (ALL, ""))
    assert _time(plain) > 1.05 * _time(overlapped)
    assert _memory(plain) > _memory(overlapped)  # gradients in single precision


@pytest.mark.parametrize("more", ["--attention-backend unfused", "--transformer-impl local"])
def test_scores_are_in_memory_where_flags_say_so(more: str, tmp_path: Path) -> None:
    unfused, flash = _read(tmp_path, more), _read(tmp_path, "--attention-backend flash")
    assert _time(unfused) > 1.05 * _time(flash)
    assert _memory(unfused) > 1.2 * _memory(flash)


def test_what_is_not_modelled_is_in_the_answer(tmp_path: Path) -> None:
    found = _read(tmp_path, "--deterministic-mode --optimizer muon --log-interval 1")
    assert found["unmodelled"] == ["--deterministic-mode", "--optimizer muon"]
    assert found["not_priced"] == ["--log-interval"]


def test_a_load_of_the_stack_is_that_of_a_run_without_one(tmp_path: Path) -> None:
    """Given to --stack; a setting that forces balance and a comment have precedence."""
    stack, file = tmp_path / "own.yaml", tmp_path / "flags.txt"
    stack.write_text((FOLDER / "stacks/megatron-core.yaml").read_text() + "\nload: {expected: 1.7}\n")
    experts = (
        "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 --moe-grouped-gemm "
        "--moe-token-dispatcher-type alltoall --swiglu --disable-bias-linear"
    )

    def loads_of(more: str) -> str:
        file.write_text(f"{FLAGS} {more}")
        out = tmp_path / "run.csv"
        invoke(f"read {file} --for megatron --system h100 --devices 16 --stack {stack} -o {out}")
        return str(pd.read_csv(out, dtype=str)["load"][0])

    assert loads_of(experts) == "1.7"
    assert loads_of(f"{experts} --moe-router-force-load-balancing") == "balanced"
    assert loads_of(f"{experts}\n# Expert load: 1.3\n") == "1.3"


def test_the_fewest_devices_are_taken_and_said(tmp_path: Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_text(FLAGS)
    found = invoke("read", file, "--for", "megatron", "--system", "h100")
    assert "flags on 2 devices of h100" in found.stdout
    assert "\noverlap dp+pp, gradients of 4 bytes" in found.stdout  # a dense model dispatches no tokens
    assert "the fewest that the layout allows, 2" in found.stderr


def test_a_run_that_does_not_fit_says_so(tmp_path: Path) -> None:
    file = tmp_path / "flags.txt"
    command = f"read {file} --for megatron --system h100"
    for layers, fits in ((24, True), (400, False)):
        flags = FLAGS.replace("--tensor-model-parallel-size 2 --sequence-parallel", "")
        file.write_text(flags.replace("--num-layers 24", f"--num-layers {layers}"))
        used = invoke_json(command)["in_use_gib"]
        said = invoke(command).stdout
        assert "flags on 1 device of h100" in said
        assert f"; in use {used['expected']:.1f} GiB ({used['low']:.1f} to {used['high']:.1f}) of 80" in said
        assert (used["high"] <= 80) == fits
        assert (f" of 80; does not fit: needs {used['low']:.1f} GiB or more of 80 GiB\n" in said) != fits


def test_a_vocabulary_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_text(FLAGS.replace("--vocab-file bpe/vocab.json", ""))
    command = f"read {file} --for megatron --system h100"
    assert_refused(rf"{file}: --vocab-size: must be given, or --vocab N", command)
    assert invoke(command, "--vocab", "50257").exit_code == 0


@pytest.mark.parametrize("verb", ["read", "compare", "emit"])
@pytest.mark.parametrize("kind", ["absent", "folder", "bytes"])
def test_files_that_cannot_be_read_are_named(kind: str, verb: str, plan_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "flags.txt"
    if kind == "folder":
        file.mkdir()
    elif kind == "bytes":
        file.write_bytes(b"\xff\xfe\x00")
    options = {"read": "--for megatron --system h100", "compare": str(plan_file), "emit": "--for megatron"}
    assert_refused(rf"^{file}: cannot be read", f"{verb} {file} {options[verb]}")
