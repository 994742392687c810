"""Report stage: build result tables, first screen, Markdown and page from the tables of a study.

The first screen separates the gains of accelerator and planner. The accelerator's gain is its throughput over
the baseline's, with the same planner on both. The planner's gain is the baseline's throughput over its
throughput with the hand-designed plan. The product of both gains is the speed-up in the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.units import percent
from phaze.pages.document import FirstScreen, Sheet
from phaze.pages.page import Report, page_of
from phaze.pages.page_words import words_of
from phaze.pages.verdicts import run_checks
from phaze.pages.words import area, buffers, compute, join, samples, seconds, times, widths
from phaze.report import anatomy, inside, overview, record, searches
from phaze.report import checks as checked
from phaze.report.checks import Evidence
from phaze.report.findings import (
    COMMON,
    COPIED,
    PER_MODEL,
    RESULT_TABLES,
    Findings,
    Part,
    baseline_design,
    memory_table,
    placed_rows,
    priced_designs,
    ranking_table,
    result_table,
    row_of,
)
from phaze.report.inputs import Inputs
from phaze.report.inside import vary
from phaze.report.measured_page import measured_section
from phaze.report.priced import PRICE_CHECKS, price_of, priced_section
from phaze.report.record import count_proofs
from phaze.report.searches import (
    certificate,
    certificate_fact,
    choose_by_hysteresis,
    front,
    summarise_searches,
)
from phaze.search.winners import chip_of
from phaze.tables import TABLES, Comparisons

WORDS = words_of("study")
_CELLS = ("cores", "buffers", "hbm", "shape", "planned", "simulated", "mfu", "chip_gain", "planner_gain")
"""Cells of the answer's table, empty for a workload that fits nowhere."""
LEAST = 5e-4
"""Smallest reported loss relative to the baseline; a smaller one would be shown as 0.0 %."""
MOST_NAMED = 2
"""Maximum number of slower workloads that are all named; of more, only the slowest is."""
CHECKS = {**checked.CHECKS, **checked.CERTIFICATE_CHECKS, **PRICE_CHECKS}
"""Checks of every study, each stated as a sentence."""
LEADING = ("gains", "speedups", "front-area", "breakdown", "simulated", "memory")
"""Names of the figures that stay unfolded, by importance; the first shows what the gain depends on."""


@dataclass(frozen=True)
class Headline:
    """Throughputs by model (rows) and design (columns), as planned and as simulated.

    Planned throughputs are by the planner's formula. Simulated ones are by the price of the same placements,
    and may be empty.
    """

    baseline: str
    expert: str
    """Name of the design that combines the baseline with the hand-designed (expert) plan."""
    planned: pd.DataFrame
    simulated: pd.DataFrame

    @classmethod
    def of(cls, inputs: Inputs, findings: Findings) -> Headline:
        """Collect the throughputs of a study; without a baseline, no design has a ratio to it."""
        baseline, expert = inputs.study.architectures.baseline or "", baseline_design(inputs.study) or ""
        placed = findings.results[findings.results["status"] == "placed"]
        planned = placed.pivot(index="model", columns="design", values="samples_per_s")
        priced = priced_designs(inputs.study, findings)
        simulated = priced.pivot(index="model", columns="design", values="samples_per_s")
        return cls(baseline, expert, planned, simulated)

    def ratios(self, design: str, over: str, *, simulated: bool) -> pd.Series:
        """Throughput ratio of two designs, for each model that both train."""
        rates = self.simulated if simulated else self.planned
        if not {design, over} <= {*rates.columns}:
            return pd.Series(dtype="float64")
        ratio = rates[design] / rates[over]
        # 0, infinite or NaN: one of the designs has no plan for the model
        return ratio[np.isfinite(ratio) & (ratio > 0)]

    def chip_gain(self, model: str) -> float:
        """Gain of a model's accelerator over the baseline, with the same planner.

        0 if one of them cannot train the model.
        """
        return self._gain(model, PER_MODEL, self.baseline)

    def planner_gain(self, model: str) -> float:
        """Gain of planning over the hand-designed (expert) plan on the baseline."""
        return self._gain(model, self.baseline, self.expert)

    def _gain(self, model: str, design: str, over: str) -> float:
        planned = self.ratios(design, over, simulated=False).get(model, 0.0)
        return float(self.ratios(design, over, simulated=True).get(model, planned))

    def mean(self, design: str, over: str) -> tuple[float, str]:
        """Geometric mean of throughput ratios over models, and a note on whether it is simulated or planned.

        Simulated throughputs are used if available, else planned ones. The mean is 0 without any ratio.
        """
        planned, simulated = (
            float(np.exp(np.log(ratios).mean())) if len(ratios) else 0.0
            for ratios in (self.ratios(design, over, simulated=which) for which in (False, True))
        )
        how = f"as simulated; {times(planned)} as planned" if simulated else "as planned"
        return simulated or planned, how


def slower_chip_sentences(inputs: Inputs, findings: Findings) -> Iterator[str]:
    """Yield sentences on accelerators that are slower than the baseline."""
    headline, models = Headline.of(inputs, findings), inputs.study.models
    gains = {model: headline.chip_gain(model) for model in models}
    lost = {model: 1 - gain for model, gain in gains.items() if 0 < gain < 1 - LEAST}
    if lost:
        most = max(lost, key=lost.__getitem__)
        named = join(f"{model} ({percent(loss)})" for model, loss in lost.items())
        if len(lost) > MOST_NAMED:
            named = f"{len(lost)} of {len(models)} workloads, most for {most} ({percent(lost[most])})"
        yield WORDS.sentence("slower-chip", baseline=headline.baseline, named=named)
    mean, _ = headline.mean(COMMON, headline.baseline)
    if len(models) > 1 and 0 < mean < 1 - LEAST:
        baseline = headline.baseline
        yield WORDS.sentence("slower-common", count=len(models), loss=1 - mean, baseline=baseline)


def gain_facts(inputs: Inputs, findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield key figures for the first screen: accelerator gains by interpretation, and the planner's gain."""
    headline, several = Headline.of(inputs, findings), len(inputs.study.models) > 1
    baseline = headline.baseline
    about = {PER_MODEL: "an accelerator for each workload" if several else "its best accelerator"}
    if several:
        about[COMMON] = "one accelerator for all of them"
    what = "geometric mean" if several else "throughput"
    for design, words in about.items():
        gain, how = headline.mean(design, baseline)
        if gain:
            range_ = overview.spread(findings.gains, design, baseline, gain)
            note = f"range of all readings; {times(gain)} " if range_ != times(gain) else ""
            yield range_, f"{words} over {baseline}, the same planner on both ({what}: {note}{how})"
    gain, how = headline.mean(baseline, headline.expert)
    if gain:
        yield times(gain), f"the planner over the hand-designed plan, both on {baseline} ({what} {how})"


def build_report(inputs: Inputs) -> Report:
    """Build the report of a study."""
    return compose(inputs, summarise(inputs))


def summarise(inputs: Inputs) -> Findings:
    """Build all result tables of a study, including the results of its checks."""
    results = result_table(inputs, inputs.cluster)
    shown = PER_MODEL, COMMON, inputs.study.architectures.baseline or ""
    energies = anatomy.energies(results, shown)
    designs = tuple(results["design"].unique())
    return Findings(
        **{name: getattr(inputs, name) for name in COPIED},
        results=results,
        gains=overview.find_gains(inputs, results),
        comparisons=compare_scenarios(inputs, results),
        memories=memory_table(inputs),
        rankings=ranking_table(inputs),
        breakdowns=anatomy.breakdowns(inputs, results, designs),
        bindings=anatomy.bindings(inputs, results),
        energies=energies,
        areas=anatomy.areas(inputs, results, designs),
        complexities=anatomy.complexities(inputs),
        variations=vary(inputs, results),
        walks=choose_by_hysteresis(inputs.trials),
        searches=summarise_searches(inputs.trials, inputs.study.screen.tolerance),
        proofs=count_proofs(inputs.solves),
        checks=run_checks(CHECKS, Evidence(inputs, results, energies)),
    )


def compare_scenarios(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Table `comparisons`: the results of every scenario; empty if the study has only one."""
    if len(inputs.clusters) < 2:
        return Comparisons.empty()
    main = next(iter(inputs.clusters))
    frames = [
        (results if name == main else result_table(inputs, cluster)).assign(scenario=name)
        for name, cluster in inputs.clusters.items()
    ]
    return Comparisons.check(pd.concat(frames, ignore_index=True))


PARTS: tuple[Part, ...] = (
    overview.assumptions, *overview.PARTS, certificate, front, *inside.PARTS, priced_section,
    measured_section, *searches.PARTS, *record.PARTS,
)  # fmt: skip
"""Functions that yield the sections of the report, in order."""


def compose(inputs: Inputs, findings: Findings) -> Report:
    """Build the report page from a study's findings, with its result tables."""
    shown = findings.in_order(inputs.study.models)
    count = len(inputs.study.models)
    return page_of(
        "report.html",
        f"{count} workload{'s' * (count > 1)}, scenario {next(iter(inputs.clusters))}",
        answer(inputs, shown),
        (section for part in PARTS for section in part(inputs, shown)),
        {name: (TABLES[name], frame) for name, frame in findings.tables().items() if name in RESULT_TABLES},
        {"times": findings.times}
        | ({"source_scores": inputs.source_scores} if len(inputs.source_scores) else {}),
    )


def answer(inputs: Inputs, findings: Findings) -> FirstScreen:
    """First screen: a caveat and the result, then details on losses, interpretations and the accelerator."""
    gains = overview.claims_of(overview.gains_in_order(inputs, findings.gains))
    losses = tuple(slower_chip_sentences(inputs, findings))
    # the first screen has room for one caveat: the loss of the common accelerator comes before the others
    caveats = (*losses[::-1], *overview.caveat_sentences(gains), "Every time is predicted, none is measured.")
    short, long = _result(inputs, findings)
    full = [*losses, *overview.reversal_sentences(gains), long, *overview.gain_sentences(gains)]
    passed = int(findings.checks["passed"].sum())
    facts = (
        *gain_facts(inputs, findings),
        *certificate_fact(findings),
        (f"{passed} / {len(findings.checks)}", "checks of these results passed"),
    )
    placed = (findings.results["status"] == "placed").any()
    return FirstScreen(
        question="Which accelerator, and how to spread the training over it?",
        sentence=" ".join((caveats[0], short, *overview.oversized_baseline(inputs))) if placed else short,
        facts=facts,
        sheet=_answer_sheet(inputs, findings),
        details=" ".join(filter(None, full)),
        figures=LEADING,
    )


def _result(inputs: Inputs, findings: Findings) -> tuple[str, str]:
    """Result, in a short and a full version: the common accelerator, or the plan of a single workload."""
    scenario, models = inputs.cluster.scenario, inputs.study.models
    cluster = f"{scenario.devices:,} accelerators with batches of {scenario.global_batch:,}"
    common = _common(inputs, findings)
    if common is not None:
        chip = _chip(inputs, common)
        long = WORDS.sentence("common", count=len(models), cluster=cluster, **chip)
        return _gain(inputs, findings, "{area}, {hbm}".format(**chip)), long
    if not (findings.results["status"] == "placed").any():
        none = WORDS.sentence("nothing-fits", cluster=cluster)
        return none, none
    best = row_of(findings.results, models[0], PER_MODEL)
    if best is None or len(models) > 1:
        start = "The best accelerator for each workload is in the table"
        return f"{start} below.", f"{start}, with its plan on {cluster}."
    cells, name, price = _plan_cells(findings, best), best["architecture"], price_of(findings, best)
    simulated = cells["simulated"]
    placeholders = {
        **cells, **_chip(inputs, best), "model": best["model"], "cluster": cluster,
        "named": name if name in inputs.study.architectures.named else "the best accelerator",
        "shape": widths(best), "microbatch": samples(best["layout"]),
        "bound_by": best["binding"] if price is None else price["bound_by"],
        "taken": simulated or cells["planned"],
        "times": f"{simulated} per batch as simulated, " * bool(simulated) + cells["planned"],
    }  # fmt: skip
    return WORDS.sentence("one", **placeholders), WORDS.sentence("one-in-full", **placeholders)


def _gain(inputs: Inputs, findings: Findings, size: str) -> str:
    """Sentence on the gain of the common accelerator, of the given area and HBM, over the baseline."""
    every = f"all {len(inputs.study.models)} workloads ({size} of HBM)"
    headline = Headline.of(inputs, findings)
    gain, how = headline.mean(COMMON, headline.baseline)
    if not gain:
        return f"One accelerator suits {every}."
    range_, source = overview.spread(findings.gains, COMMON, headline.baseline, gain), how.partition(";")[0]
    condition = f"with the same planner, {source}"
    if range_ != times(gain):
        condition = f"{times(gain)} {source} under the study's settings"
    return f"One accelerator for {every} trains {range_} as fast as {headline.baseline}, {condition}."


def _chip(inputs: Inputs, row: pd.Series) -> dict[str, str]:
    """Format the accelerator of a result."""
    chip, hbm = chip_of(inputs.cluster, row), f"{row['hbm_gib']:g} GiB"
    return {"cores": compute(chip), "buffers": buffers(chip), "hbm": hbm, "area": area(chip["area_um2"])}


def _plan_cells(findings: Findings, result: pd.Series) -> dict[str, str]:
    """Format the plan of a placed result, with its times and utilisation; simulated only with a price."""
    price, time_s, bound_s = price_of(findings, result), result["time_per_batch_s"], result["bound_s"]
    proven = bound_s >= time_s * (1 - 1e-6)
    # A batch has a fixed number of operations: utilisation grows by the factor by which its time shrinks.
    faster = 1.0 if price is None else time_s / price["simulated_s"]
    return {
        "shape": f"{widths(result)}, {samples(result['layout'])}",
        "planned": seconds(time_s) if proven else f"{seconds(bound_s)} to {seconds(time_s)}",
        "simulated": "" if price is None else _simulated(price),
        "mfu": percent(result["mfu"] * faster),
    }


def _simulated(price: pd.Series) -> str:
    """Format the price of a placement; the priced memory may exceed the formula's."""
    return seconds(price["simulated_s"]) + " (does not fit)" * (not price["fits"])


def _common(inputs: Inputs, findings: Findings) -> pd.Series | None:
    rows = placed_rows(findings.results, COMMON)
    # with one model, the common accelerator is that model's
    return rows.iloc[0] if len(rows) and len(inputs.study.models) > 1 else None


def _answer_sheet(inputs: Inputs, findings: Findings) -> Sheet:
    """Answer table: the plan of each workload on its best accelerator, and the common accelerator."""
    rows: list[dict[str, str]] = []
    headline = Headline.of(inputs, findings)
    for _, row in findings.results[findings.results["design"] == PER_MODEL].iterrows():
        if row["status"] != "placed":
            rows.append({"model": row["model"], "cores": f"fits nowhere: {row['reason']}"})
            continue
        chip_gain, planner_gain = headline.chip_gain(row["model"]), headline.planner_gain(row["model"])
        gains = {"chip_gain": times(chip_gain), "planner_gain": times(planner_gain)}
        rows.append({"model": row["model"], **_chip(inputs, row), **_plan_cells(findings, row), **gains})
    common = _common(inputs, findings)
    if common is not None:
        mean, _ = headline.mean(COMMON, headline.baseline)
        rows.append({"model": "one for all", **_chip(inputs, common), "chip_gain": times(mean)})
    marked = [common is not None and place == len(rows) - 1 for place in range(len(rows))]
    table = pd.DataFrame([dict.fromkeys(_CELLS, "") | row for row in rows])
    return WORDS.sheet("answer", table, marked)
