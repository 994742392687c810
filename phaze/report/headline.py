"""Separate gains of accelerator and planner, for the first screen of a study.

The accelerator's gain is its throughput over the baseline's, with the same planner on both. The planner's
gain is the baseline's throughput over its throughput with the experts' plan. The product of both gains is the
speed-up in the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.overview import spread
from phaze.report.winners import COMMON, PER_MODEL, baseline_design
from phaze.report.words import join, percent, times

LEAST = 5e-4
"""Smallest reported loss relative to the baseline; a smaller one would be shown as 0.0 %."""
MOST_NAMED = 2
"""Number of slower workloads that are named; of more, only the one that loses most."""


@dataclass(frozen=True)
class Headline:
    """Throughputs by model (rows) and design (columns), as planned and as simulated.

    Planned throughputs are of the certified plans. Simulated ones are of the recommended plans, and may be
    empty.
    """

    baseline: str
    expert: str
    """Design of the baseline with the experts' plan."""
    planned: pd.DataFrame
    simulated: pd.DataFrame

    @classmethod
    def of(cls, inputs: Inputs, findings: Findings) -> Headline | None:
        """Throughputs of a study; None without a baseline."""
        baseline, expert = inputs.study.architectures.baseline, baseline_design(inputs.study)
        if baseline is None or expert is None:
            return None
        placed = findings.results[findings.results["status"] == "placed"]
        planned = placed.pivot(index="model", columns="design", values="samples_per_s")
        best = findings.recommendations
        simulated = 1 / best.pivot(index="model", columns="design", values="simulated_s")
        on_baseline = best[best["design"] == baseline].set_index("model")
        return cls(baseline, expert, planned, simulated.assign(**{expert: 1 / on_baseline["expert_s"]}))

    def ratios(self, design: str, over: str, *, simulated: bool) -> pd.Series:
        """Throughput ratio of two designs, for each model that both train."""
        rates = self.simulated if simulated else self.planned
        if not {design, over} <= {*rates.columns}:
            return pd.Series(dtype="float64")
        found = rates[design] / rates[over]
        return found[np.isfinite(found) & (found > 0)]

    def chip_gain(self, model: str, design: str = PER_MODEL) -> float:
        """Gain of a model's accelerator over the baseline, with the same planner.

        0 if one of them cannot train the model.
        """
        return self._gain(model, design, self.baseline)

    def planner_gain(self, model: str) -> float:
        """Gain of planning over the experts' plan on the baseline."""
        return self._gain(model, self.baseline, self.expert)

    def _gain(self, model: str, design: str, over: str) -> float:
        planned = self.ratios(design, over, simulated=False).get(model, 0.0)
        return float(self.ratios(design, over, simulated=True).get(model, planned))

    def mean(self, design: str, over: str) -> tuple[float, str]:
        """Geometric mean of ratios over models, and a note on its source.

        Simulated throughputs are used if available, else planned ones. The mean is 0 without any ratio.
        """
        planned, simulated = (
            float(np.exp(np.log(found).mean())) if len(found) else 0.0
            for found in (self.ratios(design, over, simulated=which) for which in (False, True))
        )
        how = f"as simulated; {times(planned)} as planned" if simulated else "as planned"
        return simulated or planned, how


def losses_in_words(inputs: Inputs, findings: Findings) -> Iterator[str]:
    """Yield sentences on accelerators that are slower than the baseline."""
    found, models = Headline.of(inputs, findings), inputs.study.models
    if found is None:
        return
    gains = {model: found.chip_gain(model) for model in models}
    lost = {model: 1 - gain for model, gain in gains.items() if 0 < gain < 1 - LEAST}
    if lost:
        most = max(lost, key=lost.__getitem__)
        named = join(f"{model} ({percent(loss)})" for model, loss in lost.items())
        if len(lost) > MOST_NAMED:
            named = f"{len(lost)} of {len(models)} workloads, most for {most} ({percent(lost[most])})"
        yield (
            f"The best accelerator found is slower than the baseline {found.baseline} with the same planner "
            f"for {named}."
        )
    mean, _ = found.mean(COMMON, found.baseline)
    if len(models) > 1 and 0 < mean < 1 - LEAST:
        yield (
            f"The one accelerator for all {len(models)} workloads is {percent(1 - mean)} slower than the "
            f"baseline {found.baseline} with the same planner, in the geometric mean."
        )


def gains_in_short(inputs: Inputs, findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield facts for the first screen: gains of the accelerators under all readings, and of the planner."""
    found, several = Headline.of(inputs, findings), len(inputs.study.models) > 1
    if found is None:
        return
    about = {PER_MODEL: "an accelerator for each workload" if several else "its best accelerator"}
    if several:
        about[COMMON] = "one accelerator for all of them"
    what = "geometric mean" if several else "throughput"
    for design, words in about.items():
        gain, how = found.mean(design, found.baseline)
        if gain:
            range_ = spread(findings.gains, design, found.baseline, gain)
            of = f"range of all readings; {times(gain)} " if range_ != times(gain) else ""
            yield range_, f"{words} over {found.baseline}, the same planner on both ({what}: {of}{how})"
    gain, how = found.mean(found.baseline, found.expert)
    if gain:
        yield times(gain), f"the planner over the experts' plan, both on {found.baseline} ({what} {how})"
