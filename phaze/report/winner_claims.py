"""Claims of a publication, checked against the results of a study."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.base.units import MIB
from phaze.report.inputs import Inputs
from phaze.report.verdicts import Claim, tabulate
from phaze.report.winners import COMMON, PER_MODEL, chip_of, common_name, geometric_means, is_beside
from phaze.report.words import join, percent, times
from phaze.spec.published import Published, PublishedClaims, PublishedHeadline
from phaze.tables import Claims

SAME_FACTOR = 0.1
"""A speed-up agrees with a published one within 10 %."""


def check_claims(inputs: Inputs, results: pd.DataFrame, memories: pd.DataFrame) -> pd.DataFrame:
    """Return table claims; empty without a publication."""
    published = inputs.published
    best = results[(results["design"] == PER_MODEL) & (results["status"] == "placed")]
    if published is None or best.empty:
        return Claims.empty()
    found = [
        *(
            _headline_claims(published, published.headline, results, inputs)
            if published.headline and is_beside(inputs.study, published)
            else ()
        ),
        *(_winner_claims(published, published.claims, inputs, best, memories) if published.claims else ()),
    ]
    return tabulate(found)


def _headline_claims(
    published: Published, headline: PublishedHeadline, results: pd.DataFrame, inputs: Inputs
) -> Iterator[Claim]:
    """Yield the speed-ups."""
    means = geometric_means(results).set_index("design")["speedup"]
    baseline = inputs.study.architectures.baseline or ""
    common = common_name(inputs, published) or COMMON
    source = published.sources.get("headline", "")
    for statement, theirs, ours in (
        (f"{PER_MODEL} accelerators over {baseline} expert", headline.per_model, _ratio(means, PER_MODEL)),
        (f"{common} accelerator over {baseline} expert", headline.common, _ratio(means, common)),
        (
            f"{common} accelerator over {baseline} with searched placements",
            headline.common_over_baseline,
            _ratio(means, common, baseline),
        ),
        (
            f"{common} accelerator over {headline.compared_family} with searched placements",
            headline.common_over_family,
            _ratio(means, common, headline.compared_family),
        ),
    ):
        if ours is not None:
            agrees = abs(ours / theirs - 1) <= SAME_FACTOR
            yield Claim(f"geometric mean speed-up, {statement}", source, times(theirs), times(ours), agrees)


def _ratio(means: pd.Series, design: str, over: str | None = None) -> float | None:
    if design not in means.index or (over is not None and over not in means.index):
        return None
    return float(means[design]) / (1.0 if over is None else float(means[over]))


def _winner_claims(
    published: Published,
    claims: PublishedClaims,
    inputs: Inputs,
    best: pd.DataFrame,
    memories: pd.DataFrame,
) -> Iterator[Claim]:
    """Yield what is said about the best accelerators."""
    sources = published.sources
    chips = {row["model"]: chip_of(inputs.cluster, row) for _, row in best.iterrows()}
    yield _area_claim(claims, sources, inputs, best)
    yield _area_rank_claim(claims, sources, inputs, best)
    yield _buffer_claim(claims, sources, chips)
    yield _width_claim(claims, sources, chips)
    yield from _vector_claim(sources, inputs, chips)
    yield _memory_claim(claims, sources, memories)


def _area_claim(
    claims: PublishedClaims, sources: dict[str, str], inputs: Inputs, best: pd.DataFrame
) -> Claim:
    share = best["area_um2"] / inputs.cluster.area_limit_um2
    small = best["model"][share < claims.smallest_area_share]
    return Claim(
        "every best accelerator uses most of the area limit",
        sources.get("smallest_area_share", ""),
        f"at least {percent(claims.smallest_area_share)}",
        f"{percent(share.min())} to {percent(share.max())}{_except(small)}",
        small.empty,
    )


def _area_rank_claim(
    claims: PublishedClaims, sources: dict[str, str], inputs: Inputs, best: pd.DataFrame
) -> Claim:
    chips = inputs.cluster.architectures
    allowed = chips[chips["area_um2"] <= inputs.cluster.area_limit_um2 * (1 + 1e-9)]["area_um2"]
    rank = best["area_um2"].map(lambda area: (allowed > area * (1 + 1e-9)).mean())
    late = best["model"][rank > claims.largest_area_rank_share]
    return Claim(
        "every best accelerator is among the largest",
        sources.get("largest_area_rank_share", ""),
        f"within the largest {percent(claims.largest_area_rank_share)}",
        f"{percent(rank.min())} to {percent(rank.max())} of {len(allowed):,} are larger{_except(late)}",
        late.empty,
    )


def _buffer_claim(claims: PublishedClaims, sources: dict[str, str], chips: dict[str, pd.Series]) -> Claim:
    mib = pd.Series({model: chip["glb_bytes"] / MIB for model, chip in chips.items()})
    large = mib.index[mib > claims.largest_glb_mib].to_series()
    return Claim(
        "no best accelerator has a large global buffer",
        sources.get("largest_glb_mib", ""),
        f"at most {claims.largest_glb_mib:g} MiB",
        f"{mib.min():g} to {mib.max():g} MiB{_except(large)}",
        large.empty,
    )


def _width_claim(claims: PublishedClaims, sources: dict[str, str], chips: dict[str, pd.Series]) -> Claim:
    width = pd.Series({model: max(chip["pe_x"], chip["pe_y"]) for model, chip in chips.items()})
    other = width.index[width != claims.core_width].to_series()
    return Claim(
        "best accelerators have wide tensor cores",
        sources.get("core_width", ""),
        f"{claims.core_width} on the larger side",
        join(f"{side} ({count})" for side, count in width.value_counts().items()) + _except(other),
        other.empty,
    )


def _vector_claim(sources: dict[str, str], inputs: Inputs, chips: dict[str, pd.Series]) -> Iterator[Claim]:
    baseline = inputs.study.architectures.baseline
    if baseline is None:
        return
    base = chip_of(inputs.cluster, pd.Series({"architecture": baseline}))
    lanes = pd.Series({model: chip["num_vc"] * chip["pe_vc"] for model, chip in chips.items()})
    theirs = int(base["num_vc"] * base["pe_vc"])
    fewer = lanes.index[lanes <= theirs].to_series()
    yield Claim(
        f"best accelerators have more vector lanes than {baseline}",
        sources.get("vector_cores", ""),
        f"more than {theirs:,}",
        f"{lanes.min():,} to {lanes.max():,}{_except(fewer)}",
        fewer.empty,
    )


def _memory_claim(claims: PublishedClaims, sources: dict[str, str], memories: pd.DataFrame) -> Claim:
    chosen = memories[memories["chosen"]]
    largest = memories["hbm_gib"].max()
    models = set(chosen["model"])
    ours = set(chosen[chosen["hbm_gib"] == largest]["model"])
    theirs = {model for model in claims.largest_hbm_only if model in models}
    return Claim(
        f"only these need {largest:g} GiB to come within the tolerance of their best throughput",
        sources.get("largest_hbm_only", ""),
        join(sorted(theirs)) or "none of these workloads",
        join(sorted(ours)) or "none",
        ours == theirs,
    )


def _except(models: pd.Series) -> str:
    return f"; not {join(models)}" if len(models) else ""
