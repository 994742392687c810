"""All that a report finds, as tables: computed once, then shown as figures, page and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial

import pandas as pd

from phaze.report import anatomy, winners
from phaze.report.checks import ask_for_checks
from phaze.report.document import Section
from phaze.report.evidence import Evidence
from phaze.report.gains import find_gains
from phaze.report.inputs import Inputs
from phaze.report.readings import reading_figures, reading_scores
from phaze.report.recommend import recommend
from phaze.report.searches import choose_by_hysteresis, summarise_searches
from phaze.report.variations import vary
from phaze.report.winner_claims import check_claims
from phaze.report.winners import COMMON, PER_MODEL
from phaze.report.workers import ALONE, Workers
from phaze.tables import TABLES, Checks, Comparisons, Proofs


@dataclass(frozen=True)
class Findings:
    """Result tables of a study, by name as in `phaze.tables`."""

    results: pd.DataFrame
    recommendations: pd.DataFrame
    gains: pd.DataFrame
    comparisons: pd.DataFrame
    memories: pd.DataFrame
    rankings: pd.DataFrame
    fronts: pd.DataFrame
    breakdowns: pd.DataFrame
    bindings: pd.DataFrame
    energies: pd.DataFrame
    areas: pd.DataFrame
    complexities: pd.DataFrame
    variations: pd.DataFrame
    reading_figures: pd.DataFrame
    reading_scores: pd.DataFrame
    plans: pd.DataFrame
    plan_stages: pd.DataFrame
    simulations: pd.DataFrame
    simulation_stages: pd.DataFrame
    plan_maps: pd.DataFrame
    walks: pd.DataFrame
    searches: pd.DataFrame
    times: pd.DataFrame
    proofs: pd.DataFrame
    certificates: pd.DataFrame
    audits: pd.DataFrame
    claims: pd.DataFrame
    checks: pd.DataFrame

    @cached_property
    def means(self) -> pd.DataFrame:
        """Return the geometric mean of the speed-ups of every design."""
        return winners.geometric_means(self.results)

    @cached_property
    def simulated_means(self) -> pd.Series:
        """Return the same by design of the recommended plans, as simulated; empty without simulations."""
        return winners.geometric_means(self.recommendations).set_index("design")["speedup"]

    def in_order(self, models: tuple[str, ...]) -> Findings:
        """Return the same tables with models in the order of the study, for showing them."""
        place = {model: number for number, model in enumerate(models)}
        shown = {
            name: frame.sort_values("model", key=lambda m: m.map(place), kind="stable", ignore_index=True)
            for name, frame in self.tables().items()
            if "model" in frame
        }
        return replace(self, **shown)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


Part = Callable[[Inputs, Findings], Iterator[Section]]
"""What shows some of the findings: sections of the report, none where there is nothing to show."""
RESULT_TABLES = tuple(field.name for field in fields(Findings) if field.name != "times")
"""Tables that the report writes: all but the measured times, so that equal studies write equal tables."""


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


def count_proofs(solves: pd.DataFrame) -> pd.DataFrame:
    """Return table proofs."""
    if solves.empty:
        return Proofs.empty()
    by_model = solves.assign(
        **{status: solves["status"] == status for status in ("optimal", "feasible", "timed_out")},
        programs=solves["method"] == "program",
        branching=solves["objective_s"] < solves["all_cores_s"] * (1 - 1e-9),
    ).groupby("model")
    counts = ["optimal", "feasible", "timed_out", "programs", "z_needed", "branching"]
    found = by_model[counts].sum().assign(solves=by_model.size(), largest_gap=by_model["gap"].max())
    return Proofs.check(found.reset_index())


assert all(name in TABLES for name in RESULT_TABLES), "every result table has a class"
