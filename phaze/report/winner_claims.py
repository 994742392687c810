"""Claims of a publication, checked against the results of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pandas as pd

from phaze.base.units import MIB
from phaze.report.inputs import Inputs
from phaze.report.verdicts import Claim, tabulate
from phaze.report.winners import (
    COMMON,
    PER_MODEL,
    chip_named,
    chip_of,
    common_name,
    geometric_means,
    is_beside,
)
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
    found: list[Claim] = []
    if published.headline and is_beside(inputs.study, published):
        found += _headline_claims(published, published.headline, results, inputs)
    if published.claims:
        found += _winner_claims(published, published.claims, inputs, best)
        found.append(_memory_claim(published, published.claims, memories))
    return tabulate(found)


def _headline_claims(
    published: Published, headline: PublishedHeadline, results: pd.DataFrame, inputs: Inputs
) -> Iterator[Claim]:
    """Yield the speed-ups."""
    means = geometric_means(results).set_index("design")["speedup"]
    baseline, family = inputs.study.architectures.baseline or "", headline.compared_family
    common = common_name(inputs, published) or COMMON
    source = published.sources.get("headline", "")
    for design, over, of, theirs in (
        (PER_MODEL, None, f"{PER_MODEL} accelerators over {baseline} expert", headline.per_model),
        (common, None, f"{common} accelerator over {baseline} expert", headline.common),
        *(
            (common, other, f"{common} accelerator over {other} with searched placements", printed)
            for other, printed in (
                (baseline, headline.common_over_baseline),
                (family, headline.common_over_family),
            )
        ),
    ):
        if design in means.index and (over is None or over in means.index):
            ours = float(means[design]) / (1.0 if over is None else float(means[over]))
            agrees = abs(ours / theirs - 1) <= SAME_FACTOR
            yield Claim(f"geometric mean speed-up, {of}", source, times(theirs), times(ours), agrees)


def _winner_claims(
    published: Published, claims: PublishedClaims, inputs: Inputs, best: pd.DataFrame
) -> Iterator[Claim]:
    """Yield what is said about the best accelerators: a value of each is on the right side of a limit."""
    cluster, baseline = inputs.cluster, inputs.study.architectures.baseline
    limit_um2 = cluster.area_limit_um2
    chips = pd.DataFrame({row["model"]: chip_of(cluster, row) for _, row in best.iterrows()}).T
    area_um2 = best.set_index("model")["area_um2"]

    claim = partial(_claim, published.sources)
    share = area_um2 / limit_um2
    yield claim(
        "every best accelerator uses most of the area limit",
        "smallest_area_share",
        f"at least {percent(claims.smallest_area_share)}",
        f"{percent(share.min())} to {percent(share.max())}",
        share < claims.smallest_area_share,
    )
    every = cluster.architectures["area_um2"]
    allowed = every[every <= limit_um2 * (1 + 1e-9)]
    rank = area_um2.map(lambda area: (allowed > area * (1 + 1e-9)).mean())
    yield claim(
        "every best accelerator is among the largest",
        "largest_area_rank_share",
        f"within the largest {percent(claims.largest_area_rank_share)}",
        f"{percent(rank.min())} to {percent(rank.max())} of {len(allowed):,} are larger",
        rank > claims.largest_area_rank_share,
    )
    mib = chips["glb_bytes"] / MIB
    yield claim(
        "no best accelerator has a large global buffer",
        "largest_glb_mib",
        f"at most {claims.largest_glb_mib:g} MiB",
        f"{mib.min():g} to {mib.max():g} MiB",
        mib > claims.largest_glb_mib,
    )
    width = chips[["pe_x", "pe_y"]].max(axis=1)
    yield claim(
        "best accelerators have wide tensor cores",
        "core_width",
        f"{claims.core_width} on the larger side",
        join(f"{side} ({count})" for side, count in width.value_counts().items()),
        width != claims.core_width,
    )
    if baseline is not None:
        base = chip_named(cluster, baseline)
        theirs, lanes = int(base["num_vc"] * base["pe_vc"]), chips["num_vc"] * chips["pe_vc"]
        yield claim(
            f"best accelerators have more vector lanes than {baseline}",
            "vector_cores",
            f"more than {theirs:,}",
            f"{lanes.min():,} to {lanes.max():,}",
            lanes <= theirs,
        )


def _claim(
    sources: Mapping[str, str], statement: str, source: str, printed: str, ours: str, breaks: pd.Series
) -> Claim:
    """Return a claim about all best accelerators, with the workloads whose accelerator breaks it."""
    broken = breaks.index[breaks.to_numpy(bool)]
    but = f"; not {join(broken)}" if len(broken) else ""
    return Claim(statement, sources.get(source, ""), printed, f"{ours}{but}", broken.empty)


def _memory_claim(published: Published, claims: PublishedClaims, memories: pd.DataFrame) -> Claim:
    chosen, largest = memories[memories["chosen"]], memories["hbm_gib"].max()
    ours = set(chosen.loc[chosen["hbm_gib"] == largest, "model"])
    theirs = set(claims.largest_hbm_only) & set(chosen["model"])
    return Claim(
        f"only these need {largest:g} GiB to come within the tolerance of their best throughput",
        published.sources.get("largest_hbm_only", ""),
        join(sorted(theirs)) or "none of these workloads",
        join(sorted(ours)) or "none",
        ours == theirs,
    )
