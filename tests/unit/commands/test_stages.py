"""Operators on an accelerator: names, order, totals and rooflines."""

import json
import re
from collections.abc import Callable

import pytest

from phaze.base.errors import PhazeError
from phaze.commands.stages import ScheduleOptions
from phaze.commands.tables import Titled, counts, print_rows
from phaze.solver import VERSIONS
from tests.commands import Terminal, invoke

TPU_V4 = {"tensor": 2 * 8 * 128**2 * 1.05e9, "hbm": 1.2e12}
"""Peak FLOP/s and HBM bandwidth of TPU v4 (Jouppi et al., ISCA 2023, Table 4)."""


def printed(*arguments: str) -> str:
    return invoke(*arguments, "-m", "gpt2", "--sequence", "512").stdout


def rows(*arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(printed(*arguments, "--json"))
    return found


def test_scheduled_operators_have_the_names_of_the_extracted_ones() -> None:
    keys = ("tensor", "layer", "direction", "operator", "name")
    widths = ("--tensor", "1", "--tensor", "2")
    extracted = {tuple(row[key] for key in keys) for row in rows("extract", *widths)}
    assert {tuple(row[key] for key in keys) for row in rows("schedule", "--operators", *widths)} == extracted
    text = printed("schedule", "--operators")
    told = invoke("schedule", "-m", "gpt2", "--operators").stderr
    assert (
        "schedule: gpt2 on tpu-v4-as-built; links, and what the chip does not state, are those of tpu-v4-pod"
        in told
    )
    assert "feed_forward_in + feed_forward_in_bias + gelu " in text
    assert len(text.splitlines()) == 1 + len(rows("schedule", "--operators"))


def test_rooflines_are_those_of_the_peaks() -> None:
    found = rows("estimate", "--tensor", "2")
    for row in found:
        if row["core"] == "network":
            assert (row["roof"], row["roof_share"]) == ("", None)
            continue
        assert 0 < float(str(row["roof_share"])) <= 1 + 1e-12
        reached = float(str(row["roof_share"])) * float(str(row["latency_all_s"]))
        memory_s = float(str(row["hbm_all_bytes"])) / TPU_V4["hbm"]
        if row["roof"] == "memory":
            assert reached == pytest.approx(memory_s)
        else:
            assert reached > memory_s
        if row["core"] == "tensor":
            compute_s = float(str(row["flops"])) / TPU_V4["tensor"]
            assert reached == pytest.approx(max(compute_s, memory_s))
    assert {row["roof"] for row in found} == {"", "compute", "memory"}


def test_totals_are_sums_over_all_layers() -> None:
    found = rows("estimate")
    assert {(row["layer"], row["layers"]) for row in found} == {("embedding", 1), ("block", 12), ("head", 1)}
    flops = sum(float(str(row["flops"])) * int(str(row["layers"])) for row in found)
    seconds = sum(float(str(row["latency_all_s"])) * int(str(row["layers"])) for row in found)
    *_, total = printed("estimate").splitlines()
    layer, direction, _, milliseconds, _, gigaflops, _ = total.split()
    assert (layer, direction) == ("all", "both")
    assert float(milliseconds) == pytest.approx(1e3 * seconds, rel=5e-3)
    assert float(gigaflops) == pytest.approx(1e-9 * flops, rel=5e-3)


@pytest.mark.parametrize("column", ["us", "latency_all_s"])
def test_operators_are_sorted_by_a_title_or_a_key(column: str) -> None:
    slowest_first = [float(str(row["latency_all_s"])) for row in rows("estimate", "--sort", column)]
    given = [float(str(row["latency_all_s"])) for row in rows("estimate")]
    assert slowest_first == sorted(given, reverse=True) != given
    _, first, *_ = printed("estimate", "--sort", column).splitlines()
    assert first.split()[:3] == ["head", "backward", "logits.backward"]
    named = [row["name"] for row in rows("estimate", "--sort", "operator")]
    assert named == sorted(map(str, named))


@pytest.mark.parametrize("columns", [40, 90, 200])
def test_a_terminal_shows_all_digits_whatever_its_width(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    for name, value in {"COLUMNS": str(columns), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", terminal)
    values = dict.fromkeys("abcdefghij", 7_777_777)
    print_rows([values], [Titled("a", "text", wraps=True), *(counts(key, key) for key in values)])
    assert terminal.getvalue().count("7") == 7 * 11
    plain = re.sub(r"\x1b\[[0-9]*m", "", terminal.getvalue())
    assert max(map(len, plain.splitlines())) <= columns


@pytest.mark.parametrize("solver", ["glpk", "highs"])
def test_the_formulation_of_the_paper_proves_the_same_latencies(
    solver: str, require_program: Callable[[str], str]
) -> None:
    """Every layer is solved as printed in Figure 3, also where bounds alone would prove it."""
    if solver == "glpk":
        require_program("glpsol")
    sparse, paper = (
        {(row["layer"], row["direction"]): row for row in rows("schedule", *options)}
        for options in ((), ("--formulation", "paper", "--solver", solver))
    )
    for key, row in paper.items():
        assert (row["method"], row["formulation"], row["solver"]) == ("program", "paper", solver)
        assert row["objective_s"] == pytest.approx(sparse[key]["objective_s"], rel=1e-6)


def test_a_solver_that_is_not_installed_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, "glpk", lambda: None)
    with pytest.raises(PhazeError, match="--solver glpk: glpsol is not installed") as error:
        invoke("schedule", "-m", "gpt2", "--solver", "glpk")
    assert "apt-get install glpk-utils" in str(error.value)


def test_without_an_option_highs_follows_glpk_as_the_help_says() -> None:
    settings = ScheduleOptions(model="gpt2").settings()
    assert settings.solver == ("glpk", "highs")
    words = re.sub(r"[\s│]+", " ", invoke("schedule", "--help").stdout)
    assert "Default: GLPK, then HiGHS where GLPK finds no proof in time." in words
