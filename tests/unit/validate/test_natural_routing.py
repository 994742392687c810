"""Natural routing compared with published runs: pairs with forced and natural routing, and single runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations

import pytest
from scipy.optimize import brentq

from phaze.layout import load_of
from phaze.plan.machines import load_machine
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.scoreboard import MEASURED
from phaze.validate.table import predict
from phaze.workload.expert_loads import CORRELATIONS, natural_factor

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PAIRS = ("16k", "64k")
"""Sequence lengths of the pairs: Qwen3-235B at one layout, with forced and with natural routing."""
EXPERTS = (128, 8, 8)
"""Experts, experts per token and expert ranks of the pairs."""


@cache
def measured(source: str) -> dict[str, RunRow]:
    """Return the rows of a source by label."""
    table, rows = read_rows(MEASURED / f"{source}.csv")
    return dict(zip(table["label"], rows, strict=True))


def predicted_s(row: RunRow, load: str = "") -> float:
    """Return the predicted step time of a row, with another expert load if one is given."""
    (run,) = row.runs
    run = replace(run, layout=replace(run.layout, load=load or run.layout.load))
    return predict(run, load_machine(row.system, stack=row.stack)).time_s


def ratio(length: str, load: str = "") -> float:
    """Return the predicted time of a pair's natural run over that of its forced one."""
    rows = measured("moe-modelzoo")
    return predicted_s(rows[f"{length} natural"], load) / predicted_s(rows[f"{length} forced"])


def measured_ratio(length: str) -> float:
    """Return the measured time of a pair's natural run over that of its forced one."""
    natural_s, forced_s = (
        measured("moe-modelzoo")[f"{length} {name}"].measured_s for name in ("natural", "forced")
    )
    assert natural_s
    assert forced_s
    return natural_s / forced_s


def fitted(length: str) -> float:
    """Return the correlation of router scores at which a pair's ratio is predicted as measured."""

    def excess(correlation: float) -> float:
        return ratio(length, load_of(f"{natural_factor(correlation, *EXPERTS):f}")) - measured_ratio(length)

    return float(brentq(excess, 0.05, 1.0, xtol=0.01))


def test_natural_routing_takes_longer_as_measured() -> None:
    for length in PAIRS:
        assert ratio(length) == pytest.approx(measured_ratio(length), rel=0.03)


def test_each_pair_is_predicted_by_the_other() -> None:
    """The constant lies between the two fits, and either one predicts the other pair."""
    fits = {length: fitted(length) for length in PAIRS}
    assert min(fits.values()) - 0.01 <= CORRELATIONS["loss"] <= max(fits.values()) + 0.01
    for fit, other in permutations(PAIRS):
        load = load_of(f"{natural_factor(fits[fit], *EXPERTS):f}")
        assert ratio(other, load) == pytest.approx(measured_ratio(other), rel=0.05)


def test_runs_with_natural_routing() -> None:
    """GPT-OSS has no balancing, Moonlight biases. No constant of routing is fitted to them."""
    rows = measured("megatron-bridge-cards")
    errors = {}
    for name in ("GPT-OSS-20B", "GPT-OSS-120B", "Moonlight-16B"):
        row = rows[f"{name} natural"]
        assert row.measured_s
        errors[name] = [predicted_s(row, load) / row.measured_s - 1 for load in ("natural", "balanced")]
    natural, balanced = ([abs(pair[i]) for pair in errors.values()] for i in range(2))
    assert sum(natural) / 3 < 0.095
    assert max(natural) < 0.12
    # With balanced experts the larger model is far too short; the smaller one waits for its host either way.
    assert sum(balanced) > 2 * sum(natural)
