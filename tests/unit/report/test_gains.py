"""Gains over the baseline under every reading; a reading that reverses a claim comes first."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from phaze.pages.document import Items, Sheet
from phaze.pages.words import times
from phaze.report.build import Headline, answer
from phaze.report.findings import COMMON, PER_MODEL, Findings, row_of
from phaze.report.inputs import Inputs
from phaze.report.overview import assumptions, find_gains
from phaze.spec.study import Study
from phaze.tables import Gains, Readings
from tests.unit.report.builder import of_kind
from tests.unit.report.toy_chips import BASELINE

READINGS = {
    "paired": {"note": "a tensor core waits for its vector core", "extract": {"fusion": False}},
    "lanes": {"note": "the lanes that were built", "baseline": "as-built"},
}
WINNER = "winner"
"""Placeholder for the best accelerator of a workload."""
THROUGHPUTS = {
    "study": {BASELINE: 10.0, "as-built": 25.0, "phaze-common": 20.0, WINNER: 30.0},
    "paired": {BASELINE: 10.0, "as-built": 25.0, "phaze-common": 15.0, WINNER: 18.0},
    "lanes": {BASELINE: 10.0, "as-built": 25.0, "phaze-common": 20.0, WINNER: 30.0},
}
"""Samples per second with 32 GiB by reading; the winner has four times as many with 64 GiB."""


@pytest.fixture(scope="module")
def read(inputs: Inputs, findings: Findings) -> Inputs:
    """Return the toy study with readings."""
    given = inputs.study.model_dump(mode="json")
    given["architectures"]["named"] = [*inputs.study.architectures.named, "as-built"]
    study = Study.parse({**given, "readings": READINGS}, "study.yaml")
    rows = [
        {**_row(samples * memory**2 / 1024), "reading": reading, "model": model, "hbm_gib": memory,
         "architecture": _winner(findings, model) if chip == WINNER else chip}
        for reading, chips in THROUGHPUTS.items()
        for chip, samples in chips.items()
        for model in study.models
        for memory in ((32.0, 64.0) if chip == WINNER else (32.0,))
    ]  # fmt: skip
    return replace(inputs, study=study, readings=Readings.check(pd.DataFrame(rows)))


def _winner(findings: Findings, model: str) -> str:
    row = row_of(findings.results, model, PER_MODEL)
    assert row is not None
    return str(row["architecture"])


def _row(samples_per_s: float) -> dict[str, object]:
    return {
        "planner": "phaze", "status": "placed", "reason": "", "layout": "tp1-b1", "data": 1, "stages": 1,
        "recompute": False, "devices_used": 1, "time_per_batch_s": 1 / samples_per_s,
        "samples_per_s": samples_per_s, "mfu": 0.5, "mfu_paper": 0.6, "binding": "compute",
    }  # fmt: skip


@pytest.fixture(scope="module")
def found(read: Inputs, findings: Findings) -> Findings:
    return replace(findings, gains=find_gains(read, findings.results))


def test_gains_are_over_the_baseline_of_each_reading(found: Findings) -> None:
    gains = found.gains.set_index(["design", "reading"])["gain"]
    assert gains["phaze-common"].to_dict() == pytest.approx({"study": 2.0, "paired": 1.5, "lanes": 0.8})
    changes = found.gains.set_index(["design", "reading"])["of_study"]
    assert changes["phaze-common"].to_dict() == pytest.approx({"study": 1.0, "paired": 0.75, "lanes": 0.4})


def test_an_accelerator_has_the_memory_that_suits_it_best(found: Findings) -> None:
    gains = found.gains.set_index(["design", "reading"])["gain"]
    assert gains[PER_MODEL].to_dict() == pytest.approx({"study": 12.0, "paired": 7.2, "lanes": 4.8})


def test_models_that_one_of_both_does_not_train_do_not_count(read: Inputs, findings: Findings) -> None:
    table = read.readings
    lost = (table["architecture"] == BASELINE) & (table["model"] == read.study.models[0])
    less = replace(read, readings=table[~lost])
    gains = find_gains(less, findings.results).set_index(["design", "reading"])
    assert gains.loc[("phaze-common", "study"), "models"] == len(read.study.models) - 1
    assert gains.loc[("phaze-common", "study"), "gain"] == pytest.approx(2.0)


def test_the_first_lines_say_every_gain_and_first_the_claim_that_turns_over(
    read: Inputs, found: Findings
) -> None:
    first = answer(read, found)
    sentence = first.details
    turned = (
        "The gain of phaze-common depends on an assumption: it trains 2.00× as fast as tpu-v4 under the "
        "settings of the study, but under lanes, 0.80× over as-built (the lanes that were built)."
    )
    assert sentence.startswith(turned)
    gain = "trains 2.00× as fast as tpu-v4 as planned; under the readings paired 1.50× and lanes 0.80×."
    assert f"phaze-common {gain}" in sentence
    assert "The best one for all trains 12.00× as fast as tpu-v4 as planned" in sentence
    assert sentence.count("depends on an assumption") == 1
    assert first.sentence.startswith(
        "phaze-common trains 2.00× as fast as tpu-v4; 0.80× over as-built under the reading lanes. "
    )


def test_a_gain_on_the_first_screen_has_its_range_under_all_readings(read: Inputs, found: Findings) -> None:
    own = (found.gains["design"] == COMMON) & (found.gains["baseline"] == BASELINE)
    gains = found.gains[own]["gain"]
    headline = Headline.of(read, found)
    assert headline is not None
    mean, _ = headline.mean(COMMON, BASELINE)
    ends = f"{times(min(*gains, mean))} to {times(max(*gains, mean))}"
    first = answer(read, found)
    gain = f"trains {ends} as fast as {BASELINE}, {times(mean)} as simulated under the study's settings."
    assert gain in first.sentence
    assert ends in dict(first.facts)


def test_a_baseline_beyond_the_area_limit_is_said_to_be(inputs: Inputs, findings: Findings) -> None:
    assert "beyond the area limit" not in answer(inputs, findings).sentence
    small = replace(inputs.cluster, area_limit_um2=inputs.cluster.area_limit_um2 / 2)
    sentence = answer(replace(inputs, clusters={"paper": small}), findings).sentence
    beyond = f"The baseline {BASELINE} has 282.2 mm², beyond the area limit of the search, 143.9 mm²."
    assert beyond in sentence


def test_the_readings_stand_side_by_side(read: Inputs, found: Findings) -> None:
    section = next(assumptions(read, found))
    (items,) = of_kind(section, Items)
    assert len(items.sentences) == 1
    (sheet,) = of_kind(section, Sheet)
    assert [row[0] for row in sheet.rows] == ["study", "paired", "lanes"]
    at = sheet.header.index("phaze-common")
    assert [row[at] for row in sheet.rows] == ["2.00×", "1.50×", "0.80×"]
    assert sheet.rows[2][1:3] == ("the lanes that were built", "as-built")


def test_a_study_without_readings_says_nothing_of_them(inputs: Inputs, findings: Findings) -> None:
    pd.testing.assert_frame_equal(find_gains(inputs, findings.results), Gains.empty())
    assert not list(assumptions(inputs, findings))
    assert "depends on an assumption" not in answer(inputs, findings).details


def test_a_winner_that_has_a_name_is_said_once(read: Inputs, found: Findings) -> None:
    named = found.gains[found.gains["design"] == "phaze-common"]
    others = found.gains[found.gains["design"] != PER_MODEL]
    same = replace(found, gains=pd.concat([named.assign(design=PER_MODEL), others]))
    sentence = answer(read, same).details
    assert "phaze-common trains" in sentence
    assert "best accelerator of every workload trains" not in sentence
