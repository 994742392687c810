"""Errors of a source with constants fitted without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.spec.measured import KnownFrom
from phaze.validate.constants import Site
from phaze.validate.refit import Refit, changed, values_of
from phaze.validate.rows import RunRow, read_row
from phaze.validate.table import predict_rows

SYSTEM = "a100-vtrain"
TEXTS = {
    "hidden": "4096", "heads": "32", "layers": "2", "seq": "1024", "vocab": "51200", "gpus": "4",
    "global_batch": "16", "microbatch": "4", "system": SYSTEM,
}  # fmt: skip
CLOCK = KnownFrom(
    part="device", of=("a100-80gb",), key="sustained_clock", most=1.0, sources=("one", "two", "odd")
)
HOST = KnownFrom(part="stack", of=("megatron-deepspeed",), key="launch_s", most=1e-3, sources=("odd",))


def rows(clock: float) -> list[RunRow]:
    """Return runs with the times predicted for a share of the clock."""
    asked = [read_row({**TEXTS, "tp": tp, "layers": layers}) for tp in ("1", "4") for layers in ("1", "2")]
    change = np.log(clock / Site.load(SYSTEM).device.sustained_clock)
    machine = changed(Site.load(SYSTEM), {CLOCK: float(change)}).machine
    times = predict_rows([replace(row, system="") for row in asked], machine)["time_s"]
    return [replace(row, measured_s=float(time_s)) for row, time_s in zip(asked, times, strict=True)]


def test_a_source_is_predicted_by_what_the_others_say_whatever_it_says_itself() -> None:
    """Two sources ran with 0.85 of the clock, the third with 0.6; without the third the clock is 0.85."""
    refit = Refit({"one": rows(0.85), "two": rows(0.85), "odd": rows(0.6)}, [CLOCK, HOST])
    found = refit.times_s("odd")
    assert found is not None
    assert found == pytest.approx([row.measured_s for row in rows(0.85)], rel=0.01)
    other = Refit({"one": rows(0.85), "two": rows(0.85), "odd": rows(0.5)}, [CLOCK, HOST]).times_s("odd")
    assert other == pytest.approx(found)


def test_a_constant_that_is_known_from_one_source_alone_stays_and_without_another_there_is_no_error() -> None:
    assert Refit({"odd": rows(0.6)}, [CLOCK, HOST]).times_s("odd") is None
    assert Refit({"one": rows(0.85), "odd": rows(0.6)}, [HOST]).times_s("odd") is None


def test_a_constant_changes_its_own_device_and_stack_and_keeps_to_its_largest_value() -> None:
    site = Site.load(SYSTEM)
    assert changed(site, {HOST: 1.0}).stack.launch_s == pytest.approx(np.e * site.stack.launch_s)
    assert changed(site, {CLOCK: 5.0}).device.sustained_clock == 1.0
    elsewhere = CLOCK.model_copy(update={"of": ("h100-80gb",)})
    assert changed(site, {elsewhere: -1.0}).device == site.device


def test_a_constant_of_all_sources_is_recovered_and_outliers_count_less() -> None:
    """One run that took twice as long hardly moves the clock."""
    made = rows(0.85)
    refit = Refit({"one": made, "two": made, "odd": made}, [CLOCK])
    clock = Site.load(SYSTEM).device.sustained_clock
    assert clock * np.exp(refit.changes()[CLOCK]) == pytest.approx(0.85, rel=0.01)
    slow = [replace(made[0], measured_s=2 * (made[0].measured_s or 0.0)), *made[1:]]
    moved = Refit({"one": made, "two": made, "odd": slow}, [CLOCK]).changes()[CLOCK]
    assert clock * np.exp(moved) == pytest.approx(0.85, rel=0.03)


def test_a_fit_stays_below_the_largest_value() -> None:
    refit = Refit({"one": rows(1.0), "two": rows(1.0)}, [CLOCK.model_copy(update={"most": 0.995})])
    (change,) = refit.changes().values()
    assert Site.load(SYSTEM).device.sustained_clock * np.exp(change) <= 0.996


def test_nested_constants_change_alone() -> None:
    fitted = KnownFrom(
        part="device", of=("a100-80gb",), key="attention.2.forward.share", most=1.0, sources=("one",)
    )
    site = Site.load(SYSTEM)
    before, after = site.device.attention["2"], changed(site, {fitted: -0.1}).device.attention["2"]
    assert after.forward.share == pytest.approx(before.forward.share * np.exp(-0.1))
    assert after.backward == before.backward
    assert values_of(fitted) == {"a100-80gb": before.forward.share}
    with pytest.raises(PhazeError, match=r"fitted: a100-80gb attention\.9: is no number"):
        values_of(fitted.model_copy(update={"key": "attention.9"}))


def test_more_power_for_tensor_cores_raises_the_clock_of_compute_alone() -> None:
    texts = {**TEXTS, "system": "h100", "gpus": "8", "tp": "8"}
    plain, boosted = (read_row({**texts, "vboost": flag}) for flag in ("false", "true"))
    times = predict_rows([plain, boosted], None)["time_s"].tolist()
    boost = Site.load("h100").device.boost
    assert boost > 1
    assert times[0] / boost < times[1] < times[0]
