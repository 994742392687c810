"""What stands beside a publication: accelerators, utilisation, and its claims checked against the study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import pandas as pd

from phaze.base.units import MIB
from phaze.cost.utilisation import peak_flops_per_s
from phaze.report import charts, claims
from phaze.report.document import Block, Chart, Section, Sheet
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.winners import (
    COMMON,
    PER_MODEL,
    baseline_design,
    chip_named,
    chip_of,
    common_name,
    geometric_means,
    is_beside,
    row_of,
)
from phaze.report.words import compute, join, percent, samples, seconds, short, storing, times, widths
from phaze.spec.published import Published, PublishedArchitecture, PublishedWorkload
from phaze.tables import Claims


@dataclass(frozen=True)
class Printed:
    """A publication with the study that it is shown beside."""

    inputs: Inputs
    findings: Findings
    published: Published

    def workloads(self) -> Iterator[tuple[str, PublishedWorkload, pd.Series]]:
        """Name, printed figures and our best row of every workload that has both."""
        for model in self.inputs.study.models:
            row = row_of(self.findings.results, model, PER_MODEL)
            if model in self.published.workloads and row is not None:
                yield model, self.published.workloads[model], row

    def designs(self) -> dict[str, str]:
        """Our design for every kind of utilisation that is printed."""
        baseline = self.inputs.study.architectures.baseline
        expert = baseline_design(self.inputs.study)
        names = {"baseline_expert": expert, "baseline": baseline, "common": self.common}
        return {kind: name for kind, name in names.items() if name is not None}

    @property
    def common(self) -> str:
        """The design that is the printed common accelerator; ours where none of that is named."""
        return common_name(self.inputs, self.published) or COMMON

    def mfu(self, model: str, kind: str) -> float | None:
        """The printed utilisation, or None."""
        mfu = self.published.workloads[model].mfu if model in self.published.workloads else None
        return None if mfu is None else float(getattr(mfu, kind))

    def source(self, kind: str) -> str:
        """Where a kind of figure is printed."""
        return self.published.sources.get(kind, "the publication")


def printed_of(inputs: Inputs, findings: Findings) -> Printed | None:
    """The study's publication, if it shows one of its own baseline."""
    published = inputs.published
    return Printed(inputs, findings, published) if published and is_beside(inputs.study, published) else None


def accelerators_sheet(printed: Printed) -> Sheet:
    """Our best accelerators and placements, each above the printed one."""
    rows: list[tuple[str, ...]] = []
    for model, theirs, row in printed.workloads():
        chip = chip_of(printed.inputs.cluster, row)
        rows.append(
            (
                model, "ours", compute(chip), short(chip["glb_bytes"]), f"{row['hbm_gib']:g} GiB",
                widths(row), samples(row["layout"]), storing(row["recompute"]),
            )
        )  # fmt: skip
        if theirs.architecture and theirs.placement:
            a, p = theirs.architecture, theirs.placement
            rows.append(
                (
                    "", "paper", compute(as_row(a)), f"{a.glb_mib:g} MiB", f"{a.hbm_gib:g} GiB",
                    f"{{{p.pipeline}, {p.data}, {p.tensor}}}", str(p.microbatch), storing(p.recompute),
                )
            )  # fmt: skip
    header = ("workload", "whose", "cores", "buffer", "HBM", "{p, d, t}", "microbatch", "activations")
    caption = f"Best accelerator and placement of every workload beside {printed.source('architecture')}"
    marked = frozenset(i for i, row in enumerate(rows) if row[1] == "ours")
    return Sheet(caption, header, tuple(rows), 8, marked, "results")


def as_row(chip: PublishedArchitecture) -> pd.Series:
    """A printed accelerator as a row of table architectures, as far as it is printed."""
    return pd.Series(dict(chip), dtype=object)


def utilisation_sheet(printed: Printed) -> Sheet:
    """MFU and time per batch beside the printed MFU and the time that it implies."""
    rows, speedups = [], printed_speedups(printed)
    for model, (kind, design) in product(printed.inputs.study.models, printed.designs().items()):
        row = row_of(printed.findings.results, model, design)
        if row is not None:
            theirs = printed.mfu(model, kind)
            implied = implied_s(printed, row, kind, theirs)
            rows.append(
                (
                    model, design, percent(row["mfu_paper"]), percent(theirs) if theirs else "–",
                    seconds(row["time_per_batch_s"]), seconds(implied) if implied else "–",
                    times(row["speedup"]), times(speedups.get((model, design), 0.0)),
                )
            )  # fmt: skip
    header = (
        "workload", "design", "MFU as in PaLM", "paper", "time per batch", "paper, implied", "speed-up",
        "paper, implied",
    )  # fmt: skip
    caption = f"Utilisation, time per batch and speed-up beside {printed.source('mfu')}"
    return Sheet(caption, header, tuple(rows), 2, source="results")


def peak_flops(inputs: Inputs, chip: pd.Series) -> float:
    """Matrix multiplication FLOP/s of a chip, 2 per multiply-accumulate unit and cycle."""
    clock_hz = inputs.cluster.scenario.clock_hz
    return peak_flops_per_s(int(chip["num_tc"]), int(chip["pe_x"]), int(chip["pe_y"]), clock_hz)


def implied_s(printed: Printed, row: pd.Series, kind: str, mfu: float | None) -> float | None:
    """The time per batch that a printed MFU implies, with our FLOPs per batch and that chip's peak."""
    common = printed.published.common
    if mfu is None or (kind == "common" and common is None):
        return None
    ours = peak_flops(printed.inputs, chip_of(printed.inputs.cluster, row))
    peak = ours if kind != "common" or common is None else peak_flops(printed.inputs, as_row(common))
    return float(row["time_per_batch_s"] * row["mfu_paper"] * ours / (mfu * peak))


def printed_speedups(printed: Printed) -> dict[tuple[str, str], float]:
    """The speed-ups that the printed utilisations imply where chips have the same peak."""
    return {
        (model, design): getattr(workload.mfu, kind) / workload.mfu.baseline_expert
        for model, workload in printed.published.workloads.items()
        for kind, design in printed.designs().items()
        if workload.mfu and kind != "baseline_expert"
    }


def beside_paper(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """The sections on the publication: accelerators, utilisation, claims."""
    printed = printed_of(inputs, findings)
    if printed is None or not any(True for _ in printed.workloads()):
        return
    figure = tuple(_utilisation_chart(printed))
    blocks: tuple[Block, ...] = (accelerators_sheet(printed), *figure, utilisation_sheet(printed))
    about = f"{printed.published.title}. {printed.published.citation}."
    yield Section("paper", "Beside the paper", about, blocks)
    if len(findings.claims):
        sheet = claims.claims_sheet(findings.claims, "claims")
        about = (
            "Whether each claim about the best accelerators holds for ours; a speed-up agrees if it is "
            "within 10 %."
        )
        yield Section("claims", "The paper's claims as checks", about, (sheet,))


def _utilisation_chart(printed: Printed) -> Iterator[Chart]:
    """The figure of the workloads that have a result on every design of which one is printed."""
    results, designs = printed.findings.results, printed.designs()
    ours, theirs = {}, {}
    for model in printed.inputs.study.models:
        rows = [row_of(results, model, design) for design in designs.values()]
        found = [row["mfu_paper"] for row in rows if row is not None]
        if len(found) == len(designs):
            ours[model] = dict(zip(designs.values(), found, strict=True))
            beside = {design: printed.mfu(model, kind) for kind, design in designs.items()}
            theirs[model] = {design: value for design, value in beside.items() if value is not None}
    if theirs:
        tables = (pd.DataFrame.from_dict(of, orient="index") for of in (ours, theirs))
        yield Chart(
            "utilisation",
            "Model FLOPs utilisation, ours beside the paper's",
            "Filled: ours. Hollow: printed. The line between them is the difference.",
            partial(charts.utilisations, *tables),
        )


def check_claims(inputs: Inputs, results: pd.DataFrame, memories: pd.DataFrame) -> pd.DataFrame:
    """Table claims; empty without a publication."""
    published = inputs.published
    best = results[(results["design"] == PER_MODEL) & (results["status"] == "placed")]
    if published is None or best.empty:
        return Claims.empty()
    tables = {
        "means": _means(inputs, published, results),
        "winners": _winners(inputs, best),
        "memories": memories[memories["chosen"]].assign(largest=memories["hbm_gib"].max()),
    }
    return claims.check_claims(published, tables, {"largest_memory": _largest_memory})


def _means(inputs: Inputs, published: Published, results: pd.DataFrame) -> pd.DataFrame:
    """The geometric means that are printed, as far as the study has both designs of each."""
    rows: list[dict[str, object]] = []
    if published.headline and is_beside(inputs.study, published):
        means = geometric_means(results).set_index("design")["speedup"]
        baseline, family = inputs.study.architectures.baseline or "", published.headline.compared_family
        common = common_name(inputs, published) or COMMON
        searched = f"{common} accelerator over {{}} with searched placements"
        for mean, design, over, of in (
            ("per_model", PER_MODEL, None, f"{PER_MODEL} accelerators over {baseline} expert"),
            ("common", common, None, f"{common} accelerator over {baseline} expert"),
            ("common_over_baseline", common, baseline, searched.format(baseline)),
            ("common_over_family", common, family, searched.format(family)),
        ):
            if design in means.index and (over is None or over in means.index):
                ratio = float(means[design]) / (1.0 if over is None else float(means[over]))
                rows.append({"mean": mean, "of": of, "ratio": ratio})
    return pd.DataFrame(rows)


def _winners(inputs: Inputs, best: pd.DataFrame) -> pd.DataFrame:
    """The best accelerator of every workload: area, global buffer, cores and lanes."""
    cluster, baseline = inputs.cluster, inputs.study.architectures.baseline
    base = None if baseline is None else chip_named(cluster, baseline)
    every = cluster.architectures["area_um2"]
    allowed = every[every <= cluster.area_limit_um2 * (1 + 1e-9)]
    rows = []
    for _, row in best.iterrows():
        chip = chip_of(cluster, row)
        rows.append(
            {
                "model": row["model"],
                "area_share": row["area_um2"] / cluster.area_limit_um2,
                "larger_share": (allowed > row["area_um2"] * (1 + 1e-9)).mean(),
                "architectures": len(allowed),
                "glb_mib": chip["glb_bytes"] / MIB,
                "core_width": max(chip["pe_x"], chip["pe_y"]),
                "lanes": chip["num_vc"] * chip["pe_vc"],
                "baseline": baseline or "",
                "baseline_lanes": 0 if base is None else int(base["num_vc"] * base["pe_vc"]),
            }
        )
    return pd.DataFrame(rows)


def _largest_memory(chosen: pd.DataFrame, printed: object) -> dict[str, object]:
    """Which workloads need the largest HBM, here and as printed."""
    ours = set(chosen.loc[chosen["hbm_gib"] == chosen["largest"], "model"])
    theirs = set(printed) & set(chosen["model"])  # type: ignore[call-overload]
    return {
        "theirs": join(sorted(theirs)) or "none of these workloads",
        "found": join(sorted(ours)) or "none",
        "same": ours == theirs,
    }
