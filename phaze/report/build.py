"""The report stage: from the tables of a study to result tables, Markdown and a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import chain

import pandas as pd

from phaze.report import anatomy, inside, overview, plan_checks, record, searches, winners
from phaze.report import checks as checked
from phaze.report.answer import answer
from phaze.report.certificate import certificate
from phaze.report.checks import Evidence
from phaze.report.differences import ask_for_differences, differences
from phaze.report.document import Document, Section
from phaze.report.drawing import Drawn, ask_for_figure
from phaze.report.findings import RESULT_TABLES, Findings, Part
from phaze.report.front import front
from phaze.report.gains import assumptions, find_gains
from phaze.report.inputs import Inputs
from phaze.report.inside import vary
from phaze.report.mapped import on_networks
from phaze.report.planners import compared
from phaze.report.readings import reading_figures, reading_scores, readings
from phaze.report.recommend import recommend, recommended
from phaze.report.record import count_proofs
from phaze.report.report import Report
from phaze.report.searches import choose_by_hysteresis, summarise_searches
from phaze.report.simulated import replayed
from phaze.report.verdicts import run_checks
from phaze.report.winner_claims import check_claims
from phaze.report.winners import COMMON, PER_MODEL
from phaze.report.workers import ALONE, Workers
from phaze.tables import TABLES, Checks, Comparisons
from phaze.tables.store import Recalled

CHECKS = {
    **checked.CHECKS,
    **checked.CERTIFICATE_CHECKS,
    **plan_checks.PLANNER_CHECKS,
    **plan_checks.SIMULATION_CHECKS,
    **plan_checks.MAPPED_CHECKS,
}
"""What must hold of every study, as sentences."""
LONGEST = "energies by part and by layer agree"
"""The check that takes as long as the others together."""


def build_report(inputs: Inputs, workers: Workers = ALONE, kept: Recalled | None = None) -> Report:
    """Return the report of a study, which workers check and draw the figures of that are not kept."""
    workers.share(inputs)
    findings, checks = find(inputs, workers)
    return compose(inputs, findings, checks, workers, kept)


def summarise(inputs: Inputs) -> Findings:
    """Return what the tables of a study say."""
    findings, checks = find(inputs, ALONE)
    return replace(findings, checks=checks())


def find(inputs: Inputs, workers: Workers) -> tuple[Findings, Callable[[], pd.DataFrame]]:
    """Return the same without checks, and what waits for them; workers make them, and some of the tables."""
    results = winners.results(inputs, inputs.cluster)
    baseline = inputs.study.architectures.baseline
    shown = (PER_MODEL, COMMON) if baseline is None else (PER_MODEL, COMMON, baseline)
    energies = anatomy.energies(results, shown)
    designs = tuple(results["design"].unique())
    checks = ask_for_checks(Evidence(inputs, results, energies), workers)
    bindings = workers.ask(partial(anatomy.bindings, inputs, results))
    breakdowns = workers.ask(partial(anatomy.breakdowns, inputs, results, designs))
    variations = workers.ask(partial(vary, inputs, results))
    memories = winners.memories(inputs)
    figures = reading_figures(inputs)
    findings = Findings(
        results=results,
        recommendations=recommend(inputs, results),
        gains=find_gains(inputs, results),
        comparisons=compare_scenarios(inputs, results),
        memories=memories,
        rankings=winners.rankings(inputs),
        fronts=inputs.fronts,
        breakdowns=breakdowns(),
        bindings=bindings(),
        energies=energies,
        areas=anatomy.areas(inputs, results, designs),
        complexities=anatomy.complexities(inputs),
        variations=variations(),
        reading_figures=figures,
        reading_scores=reading_scores(inputs, figures),
        plans=inputs.plans,
        plan_stages=inputs.plan_stages,
        simulations=inputs.simulations,
        simulation_stages=inputs.simulation_stages,
        plan_maps=inputs.plan_maps,
        walks=choose_by_hysteresis(inputs.trials),
        searches=summarise_searches(inputs.trials, inputs.study.screen.tolerance),
        times=inputs.times,
        proofs=count_proofs(inputs.solves),
        certificates=inputs.certificates,
        audits=inputs.audits,
        claims=check_claims(inputs, results, memories),
        checks=Checks.empty(),
    )
    return findings, checks


def ask_for_checks(evidence: Evidence, workers: Workers) -> Callable[[], pd.DataFrame]:
    """Return what waits for table checks of a study of accelerators, of which every worker makes a share.

    The one that takes as long as the others together is asked for alone, and first.
    """
    others = [name for name in CHECKS if name != LONGEST]
    length = -(-len(others) // workers.count)  # neighbours look at the same tables
    shares = [[LONGEST], *(others[k : k + length] for k in range(0, len(others), length))]
    checks = [{name: CHECKS[name] for name in share} for share in shares]
    asked = [workers.ask(partial(run_checks, share, evidence)) for share in checks]
    return cache(lambda: Checks.check(pd.concat([wait() for wait in asked], ignore_index=True)))


def compare_scenarios(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table comparisons: the results of every scenario, none for a study with one."""
    if len(inputs.clusters) < 2:
        return Comparisons.empty()
    main = next(iter(inputs.clusters))
    frames = [
        (results if name == main else winners.results(inputs, cluster)).assign(scenario=name)
        for name, cluster in inputs.clusters.items()
    ]
    return Comparisons.check(pd.concat(frames, ignore_index=True))


def compose(
    inputs: Inputs,
    findings: Findings,
    checks: Callable[[], pd.DataFrame],
    workers: Workers = ALONE,
    kept: Recalled | None = None,
) -> Report:
    """Return the report of what is found in a study, with checks that may have to be waited for.

    Workers draw the figures of a part while the next is composed; parts that others make come last.
    """
    shown = findings.in_order(inputs.study.models)
    workers.share(shown)
    parts = (
        readings, recommended, assumptions, *overview.PARTS, certificate, front, *inside.PARTS, compared,
        replayed, on_networks, *searches.PARTS, *record.PARTS,
    )  # fmt: skip
    waiting: dict[Part, Callable[[], tuple[Section, ...]]] = {
        differences: ask_for_differences(inputs, shown, workers),
        record.checks: lambda: tuple(record.checks(inputs, replace(shown, checks=checks()))),
    }
    sections, asked = dict[Part, tuple[Section, ...]](), dict[str, Callable[[], Drawn]]()
    for part in sorted(parts, key=waiting.__contains__):
        sections[part] = waiting[part]() if part in waiting else tuple(part(inputs, shown))
        charts = chain.from_iterable(section.charts for section in sections[part])
        asked |= {chart.name: ask_for_figure(chart, workers, kept or Recalled()) for chart in charts}
    name = next(iter(inputs.clusters))
    document = Document(
        title="phaze",
        subtitle=f"{_count(len(inputs.study.models), 'workload')}, scenario {name}",
        answer=answer(inputs, replace(shown, checks=checks())),
        sections=tuple(chain.from_iterable(sections[part] for part in parts)),
        tables=replace(findings, checks=checks()).tables(),
    )
    return Report(document, {name: TABLES[name] for name in RESULT_TABLES}, asked)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
