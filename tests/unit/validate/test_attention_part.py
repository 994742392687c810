"""Measured attention kernels compared with prices: tables, fitted constants, and accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.spec.speeds.attention import AttentionKernel, AttentionPass
from phaze.spec.systems import load_device
from phaze.validate.constants import Site
from phaze.validate.parts.attention import LONG, AttentionPart
from phaze.validate.parts.base import in_a_loop, site_of
from phaze.validate.parts.registry import kernel_files
from tests.commands import invoke

PART = AttentionPart()
HEADINGS = "device,batch_size,isl,num_heads,num_key_value_heads,head_dim,latency_ms,source\n"
LINE = "H100-SXM,1,4096,32,8,128,1.0,h100_sxm/attention/trtllm/1.3\n"
PLANTED = AttentionPass(
    share=0.5, heads={64: 0.8, 256: 1.1}, unmasked=1.05, fill=200.0, tail=0.4, start_s=1e-5, traffic=1.5
)


def site() -> Site:
    found = site_of("H100-SXM")
    assert found is not None
    return in_a_loop(found)


def planted(count: int, seed: int = 0) -> tuple[pd.DataFrame, Site]:
    """Rows with the times of a synthetic kernel, and a site that does not know it."""
    rng = np.random.default_rng(seed)
    heads = rng.choice([8, 16, 64], count)
    rows = pd.DataFrame({
        "device": "H100",
        "precision": "bf16",
        "kernel": "planted",
        "direction": rng.choice(["forward", "backward"], count),
        "mask": rng.choice(["causal", "none"], count),
        "batch": rng.choice([1, 4], count),
        "sequence": rng.choice([512, 1024, 4096, 16384], count),
        "heads": heads,
        "kv_heads": heads // rng.choice([1, 8], count),
        "head_size": rng.choice([64, 128, 256], count),
    }).assign(value_size=lambda one: one["head_size"])  # fmt: skip
    plain = site()
    kernels = {"planted": AttentionKernel(forward=PLANTED, backward=PLANTED)}
    device = plain.device.model_copy(update={"attention": kernels})
    known = Site(plain.cluster, device, plain.stack, plain.folder)
    return rows.assign(measured_s=PART.predicted_s(rows, known)), plain


def test_the_fit_recovers_planted_constants() -> None:
    rows, plain = planted(400)
    found = PART.fitted(rows, plain).device.attention["planted"]
    for one in (found.forward, found.backward):
        assert one is not None
        assert one.share == pytest.approx(PLANTED.share, rel=0.01)
        assert one.heads == pytest.approx(PLANTED.heads, rel=0.02)
        assert (one.unmasked, one.tail) == pytest.approx((PLANTED.unmasked, PLANTED.tail), rel=0.05)
        assert (one.fill, one.start_s, one.traffic) == pytest.approx((200, 1e-5, 1.5), rel=0.1)


def test_other_kernels_blocks_and_heads_stay_what_they_are() -> None:
    rows, plain = planted(40)
    rows = rows[(rows["direction"] == "forward") & (rows["head_size"] == 128)].assign(kernel="2")
    before, after = plain.device.attention, PART.fitted(rows, plain).device.attention
    assert after["2"].backward == before["2"].backward
    assert after["2"].forward.heads == before["2"].forward.heads
    assert after["2"].forward.block == before["2"].forward.block
    assert {name: one for name, one in after.items() if name != "2"} == {
        name: one for name, one in before.items() if name != "2"
    }


def test_a_table_may_leave_out_what_is_usual(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(HEADINGS + LINE)
    (row,) = PART.read(path).to_dict("records")
    assert (row["kernel"], row["direction"], row["mask"]) == ("trtllm", "forward", "causal")
    assert (row["precision"], row["value_size"], row["kv_heads"]) == ("bf16", 128, 8)
    assert PART.reads(path)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (",32,8,", ",32,5,", "line 2: kv_heads must divide heads 32, got 5"),
        (",1.0,", ",0.001,", "latency_ms must be at least 0.1389"),
        (",128,1.0", ",0,1.0", "head_dim must be a whole number"),
    ],
)
def test_a_wrong_row_says_why(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(HEADINGS + LINE.replace(old, new))
    with pytest.raises(PhazeError, match=problem):
        PART.read(path)


@pytest.mark.parametrize(("column", "word"), [("direction", "both"), ("mask", "some")])
def test_an_unknown_word_says_which_are_known(tmp_path: Path, column: str, word: str) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(HEADINGS.replace("source", f"source,{column}") + LINE.replace("\n", f",{word}\n"))
    with pytest.raises(PhazeError, match=f"{column} must be .* or .*, got {word}"):
        PART.read(path)


def test_kernels_that_a_device_has_not_are_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(HEADINGS + LINE.replace("trtllm", "sglang") + LINE)
    assert np.isnan(PART.predicted(PART.read(path))).tolist() == [True, False]


def long_errors(path: Path) -> dict[str, tuple[float, float]]:
    """Median and 90th percentile of the errors with long sequences, by kernel."""
    rows = PART.read(path)
    errors = np.abs(PART.predicted(rows) / rows["measured_s"] - 1)
    named = rows["device"] + " " + rows["kernel"]
    long = errors[rows["sequence"] >= LONG].groupby(named)
    return {str(name): (float(own.median()), float(own.quantile(0.9))) for name, own in long}


def test_every_measured_kernel_is_near_with_long_sequences() -> None:
    """Median error ≤ 6 %, 90th percentile ≤ 15 %, for every source."""
    found = long_errors(kernel_files(PART)[0])
    assert len(found) == 9
    assert {name: one for name, one in found.items() if one[0] > 0.06 or one[1] > 0.15} == {}


def test_kernels_that_are_not_in_the_project_are_as_near(shared_data: Path) -> None:
    found = long_errors(shared_data / "kernels" / "attention_forward.csv")
    assert len(found) == 4
    assert {name: one for name, one in found.items() if one[0] > 0.06 or one[1] > 0.15} == {}


def every_second_layer(*, left_out: bool) -> pd.DataFrame:
    """Attention of layers on an A100, both passes; the constants are fitted to every second one."""
    rows = PART.read(kernel_files(PART)[0].with_name("layer-attention.csv"))
    return rows[np.arange(len(rows)) // 2 % 2 == int(left_out)]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_attention_of_layers_that_are_in_no_fit_is_near_on_an_a100(direction: str) -> None:
    """Median error ≤ 8 %, 90th percentile ≤ 20 %: head dimensions of 32 to 256, without a mask."""
    rows = every_second_layer(left_out=True)
    rows = rows[rows["direction"] == direction]
    errors = np.abs(PART.predicted(rows) / rows["measured_s"].to_numpy() - 1)
    assert len(errors) == 38
    assert np.median(errors) <= 0.08
    assert np.quantile(errors, 0.9) <= 0.20


def test_heads_are_padded_to_the_multiple_of_a_kernel() -> None:
    """A head of 72 elements takes the arithmetic of 96, and its own traffic."""
    rows = every_second_layer(left_out=False)
    sizes = {"head_size": 72, "value_size": 72}
    narrow, padded = (rows.iloc[:1].assign(**dict.fromkeys(sizes, size)) for size in (72, 96))
    assert PART.predicted(narrow) == pytest.approx(PART.predicted(padded), rel=1e-3)


def test_constants_of_devices_are_what_a_fit_of_small_sources_gives() -> None:
    """For complete sources of the project: FlashAttention-2 on the A100, all kernels of the H100.

    On the A100 four times the rows of SimuMax, and every second layer whose pass takes a millisecond or more.
    """
    rows = PART.read(kernel_files(PART)[0])
    for device, kernel in (("A100 (PCIe)", "2"), ("H100", "3"), ("B200", "cudnn")):
        found = site_of(device)
        assert found is not None
        own = rows[(rows["device"] == device) & (rows["kernel"] == kernel)]
        if device == "A100 (PCIe)":
            fitted_layers = every_second_layer(left_out=False)
            own = pd.concat(
                [fitted_layers[fitted_layers["measured_s"] > 1e-3], *[own] * 4], ignore_index=True
            )
        fitted = PART.fitted(own, in_a_loop(found)).device.attention[kernel]
        assert fitted == found.device.attention[kernel]


def test_a_row_without_a_kernel_is_of_the_first_one_of_its_device(tmp_path: Path) -> None:
    """And JSON has null, which NaN is not, where no row of a group is predicted."""
    head = "device,batch,sequence,heads,kv_heads,head_size,precision,latency_ms"
    sizes = "2,16384,32,8,128"
    own, named = tmp_path / "own.csv", tmp_path / "named.csv"
    own.write_text(f"{head}\nH100-SXM,{sizes},bf16,50\nH100-SXM,{sizes},fp8,50\n")
    named.write_text(
        f"{head},kernel\nH100-SXM,{sizes},bf16,50,{next(iter(load_device('h100-80gb').attention))}\n"
    )
    texts = [invoke("validate --part attention", path, "--json").stdout for path in (own, named)]
    found, same = (json.loads(text, parse_constant=pytest.fail) for text in texts)
    assert found["answered"] == same["answered"] == 1
    assert found["median"] == same["median"]
    assert [group["median"] for group in found["groups"] if group["precision"] == "fp8"] == [None]
