"""The page of a chosen chip has the terminal's words, all designs by area and by sizes, and the proof."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from phaze.pages.document import Sheet
from phaze.pages.page import Report
from phaze.pages.vega import spec_of
from phaze.plan.answer.chip_words import choice_in_words, sentences
from phaze.report import chip_figures
from phaze.report.chip_page import ChipPage, chip_page
from phaze.spec.architecture import Architecture, ArchitectureSpace
from phaze.spec.chip_choice import (
    BoundForModel,
    ChipChoice,
    ChipForModels,
    ChipPrices,
    ChipQuestion,
    ChipRegret,
    ModelOnChips,
    PlanOnChip,
    RobustChoice,
)
from phaze.spec.systems import load_cluster
from tests.effort import DRAWS

CHIP = Architecture.parse(
    {
        "name": "tc4-vc4-128x128-glb4", "num_tc": 4, "num_vc": 4, "pe_x": 128, "pe_y": 128, "glb_mib": 4.0,
        "hbm_gib": 8.0, "clock_hz": 1e9, "hbm_bandwidth_bytes_per_s": 1e12, "area_mm2": 101.0,
    },
    "test",
)  # fmt: skip
CASE = ChipRegret(
    model="one", assumption="the bandwidth of HBM is 20 % lower", chip="small", hbm_gib=16.0, regret=None
)


def choice(**fields: object) -> ChipChoice:
    """Return an answer for two models, of which only bounds are known."""
    plans = (
        PlanOnChip(model="one", stopped="its time limit of 5 s was reached"),
        PlanOnChip(model="two"),
    )
    row = {"chip": CHIP, "area_low_mm2": 90.0, "area_high_mm2": 101.0, "plans": plans, "price": 30.5}
    question = ChipQuestion(
        models=tuple(ModelOnChips(model=name, sequence=512, global_batch=8) for name in ("one", "two")),
        devices=4,
        cluster=load_cluster("tpu-v4")[0],
        space=ArchitectureSpace.parse({"grid": {}, "area_limit_mm2": 300.0}, "test"),
        hbm_gib=(8.0, 16.0),
        rank="prudent",
        objective="cost",
        prices=ChipPrices(per_mm2=0.3, per_gib=0.0, currency="USD"),
        gap=0.01,
    )
    return ChipChoice(
        question=question,
        designs=9,
        chosen=ChipForModels(role="all", **row),
        others=(ChipForModels(role="built", **row),),
        bounds=tuple(BoundForModel(model=name, score=2.0, bound=1.9) for name in ("one", "two")),
        gap=0.05,
        trust="Trust.",
        **fields,
    )


def drawn(rng: np.random.Generator, number: int = 40) -> pd.DataFrame:
    """Return designs by lot, on some of which nothing fits, and of which some have a plan."""
    sizes = {name: rng.choice([64, 128], number) for name in ("pe_x", "pe_y")}
    bounds, plans = rng.uniform(1, 3, (2, number)), rng.uniform(1, 2, (2, number))
    bounds[:, rng.random(number) < 0.1] = np.inf
    plans[:, rng.random(number) < 0.5] = np.nan
    plans[np.isinf(bounds)] = np.nan
    columns = {f"{name}_bound": row for name, row in zip(("time", "score"), bounds, strict=True)}
    columns |= dict(zip(("time", "score"), plans * bounds, strict=True))
    return pd.DataFrame(
        {
            "name": [CHIP.name, *(f"chip-{place}" for place in range(1, number))], **sizes,
            "glb_mib": rng.choice([4.0, 16.0, 128.0], number), "hbm_gib": 8.0,
            "area_mm2": rng.uniform(50, 300, number), **columns,
        }
    )  # fmt: skip


@pytest.fixture
def report() -> Report:
    return chip_page(choice(), drawn(np.random.default_rng(0)))


def test_the_first_screen_is_the_answer_of_the_terminal(report: Report) -> None:
    question, recommendation, *details = sentences(choice())
    answer = report.answer
    assert (answer.question, answer.sentence) == (question, recommendation)
    assert answer.details == " ".join(details)
    assert "costs more than 5.0 % less per token/s in the geometric mean" in recommendation
    assert ("30.5", "USD of a chip with its HBM") in answer.facts
    assert [row[:3] for row in answer.sheet.rows] == [
        ("For all models", CHIP.name, "one"),
        ("For all models", CHIP.name, "two"),
        ("For comparison, as built", CHIP.name, "one"),
        ("For comparison, as built", CHIP.name, "two"),
    ]
    assert all(len(row) == len(answer.sheet.header) for row in answer.sheet.rows)
    assert answer.sheet.marked == {0, 1}
    assert "tok/s/USD" in answer.sheet.header
    assert "<title>" in report.page


def test_no_design_is_below_the_line_of_the_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(DRAWS // 4):
        page = ChipPage(choice(), drawn(rng))
        rows = page.fitting.assign(shown=page.fitting["time"].fillna(page.fitting["time_bound"]))
        line = chip_figures._front(rows, "time_bound")
        assert (np.diff(line["shown"]) < 0).all()
        for _, row in rows.iterrows():
            smaller = line[line["area_mm2"] <= row["area_mm2"]]
            assert row["shown"] >= smaller["shown"].iloc[-1]
        (drawing,) = (chart for chart in page.report().charts if chart.name == "front")
        spec = spec_of(drawing.draw())
        points = [row for data in spec["datasets"].values() for row in data if "kind" in row]
        # Every design is a point, and the chosen one is marked if it fits.
        assert {row["label"] for row in points} == set(rows["label"])
        assert [row["kind"] for row in points].count("chosen") == (rows["name"] == CHIP.name).sum()
        assert f"{(~np.isfinite(page.designs['time_bound'])).sum()} designs are left out" in drawing.caption


def test_the_map_has_the_best_design_of_every_cell() -> None:
    rng = np.random.default_rng(1)
    for _ in range(DRAWS // 4):
        page = ChipPage(choice(), drawn(rng))
        cells = page._cells()
        rows = page.fitting.assign(least=page.fitting["score"].fillna(page.fitting["score_bound"]))
        expected = rows.groupby(["pe_x", "pe_y", "glb_mib"])["least"].min()
        assert len(cells) == len(expected)
        found = cells.set_index(["array", "glb_mib"])
        for sizes, least in expected.items():
            x, y, mib = map(float, sizes)  # type: ignore[arg-type, misc]
            cell = found.loc[(f"{x:g} x {y:g}", f"{mib:g}")]
            assert cell["least"] == least
            best = rows[rows["label"] == cell["name"]].iloc[0]
            assert best["least"] == least
            assert cell["least_text"].startswith("≥") == np.isnan(best["score"])


@pytest.mark.parametrize("regret", [0.031, 0.0, None])
def test_other_assumptions_are_shown_where_they_were_asked_for(report: Report, regret: float | None) -> None:
    case = CASE.model_copy(update={"regret": regret})
    compared = case.model_copy(update={"chip": "large"}), CASE
    robust = RobustChoice(compared=compared, cases=(case,), gap=0.04)
    words = " ".join(choice_in_words(choice(robust=robust)).split())
    turn = "For one, if the bandwidth of HBM is 20 % lower, small with 16 GiB is better by 3.1 %."
    assert (turn in words) == bool(regret)
    assert ("It is the best one in all of them." in words) == (regret == 0)
    assert ("one fits on no compared chip if" in words) == (regret is None)
    page = chip_page(choice(robust=robust), drawn(np.random.default_rng(0)))
    (section,) = (section for section in page.sections if section.anchor == "robust")
    cases, chips = (block for block in section.blocks if isinstance(block, Sheet))
    assert cases.rows[0][2] == "small"
    assert [row[0] for row in chips.rows] == ["large", "small"]
    assert chips.rows[1][-1] == "unfit"
    assert "robust" not in {section.anchor for section in report.sections}
