"""Report stage: result tables, first screen, Markdown and page from the tables of a study."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.report import anatomy, inside, overview, plan_checks, record, searches, winners
from phaze.report import checks as checked
from phaze.report.checks import Evidence
from phaze.report.document import FirstScreen, Section, Sheet
from phaze.report.findings import GIVEN, RESULT_TABLES, Findings, Part
from phaze.report.headline import Headline, gains_in_short, losses_in_words
from phaze.report.inputs import Inputs
from phaze.report.inside import vary
from phaze.report.measured_page import measured_section
from phaze.report.overview import (
    assumptions,
    caveats_in_words,
    claims,
    find_gains,
    gains_in_words,
    spread,
    turned_over,
)
from phaze.report.planners import compared, in_words
from phaze.report.recommend import in_short as losses_in_short
from phaze.report.recommend import recommend, recommended, recommended_on
from phaze.report.record import count_proofs
from phaze.report.report import Report, page_of
from phaze.report.searches import choose_by_hysteresis, summarise_searches
from phaze.report.simulated import on_networks, replayed
from phaze.report.space import certificate, front, in_short
from phaze.report.verdicts import run_checks
from phaze.report.winners import COMMON, PER_MODEL, placed_rows, row_of
from phaze.report.words import area, buffers, compute, percent, times
from phaze.search.winners import chip_of
from phaze.tables import TABLES, Comparisons

CHECKS = {
    **checked.CHECKS,
    **checked.CERTIFICATE_CHECKS,
    **plan_checks.PLANNER_CHECKS,
    **plan_checks.SIMULATION_CHECKS,
    **plan_checks.MAPPED_CHECKS,
}
"""Checks of every study, each stated as a sentence."""


def build_report(inputs: Inputs) -> Report:
    """Build the report of a study."""
    return compose(inputs, summarise(inputs))


def summarise(inputs: Inputs) -> Findings:
    """All result tables of a study, including the results of its checks."""
    results = winners.results(inputs, inputs.cluster)
    baseline = inputs.study.architectures.baseline
    shown = (PER_MODEL, COMMON) if baseline is None else (PER_MODEL, COMMON, baseline)
    energies = anatomy.energies(results, shown)
    designs = tuple(results["design"].unique())
    memories = winners.memories(inputs)
    return Findings(
        **{name: getattr(inputs, name) for name in GIVEN},
        results=results,
        recommendations=recommend(inputs, results),
        gains=find_gains(inputs, results),
        comparisons=compare_scenarios(inputs, results),
        memories=memories,
        rankings=winners.rankings(inputs),
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
        (results if name == main else winners.results(inputs, cluster)).assign(scenario=name)
        for name, cluster in inputs.clusters.items()
    ]
    return Comparisons.check(pd.concat(frames, ignore_index=True))


def beside_measured(inputs: Inputs, _: Findings) -> Iterator[Section]:
    """Section on the prediction errors for published training runs; none without such runs."""
    yield from measured_section(inputs.source_scores)


PARTS: tuple[Part, ...] = (
    recommended, assumptions, *overview.PARTS, certificate, front, *inside.PARTS, compared,
    replayed, on_networks, beside_measured, *searches.PARTS, *record.PARTS,
)  # fmt: skip
"""Sections of the report, in order."""


def compose(inputs: Inputs, findings: Findings) -> Report:
    """Compose the page of a study's findings, with its result tables."""
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


LEADING = ("gains", "speedups", "front-area", "breakdown", "simulated", "planners")
"""Names of the figures that stay open, by importance; the first one shows what the gain rests on."""


def answer(inputs: Inputs, findings: Findings) -> FirstScreen:
    """First screen: a caveat and the result; then, in full, losses, readings and the accelerator."""
    gains = claims(inputs, findings)
    losses = tuple(losses_in_words(inputs, findings))
    caveats = (*losses[::-1], *caveats_in_words(gains), "Every time is predicted, none is measured.")
    short, long = _result(inputs, findings)
    full = (
        *losses,
        *turned_over(gains),
        long,
        *gains_in_words(gains),
        in_words(inputs, findings),
    )
    placed = (findings.results["status"] == "placed").any()
    return FirstScreen(
        question="Which accelerator, and how to spread the training over it?",
        sentence=f"{caveats[0]} {short}" if placed else short,
        facts=tuple(_facts(inputs, findings)),
        sheet=_answer_sheet(inputs, findings),
        more=" ".join(filter(None, full)),
        figures=LEADING,
    )


def _result(inputs: Inputs, findings: Findings) -> tuple[str, str]:
    """Result in a short sentence and in full: the common accelerator, or the plan of a single workload."""
    scenario, models = inputs.cluster.scenario, inputs.study.models
    cluster = f"{scenario.devices:,} accelerators with batches of {scenario.global_batch:,}"
    common = _common(inputs, findings)
    if common is not None:
        start = f"One accelerator for all {len(models)} workloads"
        return _gain(inputs, findings, common), (
            f"{start}: {_described(inputs, common)}. "
            f"The best one for each of them is in the table, with its plan on {cluster}."
        )
    if not (findings.results["status"] == "placed").any():
        none = f"Nothing fits: on {cluster} no workload can be placed, and the table says what is missing."
        return none, none
    best = row_of(findings.results, models[0], PER_MODEL)
    if best is None or len(models) > 1:
        start = "The best accelerator for each workload is in the table"
        return f"{start} below.", f"{start}, with its plan on {cluster}."
    plan, name = recommended_on(findings, best), best["architecture"]
    named = name if name in inputs.study.architectures.named else "the best accelerator"
    taken = f"{plan.simulated} per batch as simulated, {plan.planned}" if plan.simulated else plan.planned
    end = f"limited by {plan.bound_by}."
    return (
        (
            f"For {best['model']}, {named} ({_size(inputs, best)}) trains a batch in "
            f"{plan.simulated or plan.planned} as {{stages, data, tensor}} = {plan.shape}, {end}"
        ),
        (
            f"For {best['model']}: {_described(inputs, best)}. On {cluster} it trains as {plan.shape} "
            f"({plan.whose}) with microbatches of {plan.microbatch} in {taken} as planned, {end}"
        ),
    )


def _gain(inputs: Inputs, findings: Findings, common: pd.Series) -> str:
    """Gain of the accelerator for all workloads over the baseline, in one sentence."""
    every = f"all {len(inputs.study.models)} workloads ({_size(inputs, common)} of HBM)"
    headline = Headline.of(inputs, findings)
    gain, how = headline.mean(COMMON, headline.baseline) if headline else (0.0, "")
    if headline is None or not gain:
        return f"One accelerator suits {every}."
    ends, own = spread(findings.gains, COMMON, headline.baseline, gain), times(gain)
    source = how.partition(";")[0]
    said = f"with the same planner, {source}" if ends == own else f"{own} {source} under the study's settings"
    return f"One accelerator for {every} trains {ends} as fast as {headline.baseline}, {said}."


def _size(inputs: Inputs, row: pd.Series) -> str:
    """Area and HBM capacity of a result's accelerator."""
    return f"{area(chip_of(inputs.cluster, row)['area_um2'])}, {row['hbm_gib']:g} GiB"


def _described(inputs: Inputs, row: pd.Series) -> str:
    cores, buffers, hbm = _chip(inputs, row)
    size = area(chip_of(inputs.cluster, row)["area_um2"])
    return f"{cores} cores with buffers {buffers} and {hbm} of HBM, {size}"


def _chip(inputs: Inputs, row: pd.Series) -> tuple[str, str, str]:
    chip = chip_of(inputs.cluster, row)
    return compute(chip), buffers(chip), f"{row['hbm_gib']:g} GiB"


def _common(inputs: Inputs, findings: Findings) -> pd.Series | None:
    rows = placed_rows(findings.results, COMMON)
    return rows.iloc[0] if len(rows) and len(inputs.study.models) > 1 else None


def _facts(inputs: Inputs, findings: Findings) -> Iterator[tuple[str, str]]:
    yield from gains_in_short(inputs, findings)
    yield from in_short(findings)
    yield from losses_in_short(findings)
    passed = int(findings.checks["passed"].sum())
    yield f"{passed} / {len(findings.checks)}", "checks of these results passed"


def _answer_sheet(inputs: Inputs, findings: Findings) -> Sheet:
    """Table of the answer: the plan of each workload on its best accelerator, and the common accelerator."""
    rows: list[tuple[str, ...]] = []
    headline = Headline.of(inputs, findings)
    for _, row in findings.results[findings.results["design"] == PER_MODEL].iterrows():
        if row["status"] != "placed":
            rows.append((row["model"], f"fits nowhere: {row['reason']}", *[""] * 9))
            continue
        plan = recommended_on(findings, row)
        rows.append(
            (
                row["model"], *_chip(inputs, row), plan.whose, f"{plan.shape}, {plan.microbatch}",
                plan.planned, plan.simulated, percent(row["mfu"] * plan.gain),
                times(headline.chip_gain(row["model"])) if headline else "–",
                times(headline.planner_gain(row["model"])) if headline else "–",
            )
        )  # fmt: skip
    common, marked = _common(inputs, findings), frozenset[int]()
    if common is not None:
        mean = times(headline.mean(COMMON, headline.baseline)[0]) if headline else "–"
        marked = frozenset({len(rows)})
        rows.append(("one for all", *_chip(inputs, common), "their own", *[""] * 4, mean, ""))
    header = (
        "workload", "cores", "buffers", "HBM", "plan", "{p, d, t}, microbatch", "planned", "simulated", "MFU",
        "accelerator's gain", "planner's gain",
    )  # fmt: skip
    caption = (
        "Cores {num_tc, num_vc, pe_x, pe_y, pe_vc}; buffers {global buffer, words a cycle, L2 of a "
        "tensor core, of a vector core}; the plan with the least simulated time of the certified one, equal "
        "and experts' stages, as {pipeline depth, data width, tensor width} and samples in a microbatch; "
        "time per batch as planned and as simulated (where they differ by more than 5 %, the section on "
        "recommended plans says why); MFU and gains as simulated: the accelerator's over the baseline with "
        "the same planner on both, the planner's over the experts' plan on the baseline"
    )
    return Sheet(caption, header, tuple(rows), 6, marked, "recommendations")
