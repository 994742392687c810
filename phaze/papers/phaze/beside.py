"""Comparison with Phaze's paper: accelerators, utilisation, model sizes, and searches by descending area."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from math import nan, prod
from typing import NamedTuple, get_args

import pandas as pd

from phaze.base.units import MIB, percent
from phaze.cost.utilisation import peak_flops_per_s
from phaze.pages import charts
from phaze.pages.document import Block, Sheet
from phaze.pages.words import LIMITS, compute, fill, join, samples, widths
from phaze.papers.claims import check_claims
from phaze.papers.page import words_of
from phaze.papers.publications import Design, Mean, Published, PublishedArchitecture, PublishedWorkload
from phaze.report.anatomy import limits_of
from phaze.report.findings import COMMON, PER_MODEL, baseline_design, geometric_means, placed_rows, row_of
from phaze.report.inputs import Inputs
from phaze.search.winners import chip_of
from phaze.tables import Claims

WORDS = words_of("phaze")
SEARCHED = "{} accelerator over {} with searched placements"


@dataclass(frozen=True)
class Beside:
    """Phaze's publication, and the result tables of a study to compare with it."""

    inputs: Inputs
    published: Published
    results: pd.DataFrame
    memories: pd.DataFrame
    breakdowns: pd.DataFrame
    complexities: pd.DataFrame
    walks: pd.DataFrame

    @property
    def shares_baseline(self) -> bool:
        """True if the speed-ups of study and publication refer to the same baseline."""
        return self.published.baseline in (None, self.inputs.study.architectures.baseline)

    @cached_property
    def workloads(self) -> list[tuple[str, PublishedWorkload, pd.Series]]:
        """Name, published figures and our best result of each workload for which both exist."""
        rows = {m: row_of(self.results, m, PER_MODEL) for m in self.inputs.study.models}
        printed = self.published.workloads
        return [(m, printed[m], row) for m, row in rows.items() if m in printed and row is not None]

    @property
    def common_name(self) -> str:
        """Named architecture equal to the published common accelerator; empty if there is none."""
        # A member of a family may have the same cores, but it was designed for one workload.
        members = {name for family in self.published.families.values() for name in family.values()}
        chips = self.inputs.cluster.architectures
        named = chips[chips["named"] & ~chips["architecture"].isin(members)]
        same = named.iloc[:0] if self.published.common is None else same_as(named, self.published.common)
        return str(same["architecture"].iloc[0]) if len(same) else ""

    @property
    def common(self) -> str:
        """Design equal to the published common accelerator; our own common design if there is none."""
        return self.common_name or COMMON

    @property
    def family(self) -> str | None:
        """Published accelerator family that has a member in the study; None if no family has."""
        named = set(self.inputs.study.architectures.named)
        return next((f for f, chips in self.published.families.items() if set(chips.values()) & named), None)

    @cached_property
    def placed(self) -> Mapping[tuple[str, str, str, str], pd.DataFrame]:
        """Placements, by interpretation, model, architecture and planner."""
        placed = self.inputs.readings[self.inputs.readings["status"] == "placed"]
        return dict(iter(placed.groupby(["reading", "model", "architecture", "planner"])))  # type: ignore[arg-type]

    @property
    def designs(self) -> dict[Design, str]:
        """Our design for each kind of design with published utilisations."""
        baseline = self.inputs.study.architectures.baseline
        expert = baseline_design(self.inputs.study)
        names = zip(get_args(Design), (expert, baseline, self.common), strict=True)
        return {kind: name for kind, name in names if name is not None}

    def mfu(self, model: str, kind: Design) -> float | None:
        """Published utilisation of a workload on a kind of design; None if not published."""
        workload = self.published.workloads.get(model)
        return None if workload is None else workload.mfu.get(kind)

    def part(self, row: pd.Series, part: str) -> float:
        """Share of a result's batch time that one part of its breakdown takes; NaN if unknown."""
        table = self.breakdowns
        rows = table[(table["model"] == row["model"]) & (table["design"] == row["design"])]
        return float(rows[f"{part}_s"].iloc[0] / row["time_per_batch_s"]) if len(rows) else nan

    def source(self, kind: str) -> str:
        """Place in the publication where a kind of figure appears."""
        return self.published.sources.get(kind, "the publication")


class ImpliedGain(NamedTuple):
    """Speed-up of the only workload without published utilisations, implied by a published mean."""

    model: str
    mean: Mean
    gain: float
    least: float
    most: float
    """Limits of `gain`, because the mean and the utilisations are rounded."""


GAINS: dict[Mean, Design] = {"common": "baseline_expert", "common_over_baseline": "baseline"}
"""Design over which a mean compares the common accelerator, where both have published utilisations."""
HALF_DIGIT, HALF_PERMILLE = 0.05, 0.0005
"""Rounding errors of a published mean, and of a published utilisation."""


def implied_gains(published: Published) -> Iterator[ImpliedGain]:
    """Yield the speed-ups that follow from the published means; nothing unless one workload is missing.

    The product of n speed-ups is their geometric mean to the power n. Accelerators with equal peaks have
    speed-ups equal to the ratios of their utilisations.
    """
    missing = [model for model, workload in published.workloads.items() if not workload.mfu]
    utilisations = [workload.mfu for workload in published.workloads.values() if workload.mfu]
    if len(missing) != 1:
        return
    for mean, design in GAINS.items():
        if mean in published.headline:
            gains = [
                (published.headline[mean] + side * HALF_DIGIT) ** len(published.workloads)
                / prod(
                    (mfu["common"] - side * HALF_PERMILLE) / (mfu[design] + side * HALF_PERMILLE)
                    for mfu in utilisations
                )
                for side in (0, -1, 1)
            ]
            yield ImpliedGain(missing[0], mean, *gains)


def same_as(architectures: pd.DataFrame, chip: PublishedArchitecture) -> pd.DataFrame:
    """Rows of table `architectures` with the cores and global buffer of a published accelerator."""
    same = architectures["glb_bytes"] == chip.glb_mib * MIB
    for key in ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc"):
        same &= architectures[key] == getattr(chip, key)
    return architectures[same]


def as_row(chip: PublishedArchitecture) -> pd.Series:
    """Published accelerator as a row of table `architectures`, with only the published columns."""
    return pd.Series(dict(chip), dtype=object)


def accelerators_sheet(beside: Beside) -> Sheet:
    """Report table of the best accelerators and placements, ours above the published ones."""
    rows: list[dict[str, object]] = []
    for model, theirs, row in beside.workloads:
        chip, a, p = chip_of(beside.inputs.cluster, row), theirs.architecture, theirs.placement
        ours = {"cores": compute(chip), "glb_bytes": chip["glb_bytes"], "hbm_gib": row["hbm_gib"]}
        ours |= {"widths": widths(row), "recompute": row["recompute"]}
        rows.append({"model": model, "whose": "ours", **ours, "microbatch": samples(row["layout"])})
        if a and p:
            printed = {"cores": compute(as_row(a)), "glb_bytes": a.glb_mib * MIB, "hbm_gib": a.hbm_gib}
            rows.append({"model": "", "whose": "paper", **printed, **dict(p), "widths": p.widths})
    return _ours_and_printed("accelerators", rows, beside.source("architecture"))


def _ours_and_printed(name: str, rows: list[dict[str, object]], source: str) -> Sheet:
    table = pd.DataFrame(rows)
    return WORDS.sheet(name, table, table["whose"] != "paper", source=source)


def utilisations(beside: Beside) -> pd.DataFrame:
    """Best result of each workload on each published design, with MFU, speed-up, and binding limits."""
    rows = []
    for model, (kind, design) in product(beside.inputs.study.models, beside.designs.items()):
        row = row_of(beside.results, model, design)
        if row is not None:
            theirs, first = beside.mfu(model, kind), beside.mfu(model, "baseline_expert")
            speedup = theirs / first if theirs and first and kind != "baseline_expert" else 0.0
            figures = {"theirs": theirs or nan, "implied_s": implied_s(beside, row, kind, theirs) or nan}
            figures |= {part: beside.part(row, part) for part in ("fill", "sync")}
            limits = shares(limits_of(beside.inputs, row))
            about = {"printed_speedup": speedup, "limits": limits, "widths": widths(row)}
            rows.append({**row, **figures, **about})
    return pd.DataFrame(rows)


def shares(limits: pd.Series) -> str:
    """Limits that bind at least 5 % of operator time, largest first, as text such as "HBM 22 %"."""
    largest = limits[limits >= 0.05].sort_values(ascending=False)
    return ", ".join(f"{LIMITS[str(name)]} {percent(share, 0)}" for name, share in largest.items())


def peak_flops(inputs: Inputs, chip: pd.Series) -> float:
    """Peak matrix FLOP/s of a chip: 2 per multiply-accumulate unit and cycle."""
    clock_hz = inputs.cluster.scenario.clock_hz
    return peak_flops_per_s(int(chip["num_tc"]), int(chip["pe_x"]), int(chip["pe_y"]), clock_hz)


def implied_s(beside: Beside, row: pd.Series, kind: Design, mfu: float | None) -> float | None:
    """Time per batch implied by a published MFU, our FLOPs per batch and the chip's peak; None if unknown."""
    # MFU is FLOPs over time and peak, so time, MFU and peak multiply to the same FLOPs on both sides.
    common = beside.published.common
    if mfu is None or (kind == "common" and common is None):
        return None
    ours = peak_flops(beside.inputs, chip_of(beside.inputs.cluster, row))
    peak = ours if kind != "common" or common is None else peak_flops(beside.inputs, as_row(common))
    return float(row["time_per_batch_s"] * row["mfu_paper"] * ours / (mfu * peak))


def utilisation_blocks(beside: Beside) -> Iterator[Block]:
    """Yield a chart of utilisations, for workloads placed on every published design, and the table."""
    rows = utilisations(beside)
    if rows.empty:
        return
    ours, theirs = (
        rows.pivot(index="model", columns="design", values=of).reindex(
            index=rows["model"].unique(), columns=[*beside.designs.values()]
        )
        for of in ("mfu_paper", "theirs")
    )
    if len(ours := ours.dropna()):
        yield WORDS.chart("utilisation", partial(charts.utilisations, ours, theirs))
    yield WORDS.sheet("utilisation", rows, source=beside.source("mfu"))


def sizes_sheet(beside: Beside) -> Iterator[Sheet]:
    """Yield the report table of model sizes (Table 4), ours above the published ones."""
    rows: list[dict[str, object]] = []
    for _, row in beside.complexities.iterrows():
        workload = beside.published.workloads.get(row["model"])
        if workload is not None and workload.complexity:
            whose = fill("ours, {layout:sliced}", row)
            rows.append({**row, "whose": whose, "parameter_bytes": row["block_parameter_bytes"]})
            rows.append({"model": "", "whose": "paper"} | dict(workload.complexity.items()))
    if rows:
        yield _ours_and_printed("sizes", rows, beside.source("complexity"))


def walk_sheets(beside: Beside) -> Iterator[Block]:
    """Yield the table of designs that the search by descending area chooses per hysteresis level."""
    chosen = beside.walks[beside.walks["scope"] == "least-microbatch"]
    chosen = chosen[chosen["model"].isin([*beside.published.walks])]
    if len(chosen):
        levels = chosen[["model", "hysteresis"]].itertuples(index=False)
        printed = [beside.published.walks[model].get(int(level), "–") for model, level in levels]
        yield WORDS.sheet("chosen", chosen.assign(printed=printed), source=beside.source("walk"))


def claims_of(beside: Beside) -> pd.DataFrame:
    """Table `claims`: the paper's claims, checked on the best accelerators."""
    best = placed_rows(beside.results, PER_MODEL)
    if best.empty:
        return Claims.empty()
    memories = beside.memories
    tables = {
        "means": _means(beside),
        "winners": _winners(beside.inputs, best),
        "memories": memories[memories["chosen"]].assign(largest=memories["hbm_gib"].max()),
    }
    return check_claims(beside.published, tables, {"largest_memory": _largest_memory})


def _means(beside: Beside) -> pd.DataFrame:
    """Our geometric mean for every published geometric mean whose two designs the study contains."""
    rows: list[dict[str, object]] = []
    if beside.published.headline and beside.shares_baseline:
        # These are over the baseline with the expert's placement already: None divides by 1.
        means = geometric_means(beside.results).set_index("design")["speedup"]
        baseline = beside.inputs.study.architectures.baseline or ""
        common, family = beside.common, beside.published.compared_family
        for mean, design, over, of in (
            ("per_model", PER_MODEL, None, f"{PER_MODEL} accelerators over {baseline} expert"),
            ("common", common, None, f"{common} accelerator over {baseline} expert"),
            ("common_over_baseline", common, baseline, SEARCHED.format(common, baseline)),
            ("common_over_family", common, family, SEARCHED.format(common, family)),
        ):
            if {design, over} <= {*means.index, None}:
                rows.append({"mean": mean, "of": of, "ratio": means[design] / means.get(over, 1.0)})
    return pd.DataFrame(rows)


def _winners(inputs: Inputs, best: pd.DataFrame) -> pd.DataFrame:
    """Best accelerator of each workload: area, global buffer, cores and lanes."""
    cluster, baseline = inputs.cluster, inputs.study.architectures.baseline
    lanes = cluster.chips["num_vc"] * cluster.chips["pe_vc"]
    every, area_um2 = cluster.architectures["area_um2"], best["area_um2"]
    allowed = every[every <= cluster.area_limit_um2 * (1 + 1e-9)]
    chips = cluster.chips.loc[best["architecture"]].set_index(best.index)
    return pd.DataFrame(
        {
            "model": best["model"],
            "area_share": area_um2 / cluster.area_limit_um2,
            "larger_share": area_um2.map(lambda area: (allowed > area * (1 + 1e-9)).mean()),
            "architectures": len(allowed),
            "glb_mib": chips["glb_bytes"] / MIB,
            "core_width": chips[["pe_x", "pe_y"]].max(axis=1),
            "lanes": chips["num_vc"] * chips["pe_vc"],
            "baseline": baseline or "",
            "baseline_lanes": 0 if baseline is None else int(lanes[baseline]),
        }
    )


def _largest_memory(chosen: pd.DataFrame, printed: object) -> dict[str, object]:
    """Names of the workloads that need the largest HBM, ours and published, and whether they agree."""
    ours = set(chosen.loc[chosen["hbm_gib"] == chosen["largest"], "model"])
    theirs = set(printed) & set(chosen["model"])  # type: ignore[call-overload]
    return {
        "theirs": join(sorted(theirs)) or "none of these workloads",
        "found": join(sorted(ours)) or "none",
        "same": ours == theirs,
    }
