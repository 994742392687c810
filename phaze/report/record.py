"""Last part of the report: scenarios, time and proof, models, infeasible placements, checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from phaze.pages import charts
from phaze.pages.document import Block, Items, Prose, Section, Sheet, sheet_of
from phaze.pages.page_words import words_of
from phaze.pages.verdicts import checks_section
from phaze.pages.words import times
from phaze.report.findings import PER_MODEL, Findings, Part
from phaze.report.inputs import Inputs
from phaze.schedule.decomposition import STATUSES
from phaze.tables import Proofs
from phaze.tables.columns import by_numbers

WORDS = words_of("study")
MOST_ROWS = 60
"""Maximum number of infeasible placements and of gaps shown; the tables have all of them."""


def scenarios(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section that compares scenarios, for a study with several."""
    table = findings.comparisons[findings.comparisons["design"] == PER_MODEL]
    if table.empty:
        return
    names, shown = list(inputs.clusters), list(dict.fromkeys(table["model"]))
    wide = table.pivot_table(index="model", columns="scenario", values="samples_per_s").reindex(columns=names)
    wide = wide.reindex([m for m in inputs.study.models if m in wide.index]).div(wide[names[0]], axis=0)
    draw = partial(charts.bars, wide, f"throughput over {names[0]}", format_value=times)
    # by model, and for each model by scenario
    place = table["model"].map(shown.index) * len(names) + table["scenario"].map(names.index)
    sheet = WORDS.sheet("scenarios", table.iloc[place.argsort(kind="stable")])
    yield WORDS.section("scenarios", [WORDS.chart("scenarios", draw, first=names[0]), sheet])


def models(_: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the sizes of the models."""
    if len(findings.complexities):
        yield WORDS.section("models", [WORDS.sheet("models", findings.complexities)])


def misfits(inputs: Inputs, _: Findings) -> Iterator[Section]:
    """Yield the section on infeasible placements."""
    placements = inputs.cluster.placements
    rows = placements[placements["status"] == "infeasible"]
    if rows.empty:
        return
    keys = ["model", "hbm_gib", "recompute", "planner"]
    groups = rows.groupby([*keys, "layout"])
    counts = groups.agg(architectures=("architecture", "nunique"), reason=("reason", "first"))
    order = ["architectures", *keys, "layout"]
    # the reasons that concern most architectures come first
    kinds = counts.reset_index().sort_values(order, ascending=[False, *[True] * 5], key=by_numbers)
    shown = kinds.head(MOST_ROWS)
    sheet = WORDS.sheet("misfits", shown, shown=len(shown), kinds=len(kinds))
    yield WORDS.section("misfits", [sheet], count=len(rows), every=len(placements))


def checks(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the sections on the checks of the results, and on the modelling assumptions."""
    yield checks_section(findings.checks, "checks", WORDS.sentences["checked"])
    training = {
        "microbatches": ", ".join(map(str, inputs.study.training.microbatches)),
        "hbm_gib": ", ".join(f"{h:g}" for h in inputs.study.training.hbm_gib),
    }
    assumptions = (
        WORDS.sentence("cluster", **inputs.cluster.scenario.model_dump()),
        WORDS.sentence("training", **inputs.study.training.model_dump() | training),
        *(WORDS.sentences[name] for name in ("operators", "schedules", "energy")),
        WORDS.sentence("best", tolerance=inputs.study.screen.tolerance),
    )
    yield WORDS.section("method", [Items(assumptions)])


def proofs(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the run time of the stages, and on the proofs of the schedules."""
    blocks: list[Block] = []
    if len(findings.times):
        spent = findings.times.pivot_table("cpu_s", "model", "stage", sort=False, fill_value=0.0)
        solving = spent.filter(["schedule", "place"])
        blocks += [
            WORDS.chart(name, partial(charts.stacked, of, charts.STAGES, "processor time of all jobs, s"))
            for name, of in {"stages": spent, "solving": solving}.items()
        ]
        blocks.append(_times(findings.times))
    if len(findings.proofs):
        counts = findings.proofs[["z_needed", "branching"]]
        rows = findings.proofs.join(counts.div(findings.proofs["solves"], axis=0).add_prefix("share_"))
        blocks += [WORDS.sheet("proofs", rows), _gaps(inputs.solves)]
    if blocks:
        yield WORDS.section("proofs", blocks)


def _times(table: pd.DataFrame) -> Sheet:
    """Report table of the wall time of jobs, by model and stage."""
    wide = table.pivot_table("wall_s", "model", "stage", aggfunc="sum", fill_value=0.0, sort=False)
    stages = [s for s in charts.STAGES if s in wide]
    by_model = table.groupby("model").agg(jobs=("jobs", "sum"), peak_bytes=("peak_bytes", "max"))
    rows = wide[stages].assign(together=wide[stages].sum(axis=1)).join(by_model).reset_index()
    columns = {
        "workload": "{model}", "jobs": "{jobs:,}", **{s: f"{{{s}:seconds}}" for s in (*stages, "together")},
        "peak memory": "{peak_bytes:size}",
    }  # fmt: skip
    return sheet_of("Wall time of the jobs, summed", rows, columns, source="times")


def _gaps(solves: pd.DataFrame) -> Block:
    """Table of the schedules with an optimality gap, or a sentence that there are none."""
    open_ = solves[solves["status"] != "optimal"].sort_values("gap", ascending=False)
    if open_.empty:
        return Prose(WORDS.sentences["proven"])
    shown = open_.head(MOST_ROWS)
    return WORDS.sheet("gaps", shown, count=len(open_), shown=len(shown))


def count_proofs(solves: pd.DataFrame) -> pd.DataFrame:
    """Table `proofs`: counts of schedules by model and status of their proof."""
    if solves.empty:
        return Proofs.empty()
    by_model = solves.assign(
        **{status: solves["status"] == status for status in STATUSES},
        programs=solves["method"] == "program",
        branching=solves["objective_s"] < solves["all_cores_s"] * (1 - 1e-9),
    ).groupby("model")
    counts = [*STATUSES, "programs", "z_needed", "branching"]
    table = by_model[counts].sum().assign(solves=by_model.size(), largest_gap=by_model["gap"].max())
    return Proofs.check(table.reset_index())


PARTS: tuple[Part, ...] = (scenarios, proofs, models, misfits, checks)
"""Functions that yield the sections of this part, in order."""
