"""First part of the report: throughput, assumptions behind the gain, HBM capacities and rankings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pandas as pd

from phaze.pages import charts, style
from phaze.pages.document import Block, Chart, Items, Prose, Section
from phaze.pages.page_words import words_of
from phaze.pages.words import area, fill, join, times
from phaze.report.findings import (
    COMMON,
    PER_MODEL,
    Findings,
    Part,
    baseline_design,
    geometric_means,
    priced_designs,
    row_of,
)
from phaze.report.inputs import Inputs
from phaze.search.winners import candidates, chip_named, in_order
from phaze.spec.study import OWN_READING
from phaze.tables import Gains

MOST_DOTS = 160
"""Number of architectures drawn per model: the fastest ones."""
WORDS = words_of("study")
TITLES = {PER_MODEL: "The best for each workload", COMMON: "The best one for all"}
"""Display names of designs."""
EVEN = 0.01
"""Tolerance around a gain of 1 within which two accelerators count as equally fast."""


def throughput(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on throughput relative to the baseline (Figure 4); nothing without a baseline."""
    expert = baseline_design(inputs.study)
    results = findings.results
    if expert is None or not (results["speedup"] > 0).any():
        return
    designs = _design_order(inputs, results)
    wide = results.pivot_table(index="model", columns="design", values="speedup").reindex(inputs.study.models)
    wide.loc[charts.GEOMETRIC_MEAN] = findings.means.set_index("design")["speedup"].reindex(wide.columns)
    drawn = [d for d in designs if not d.endswith("expert-even")]
    draw = partial(charts.bars, wide[drawn], "throughput over baseline expert", _colours(drawn, inputs))
    rows = wide.dropna(how="all")
    simulated = geometric_means(priced_designs(inputs.study, findings)).set_index("design")["speedup"]
    if len(simulated):
        rows.loc[f"{charts.GEOMETRIC_MEAN}, simulated"] = simulated
    heads = {design: design for design in designs}
    long = rows.rename_axis("model").reset_index().melt("model", var_name="design", value_name="speedup")
    sheet = WORDS.sheet("throughput", long, rows.index == charts.GEOMETRIC_MEAN, heads=heads)
    figure = WORDS.chart("speedups", draw, expert=expert)
    yield WORDS.section("throughput", (figure, sheet, Prose(WORDS.sentence("experts"))))


def _colours(designs: list[str], inputs: Inputs) -> dict[str, str]:
    """Colours by design: one hue per accelerator, lighter with an expert placement."""
    baseline = inputs.study.architectures.baseline
    fixed = {f"{baseline} expert": style.SILVER, str(baseline): style.GREY, COMMON: style.SKY}
    fixed[PER_MODEL] = style.BLUE
    others = [design for design in designs if design not in fixed]
    # hues repeat when there are more accelerators than hues
    hues = iter([style.AMBER, style.TEAL, style.PURPLE, style.RED] * len(others))
    colours = {name: style.SAND if name.endswith(" expert") else next(hues) for name in others}
    return {design: (fixed | colours)[design] for design in designs}


def _design_order(inputs: Inputs, results: pd.DataFrame) -> list[str]:
    """Designs in the order of Figure 4: baseline, families and named accelerators, common, per model.

    Expert placements precede searched ones.
    """
    present = list(dict.fromkeys(results["design"]))
    baseline = inputs.study.architectures.baseline or ""
    ends = [name for name in (COMMON, PER_MODEL) if name in present]
    first = [name for name in (f"{baseline} expert-even", f"{baseline} expert", baseline) if name in present]
    others = [name for name in present if name not in (*ends, *first)]
    # families together; False sorts first, so that an expert placement precedes the searched one
    return [*first, *sorted(others, key=lambda name: (name.split()[0], not name.endswith("expert"))), *ends]


def memory(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on HBM capacities."""
    table = findings.memories
    if table.empty:
        return
    tolerance = inputs.study.screen.tolerance
    figure = WORDS.chart("memory", partial(charts.memories, table), tolerance=tolerance)
    sheet = WORDS.sheet("memory", table, table["chosen"], tolerance=tolerance)
    yield WORDS.section("memory", (figure, sheet), tolerance=tolerance)


def ranking(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the best architectures, and the smallest within the tolerance of the best."""
    table = findings.rankings
    if table.empty:
        return
    clouds = {str(model): _cloud(inputs, rows) for model, rows in table.groupby("model", sort=False)}
    draw = partial(charts.frontiers, clouds, inputs.cluster.area_limit_um2)
    figure = WORDS.chart("frontier", draw, count=MOST_DOTS)
    yield WORDS.section("ranking", (figure, WORDS.sheet("ranking", table, table["smallest_area"])))


def _cloud(inputs: Inputs, ranked: pd.DataFrame) -> pd.DataFrame:
    """Fastest accelerators of a model at its chosen HBM size; `ranked` are its rows of table `rankings`."""
    best, rows = ranked.iloc[0], candidates(inputs.cluster)
    at_chosen_hbm = (rows["model"] == best["model"]) & (rows["hbm_gib"] == best["hbm_gib"])
    shown = in_order(rows[at_chosen_hbm & (rows["status"] == "placed")]).drop_duplicates("architecture")
    shown = shown.head(MOST_DOTS)
    # later entries win: an architecture that is all of these is marked as the best
    kinds = {inputs.study.architectures.baseline: "baseline"}
    kinds |= dict.fromkeys(ranked.loc[ranked["smallest_area"], "architecture"], "smallest")
    kinds |= {best["architecture"]: "best"}
    relative = shown["samples_per_s"] / shown["samples_per_s"].max()
    return shown.assign(relative=relative, kind=shown["architecture"].map(kinds).fillna(""))


PARTS: tuple[Part, ...] = (throughput, memory, ranking)
"""Functions that yield the sections of this part, in order."""


def oversized_baseline(inputs: Inputs) -> Iterator[str]:
    """Yield a sentence on a baseline that is larger than the area limit of the search."""
    cluster, name = inputs.cluster, inputs.study.architectures.baseline
    if name is not None:
        baseline_um2 = float(chip_named(cluster, name)["area_um2"])
        if baseline_um2 > cluster.area_limit_um2 * (1 + 1e-9):
            limit = area(cluster.area_limit_um2)
            size = area(baseline_um2)
            yield f"The baseline {name} has {size}, beyond the area limit of the search, {limit}."


def find_gains(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Table `gains`; empty for a study without interpretations or without a baseline.

    All architectures use Phaze's planner, each with the best of its HBM capacities. The gain of a design is
    the geometric mean over the models that both it and the baseline can train.
    """
    rows = []
    readings = inputs.readings
    placed = readings[(readings["status"] == "placed") & (readings["planner"] == "phaze")]
    throughputs = {
        tuple(map(str, key)): float(placements["samples_per_s"].max())
        for key, placements in placed.groupby(["reading", "model", "architecture"])
    }
    designs = dict(accelerators(inputs, results))
    for reading, settings in inputs.study.shown_readings.items():
        baseline = settings.baseline or inputs.study.architectures.baseline
        for design, by_model in designs.items() if baseline is not None else ():
            ratios = [
                throughputs.get((reading, model, chip), 0.0)
                / throughputs.get((reading, model, str(baseline)), np.inf)
                for model, chip in by_model.items()
            ]
            # a ratio is 0 if the design or the baseline cannot train the model
            positive = [ratio for ratio in ratios if ratio > 0]
            if positive and design != baseline:
                gain = float(np.exp(np.mean(np.log(positive))))
                row = {"reading": reading, "design": design, "note": settings.note, "baseline": baseline}
                rows.append({**row, "gain": gain, "models": len(positive)})
    if not rows:
        return Gains.empty()
    table = pd.DataFrame(rows)
    study_gains = table[table["reading"] == OWN_READING].set_index("design")["gain"]
    of_study = table["gain"] / table["design"].map(study_gains)
    return Gains.check(table.assign(of_study=of_study.fillna(0.0)))


def accelerators(inputs: Inputs, results: pd.DataFrame) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the accelerators to compare, by model: best, common, and named ones outside families."""
    models, named = inputs.study.models, inputs.study.architectures.named
    members = {name for family in inputs.families.values() for name in family.values()}
    for design in (PER_MODEL, COMMON):
        rows = {model: row_of(results, model, design) for model in models}
        yield design, {model: str(row["architecture"]) for model, row in rows.items() if row is not None}
    for name in named:
        if name not in members:
            yield name, dict.fromkeys(models, name)


def assumptions(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the gains under each interpretation; nothing without interpretations."""
    gains = gains_in_order(inputs, findings.gains)
    if gains.empty:
        return
    claimed = claims_of(gains)
    turned = tuple(reversal_sentences(claimed))
    blocks: list[Block] = [Items(turned)] if turned else []
    heads = {design: design for design in gains["design"].unique()}
    sheet = WORDS.sheet("assumptions", gains, gains["reading"].unique() == OWN_READING, heads=heads)
    yield WORDS.section("assumptions", (*blocks, *_gains_chart(inputs, claimed), sheet))


def _gains_chart(inputs: Inputs, shown: pd.DataFrame) -> Iterator[Chart]:
    """Yield the chart of claimed gains under each interpretation; nothing if there is only one."""
    wide = shown.pivot(index="reading", columns="design", values="gain")
    wide = wide.reindex(index=shown["reading"].unique(), columns=shown["design"].unique())
    if len(wide) < 2:
        return
    baseline = inputs.study.architectures.baseline
    over = shown.drop_duplicates("reading").set_index("reading")["baseline"]
    names = {key: key if over[key] == baseline else f"{key} (over {over[key]})" for key in wide.index}
    wide = wide.rename(index={**names, OWN_READING: "settings of the study"}, columns=TITLES)
    draw = partial(charts.bars, wide, "throughput over the baseline", origin=1, format_value=times)
    yield WORDS.chart("gains", draw, baseline=baseline)


def gains_in_order(inputs: Inputs, gains: pd.DataFrame) -> pd.DataFrame:
    """Gains sorted by design and interpretation in study order; the study's own settings come first."""
    designs = (PER_MODEL, COMMON, *inputs.study.architectures.named)
    order = {name: place for place, name in enumerate((*designs, *inputs.study.shown_readings))}
    rows = gains[(gains["design"] != COMMON) | (len(inputs.study.models) > 1)]
    return rows.sort_values(["design", "reading"], key=lambda names: names.map(order), ignore_index=True)


def claims_of(gains: pd.DataFrame) -> pd.DataFrame:
    """Gains, in order, that the study claims: the gains of all designs that are never the baseline.

    Of designs with equal gains only the last is kept, so that a named one replaces an unnamed one.
    """
    claimed = gains[~gains["design"].isin(gains["baseline"])]
    wide = claimed.pivot(index="design", columns="reading", values="gain").reindex(claimed["design"].unique())
    # equal gains under every interpretation: taken for one accelerator under two names
    return claimed[~claimed["design"].isin(wide.index[wide.duplicated(keep="last")])]


def reversal_sentences(gains: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per design whose gain disappears or appears under some interpretation."""
    for design, gain, others in _by_design(gains):
        under = join(
            fill("{reading}, {gain:times} over {baseline} ({note})", row)
            for _, row in _reversals(gain, others).iterrows()
        )
        if under:
            yield WORDS.sentence("depends", **{**gain, "design": design, "under": under})


def caveat_sentences(gains: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per design on how its gain depends on interpretation; reversals come first."""
    caveats: list[tuple[bool, str]] = []
    for design, gain, others in _by_design(gains):
        turned = _reversals(gain, others)
        rows = others if turned.empty else turned
        # by logarithm: half of a gain is as far from it as twice the gain
        for _, most in rows.loc[np.log(rows["gain"] / gain["gain"]).abs().nlargest(1).index].iterrows():
            over = "" if most["baseline"] == gain["baseline"] else f" over {most['baseline']}"
            placeholders = {**gain, "design": design, "most": most["gain"], "over": over}
            caveat = WORDS.sentence("rests", **{**placeholders, "reading": most["reading"]})
            caveats += [(turned.empty, caveat)] if times(most["gain"]) != times(gain["gain"]) else []
    yield from (caveat for _, caveat in sorted(caveats, key=lambda pair: pair[0]))


def spread(gains: pd.DataFrame, design: str, baseline: str, *also: float) -> str:
    """Smallest and largest gain of a design over a baseline under any interpretation, such as 0.9× to 2×.

    The gains `also` count too.
    """
    of_design = (gains["design"] == design) & (gains["baseline"] == baseline)
    values = [*gains.loc[of_design, "gain"], *also]
    ends = dict.fromkeys(times(end) for end in (min(values), max(values)))
    return " to ".join(ends)


def gain_sentences(gains: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per design on its gain, under the study's settings and each interpretation."""
    for design, gain, others in _by_design(gains):
        changes = [f"{row['reading']} {times(row['gain'])}" for _, row in others.iterrows()]
        under = f"; under the readings {join(changes)}" if changes else ""
        yield f"{design} trains {times(gain['gain'])} as fast as {gain['baseline']} as planned{under}."


def _reversals(gain: pd.Series, others: pd.DataFrame) -> pd.DataFrame:
    """Gains under the interpretations that turn an accelerator's gain into a loss, or a loss into a gain."""
    turned: pd.DataFrame = others[(others["gain"] > 1 + EVEN) != (gain["gain"] > 1 + EVEN)]
    return turned


def _by_design(gains: pd.DataFrame) -> Iterator[tuple[str, pd.Series, pd.DataFrame]]:
    """Yield each design's title, its gain under the study's settings, and its gains under interpretations."""
    for design, rows in gains.groupby("design", sort=False):
        under_study = rows["reading"] == OWN_READING
        if under_study.any():
            yield TITLES.get(str(design), str(design)), rows[under_study].iloc[0], rows[~under_study]
