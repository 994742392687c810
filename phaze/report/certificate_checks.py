"""Checks of the certificates: complete, about the best, nothing left open, and confirmed by other code."""

from __future__ import annotations

import numpy as np

from phaze.report.evidence import KEYS, Check, Evidence
from phaze.report.verdicts import ROUNDING, Verdicts, each
from phaze.report.winners import PER_MODEL, candidates, space_of
from phaze.tables import CAUSES, COMMON

VERIFIED = ("confirmed", "unproven")
"""Verdicts on points solved again that do not contradict the certificate."""
EXCLUDED = [cause for cause in CAUSES if cause not in ("solved", "open")]


def every_point_is_accounted_for(e: Evidence) -> Verdicts:
    """Yield for every certificate whether its causes sum to its points, and these are the whole space."""
    study, table = e.inputs.study, e.inputs.certificates.set_index("model")
    sizes = len(study.training.hbm_gib)
    each_width = sizes * len(study.training.recompute) * len(study.training.microbatches)
    space = len(space_of(e.inputs.cluster.architectures, e.inputs.cluster.area_limit_um2))
    found = table[list(CAUSES)].sum(axis=1)
    several = {model: each_width * len(study.workloads[model].tensor) for model in study.models}
    for model, number in {**several, COMMON: sizes}.items():
        same = found.get(model, 0) == table["points"].get(model, 0) == space * number
        yield bool(same), f"{model}: {found.get(model, 0)} of {space * number} points"


def nothing_is_left_that_could_be_better(e: Evidence) -> Verdicts:
    """Yield for every certificate whether no point is open, unless the study only walks; nor contradicts."""
    table = e.inputs.certificates
    walks = e.inputs.study.screen.strategy != "certified"
    return each(((table["open"] == 0) | walks) & (table["contradictions"] == 0), table, ("model",))


def certificates_are_about_the_best(e: Evidence) -> Verdicts:
    """Yield for every certificate and result whether it is about the best placement, within the tolerance."""
    best = candidates(e.inputs.cluster).groupby("model")["samples_per_s"].max()
    table = e.inputs.certificates[e.inputs.certificates["model"] != COMMON]
    same = np.isclose(table["best"], table["model"].map(best).fillna(0.0), rtol=ROUNDING, atol=0)
    yield from each(same & (table["excluded"] <= table["bound"]), table, ("model", "best"))
    winners = e.results[(e.results["design"] == PER_MODEL) & (e.results["status"] == "placed")]
    certified = table.set_index("model")["best"].reindex(winners["model"]).to_numpy()
    least = certified * (1 - e.inputs.study.screen.tolerance)
    yield from each(winners["samples_per_s"] >= least * (1 - ROUNDING), winners, ("model", "samples_per_s"))


def points_solved_again_agree(e: Evidence) -> Verdicts:
    """Yield for every point solved again whether it agrees, and whether as many were as asked for."""
    audits, table = e.inputs.audits, e.inputs.certificates
    yield from each(audits["verdict"].isin(VERIFIED), audits, (*KEYS[:-1], "verdict"))
    excluded = table.loc[table["model"] != COMMON, EXCLUDED].to_numpy().sum()
    asked = min(e.inputs.study.certify.points, int(excluded))
    drawn = int((audits["chosen"] != "best").sum())
    yield drawn >= asked, f"{drawn} of {asked} excluded points were solved again"


CERTIFICATE_CHECKS: dict[str, Check] = {
    "every point of the space is excluded or solved": every_point_is_accounted_for,
    "nothing is left that could be better than the best": nothing_is_left_that_could_be_better,
    "certificates are about the best placement": certificates_are_about_the_best,
    "points solved again agree with the certificate": points_solved_again_agree,
}
"""What must hold of every certificate, as sentences."""
