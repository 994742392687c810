"""The curve of throughput against area limit, and the tables of the best."""

import numpy as np
import pandas as pd

from phaze.report.findings import Findings
from phaze.report.report import Report
from phaze.report.space import curve_of


def test_the_curve_is_the_best_of_every_area_limit() -> None:
    """At any limit it is the largest throughput of all members within the limit."""
    rng = np.random.default_rng(2)
    members = pd.DataFrame({"area_um2": rng.integers(1, 30, 60), "samples_per_s": rng.random(60)})
    curve = curve_of(members)
    assert curve["samples_per_s"].is_monotonic_increasing
    for limit in range(1, 31):
        read = curve.loc[curve["area_um2"] <= limit, "samples_per_s"].max()
        within = members.loc[members["area_um2"] <= limit, "samples_per_s"].max()
        assert read == within or np.isnan(within)


def test_the_best_by_every_objective_stand_in_the_report(findings: Findings, report: Report) -> None:
    """For the largest space, with their accelerators."""
    text = report.markdown.partition("## Throughput, area and energy")[2].partition("\n## ")[0]
    largest = findings.fronts[findings.fronts["area_limit_um2"] == findings.fronts["area_limit_um2"].max()]
    for _, mine in largest.groupby("model"):
        for flag, name in (("throughput", "throughput"), ("energy", "energy per sample")):
            assert f"| {name} | {mine.loc[mine[flag], 'architecture'].iloc[0]} |" in text
