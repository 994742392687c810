"""The curve of throughput against area limit, and the tables of the best."""

import numpy as np
import pandas as pd
import pytest

from phaze.report.findings import Findings
from phaze.report.report import Report
from phaze.report.space import curve_of


def test_the_curve_is_the_best_of_every_area_limit() -> None:
    """Read at any limit, it is the largest throughput of all members within that limit."""
    rng = np.random.default_rng(2)
    members = pd.DataFrame({"area_um2": rng.integers(1, 30, 60), "samples_per_s": rng.random(60)})
    curve = curve_of(members)
    assert curve["samples_per_s"].is_monotonic_increasing
    for limit in range(1, 31):
        read = curve.loc[curve["area_um2"] <= limit, "samples_per_s"].max()
        within = members.loc[members["area_um2"] <= limit, "samples_per_s"].max()
        assert read == within or np.isnan(within)


@pytest.mark.parametrize("model", ["bert-large", "megatron-bert", "megatron-gpt3-175b"])
def test_the_best_by_every_objective_stand_in_the_report(
    findings: Findings, report: Report, model: str
) -> None:
    """Of the largest space, with their accelerator."""
    mine = findings.fronts[findings.fronts["model"] == model]
    mine = mine[mine["area_limit_um2"] == mine["area_limit_um2"].max()]
    text = report.markdown.partition("## Throughput, area and energy")[2].partition("\n## ")[0]
    for flag, name in (("throughput", "throughput"), ("energy", "energy per sample")):
        assert f"| {name} | {mine.loc[mine[flag], 'architecture'].iloc[0]} |" in text
