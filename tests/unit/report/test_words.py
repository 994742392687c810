"""Numbers are shown with three digits and a suitable unit."""

import math

import pandas as pd
import pytest

from phaze.pages import words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"), (2.5e-7, "250 ns"), (1.234e-5, "12.3 µs"), (0.0123, "12.3 ms"), (1, "1.00 s"),
        (61.23, "61.2 s"), (1234.5, "1,234 s"), (7200, "2.00 h"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_seconds(value: float, shown: str) -> None:
    assert words.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (1536, "1.50 KiB"), (2**20, "1.00 MiB"), (4 * 2**30, "4.00 GiB"), (-(2**30), "-1.00 GiB")],
)
def test_sizes_are_binary(value: float, shown: str) -> None:
    assert words.size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.2e12, "1.20 TB/s"), (4.3e9, "4.30 GB/s"), (0, "0 B/s"), (3e-3, "3.00 mB/s"), (2.5e16, "25.0 PB/s")],
)
def test_decimal_quantities(value: float, shown: str) -> None:
    assert words.decimal(value, "B/s") == shown


@pytest.mark.parametrize(("value", "shown"), [(2.345, "2.35×"), (0.0, "–"), (math.inf, "–"), (math.nan, "–")])
def test_factors(value: float, shown: str) -> None:
    assert words.times(value) == shown


def test_percentages_and_areas() -> None:
    assert words.percent(0.1234) == "12.3 %"
    assert words.percent(math.nan) == "–"
    assert [words.signed(share) for share in (0.1, -0.1, 0.0, math.inf)] == [
        "+10.0 %",
        "-10.0 %",
        "0.0 %",
        "–",
    ]
    assert words.area(278826680) == "278.8 mm²"


@pytest.mark.parametrize(("items", "shown"), [([], ""), (["a"], "a"), (["a", "b", 3], "a, b and 3")])
def test_lists_in_sentences(items: list[object], shown: str) -> None:
    assert words.join(items) == shown


def test_accelerators_read_as_in_table_2() -> None:
    chip = pd.Series(
        {
            "num_tc": 2, "num_vc": 512, "pe_x": 256, "pe_y": 256, "pe_vc": 256, "glb_bytes": 32 * 2**20,
            "glb_words_per_cycle": 4096.0, "l2_tc_bytes": 2**20, "l2_vc_bytes": 4096,
        }
    )  # fmt: skip
    assert words.compute(chip) == "{2, 512, 256, 256, 256}"
    assert words.buffers(chip) == "{32 MiB, 4096, 1 MiB, 4 KiB}"
    assert words.widths(pd.Series({"stages": 1, "data": 1024, "layout": "tp1-b1"})) == "{1, 1024, 1}"


def test_names_of_operators_read_as_words() -> None:
    assert words.operator("attention_out_bias+attention_add.backward") == "attention out bias + attention add"
