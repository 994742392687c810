"""On a reduced space: brute force without screening agrees, and corrupted data is detected."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from phaze.base.store import Store
from phaze.certify.audit import AuditedModel, best_time_s, judge_points
from phaze.certify.common import Aim, certify_common
from phaze.certify.draw import draw_points
from phaze.certify.space import names_of_space, read_shards
from phaze.certify.stage import SliceTables, best_row, certify_model
from phaze.certify.verification import solve_points
from phaze.schedule.stage import schedule_layers
from phaze.search.common import choose_common, common_candidates
from phaze.search.cosearch import evaluate_architectures
from phaze.tables import CAUSES, Certificates, Ranges
from phaze.tables.columns import widths_of
from tests.unit.certify.study import (
    LARGE,
    LIMIT_UM2,
    MIXED,
    SHAPES,
    SMALL,
    Results,
    architectures,
    given,
    results,
    subject,
    terms,
)

BATCH = 32
GRID = [(size, recompute) for size in (SMALL, LARGE) for recompute in (False, True)]
MODELS = [*SHAPES, *MIXED]
KEYS = ["layout", "architecture", "hbm_gib", "recompute"]


def model_of(name: str, one: SliceTables) -> AuditedModel:
    return AuditedModel(one.layers, subject(name).graph, given().scenario, given().training)


@cache
def brute_force(name: str) -> pd.DataFrame:
    """Return the time of every point: each layer scheduled on each architecture, and placed by plain code."""
    frames = []
    for one in results(name).slices:
        chips = one.architectures
        solves, _ = schedule_layers(
            one.operators, one.edges, one.estimates, chips, chips[["architecture"]].assign(kept=True),
            given().schedule, Store(),
        )  # fmt: skip
        frames.append(_times(one, solves, model_of(name, one)))
    return pd.concat(frames, ignore_index=True)


def _times(one: SliceTables, solves: pd.DataFrame, model: AuditedModel) -> pd.DataFrame:
    """Return the time of every architecture, HBM size and recompute at one point."""
    graph = model.graph.sort_values("position")
    wide = solves.pivot(index="architecture", columns=["direction", "layer"], values="objective_s")
    forward, backward = (
        np.repeat(wide[way][graph["layer"]].to_numpy(), graph["count"], axis=1)
        for way in ("forward", "backward")
    )
    rows = [
        {"architecture": chip, "hbm_gib": size, "recompute": recompute,
         "exact_s": best_time_s(model.chain, forward[a], backward[a], cluster)}
        for size, recompute in GRID
        for cluster in [model.cluster(size, recompute)]
        for a, chip in enumerate(wide.index)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(layout=one.layers["layout"].iloc[0])


def certify(name: str, found: Results) -> pd.Series:
    """Return the certificate of a model."""
    certificate, ranges = certify_model(
        zip(found.slices, found.screens, strict=True), subject(name).graph, architectures(),
        found.placements, found.solves, terms(),
    )  # fmt: skip
    Ranges.check(ranges)
    return Certificates.check(certificate).iloc[0]


def test_an_architecture_with_its_own_hbm_is_one_point_of_each_layout_and_recompute() -> None:
    """Its points with other sizes are neither counted nor missing."""
    found, chips = results("wide"), architectures()
    first = chips["architecture"].iloc[0]
    own = chips.assign(hbm_gib=np.where(chips["architecture"] == first, LARGE, 0.0))
    slices = [replace(one, architectures=_same(own, one.architectures)) for one in found.slices]
    keep = [rows[(rows["architecture"] != first) | (rows["hbm_gib"] == LARGE)] for rows in found.screens]
    placed = found.placements
    placed = placed[(placed["architecture"] != first) | (placed["hbm_gib"] == LARGE)]
    certificate, ranges = certify_model(
        zip(slices, keep, strict=True), subject("wide").graph, own, placed, found.solves, terms()
    )
    row, every = certificate.iloc[0], certify("wide", found)
    layouts = len({one.layers["layout"].iloc[0] for one in found.slices})
    assert row["points"] == every["points"] - 2 * layouts
    assert row[list(CAUSES)].sum() == row["points"]
    assert (row["open"], row["contradictions"]) == (0, 0)
    assert set(ranges.loc[ranges["architecture"] == first, "hbm_gib"]) == {LARGE}


def _same(rows: pd.DataFrame, chips: pd.DataFrame) -> pd.DataFrame:
    keys = ["shard", "architecture"]
    return chips.drop(columns="hbm_gib").merge(rows[[*keys, "hbm_gib"]], on=keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_brute_force_gives_the_same_best(name: str) -> None:
    row, exact = certify(name, results(name)), brute_force(name)
    best = exact["exact_s"].min()
    assert row["best"] == pytest.approx(BATCH / best, rel=1e-12)
    assert row["bound"] == pytest.approx(row["best"], rel=1e-12)
    areas = architectures().set_index("architecture")["area_um2"]
    fastest = exact[exact["exact_s"] <= best * (1 + 1e-9)]["architecture"].unique()
    assert row["architecture"] == min(fastest, key=lambda chip: (areas[chip], chip))
    assert row["excluded"] < row["best"] * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_point_is_counted_once(name: str) -> None:
    row, exact = certify(name, results(name)), brute_force(name)
    assert row[list(CAUSES)].sum() == row["points"] == len(exact) == len(architectures()) * 2 * 4
    assert row["architectures"] == len(architectures()) > 150
    assert row["memory"] == np.isinf(exact["exact_s"]).sum()
    assert row["open"] == row["contradictions"] == row["unproven"] == 0
    assert row["solved"] > 0
    assert row["work"] > 0


def test_memory_and_tensor_width_decide_in_this_space() -> None:
    """Some points fit no placement, the small HBM is slower, and each width is best somewhere."""
    exact = pd.concat(brute_force(name).assign(model=name) for name in SHAPES)
    assert np.isinf(exact["exact_s"]).any()
    best = exact.loc[exact.groupby(["model", "hbm_gib"])["exact_s"].idxmin()]
    assert (best.groupby("hbm_gib")["exact_s"].sum().diff().dropna() < 0).all()
    assert set(widths_of(best, "tp")) == {1, 2}


@pytest.mark.parametrize("mode", ["mean", "normalised", "geometric"])
def test_brute_force_gives_the_same_common_architecture(mode: str) -> None:
    weights = {"wide": 1.0, "deep": 3.0, "odd": 2.0}
    screens = [screen for name in SHAPES for screen in results(name).screens]
    found = common_candidates(
        screens,
        architectures(),
        weights,
        mode=mode,
        global_batch=BATCH,
        best=3,
        tolerance=0.01,  # type: ignore[arg-type]
    )
    chips = architectures()[architectures()["architecture"].isin(found["architecture"])]
    placed = [evaluate_architectures(subject(name), chips, given()) for name in SHAPES]
    placements = pd.concat(one.placements for one in placed)
    reference = {name: float(certify(name, results(name))["best"]) for name in SHAPES}
    commons = choose_common(
        placements,
        architectures(),
        weights,
        mode=mode,
        tolerance=0.01,
        reference=reference,  # type: ignore[arg-type]
    )
    ranges = pd.concat(
        certify_model(
            zip(results(name).slices, results(name).screens, strict=True), subject(name).graph,
            architectures(), results(name).placements, results(name).solves, terms(),
        )[1]
        for name in SHAPES
    )  # fmt: skip
    aim = Aim(weights, mode, reference, BATCH, LIMIT_UM2)  # type: ignore[arg-type]
    solves = pd.concat(one.solves for one in placed)
    row = certify_common(ranges, commons, placements, solves, architectures(), aim).iloc[0]
    by_model = pd.DataFrame(
        {n: BATCH / brute_force(n).groupby(["architecture", "hbm_gib"])["exact_s"].min() for n in SHAPES}
    )
    assert row["best"] == pytest.approx(_mean(by_model, weights, mode, reference).max(), rel=1e-12)
    assert row[list(CAUSES)].sum() == row["points"] == len(architectures()) * 2
    assert row["open"] == row["contradictions"] == 0
    assert 0 < row["excluded"] <= row["bound"] == row["best"]


def _mean(values: pd.DataFrame, weights: dict[str, float], mode: str, best: dict[str, float]) -> pd.Series:
    share = pd.Series(weights) / sum(weights.values())
    values = values[(values > 0).all(axis=1)]
    if mode == "geometric":
        return (values**share).prod(axis=1)
    return ((values / pd.Series(best) if mode == "normalised" else values) * share).sum(axis=1)


def drawn(found: Results, points: int) -> pd.DataFrame:
    names = names_of_space(architectures(), LIMIT_UM2)
    screens = zip((one.shard for one in found.slices), found.screens, strict=True)
    shards = read_shards(architectures(), names)
    return draw_points(screens, shards, best_row(found.placements, architectures()), points, seed=1)


def audit(name: str, found: Results, points: pd.DataFrame) -> pd.DataFrame:
    best_s, audits = BATCH / float(certify(name, found)["best"]), []
    for one in found.slices:
        mine = points[one.has(points)]
        if len(mine):
            times = solve_points(mine, one, model_of(name, one), given().schedule)
            audits.append(judge_points(mine, times, best_s))
    return pd.concat(audits, ignore_index=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide", *MIXED])
def test_points_solved_again_confirm_the_certificate_and_agree_with_brute_force(name: str) -> None:
    found = results(name)
    audits = audit(name, found, drawn(found, 40))
    assert (audits["verdict"] == "confirmed").all()
    assert audits["chosen"].value_counts()[["best", "nearest"]].tolist() == [1, 1]
    assert len(audits) >= 41
    both = audits.merge(brute_force(name), on=KEYS, suffixes=("", "_brute"))
    fits = np.isfinite(both["exact_s_brute"])
    assert len(both) == len(audits)
    assert 0 < fits.sum() < len(both)
    assert np.allclose(both.loc[fits, "exact_s"], both.loc[fits, "exact_s_brute"], rtol=1e-9)
    assert audits["programs"].sum() > 0


def corrupted(found: Results, rows: pd.DataFrame, **values: object) -> Results:
    """Return results with columns of some rows of the screens changed."""
    index = pd.MultiIndex.from_frame(rows[KEYS])
    screens = []
    for screen in found.screens:
        hit = pd.MultiIndex.from_frame(screen[KEYS]).isin(index)
        changed = {key: screen[key].where(~hit, value) for key, value in values.items()}
        screens.append(screen.assign(**changed))
    return Results(found.slices, tuple(screens), found.placements, found.solves)


def excluded(found: Results) -> pd.DataFrame:
    """Return an excluded point that fits."""
    every = pd.concat(found.screens)
    return every[~every["kept"] & np.isfinite(every["lower_s"])].iloc[[5]]


@pytest.mark.parametrize(
    ("lower", "feasible", "verdict"),
    [
        (1.001, None, "lower bound too high"),
        (np.inf, np.inf, "fits the memory"),
        (0.999, 0.999, "feasible time too low"),
    ],
)
def test_a_time_of_an_excluded_point_that_is_wrong_is_found(
    lower: float, feasible: float | None, verdict: str
) -> None:
    """Relative to its lower bound."""
    found = results("wide")
    point = excluded(found)
    bound_s = float(point["lower_s"].iloc[0])
    times_s = {"lower_s": bound_s * lower} | ({} if feasible is None else {"feasible_s": bound_s * feasible})
    wrong = corrupted(found, point, **times_s)
    mine = drawn(wrong, 10_000).merge(point[KEYS], on=KEYS)
    assert audit("wide", wrong, mine)["verdict"].tolist() == [verdict]


def test_an_excluded_architecture_that_is_the_best_is_found() -> None:
    """Its false bounds make it look slow, so the screen drops it; solving it again reveals this."""
    found = results("wide")
    every = pd.concat(found.screens)
    best = best_row(found.placements, architectures())
    assert best is not None
    lost = every[(every["architecture"] == best["architecture"]) & np.isfinite(every["lower_s"])]
    wrong = corrupted(found, lost, lower_s=9.0, feasible_s=9.0, kept=False)
    left = found.placements[found.placements["architecture"] != best["architecture"]]
    wrong = Results(wrong.slices, wrong.screens, left, wrong.solves)
    row = certify("wide", wrong)
    assert row["best"] < BATCH / best["time_per_batch_s"]
    mine = drawn(wrong, 10_000).merge(lost[KEYS], on=KEYS)
    assert {"lower bound too high"} == set(audit("wide", wrong, mine)["verdict"])


def test_a_kept_flag_that_is_wrong_is_found() -> None:
    """A point placed but not flagged as kept is a contradiction, and so is the reverse."""
    found = results("wide")
    every = pd.concat(found.screens)
    assert certify("wide", corrupted(found, every[every["kept"]].iloc[[0]], kept=False))["contradictions"]
    assert certify("wide", corrupted(found, excluded(found), kept=True))["contradictions"]


def test_an_architecture_that_is_neither_excluded_nor_solved_is_open() -> None:
    found = results("wide")
    wrong = corrupted(found, excluded(found), lower_s=0.0)
    row = certify("wide", wrong)
    assert row["open"] == 1
    assert row["bound"] == np.inf or row["bound"] > row["best"]


def test_a_best_value_that_is_wrong_is_found() -> None:
    """A placement that claims less time than its bounds; solving it again shows the same."""
    found = results("wide")
    best = best_row(found.placements, architectures())
    assert best is not None
    faster = found.placements.copy()
    at = (faster[KEYS] == best[KEYS]).all(axis=1)
    for column in ("time_per_batch_s", "bound_s"):
        faster.loc[at, column] *= 0.99
    wrong = Results(found.slices, found.screens, faster, found.solves)
    assert certify("wide", wrong)["contradictions"] == 1
    points = drawn(wrong, 0)
    verdicts = audit("wide", wrong, points[points["chosen"] == "best"])["verdict"]
    assert verdicts.tolist() == ["not as fast as claimed"]


def test_an_unproven_layer_enters_with_its_bound() -> None:
    found = results("wide")
    best = best_row(found.placements, architectures())
    assert best is not None
    loose = found.placements.copy()
    loose.loc[(loose[KEYS] == best[KEYS]).all(axis=1), "bound_s"] *= 0.98
    lower = corrupted(found, pd.DataFrame([best]), lower_s=float(best["time_per_batch_s"]) * 0.97)
    solves = found.solves.assign(status="feasible", gap=0.02)
    row = certify("wide", Results(found.slices, lower.screens, loose, solves))
    assert row["best"] == pytest.approx(BATCH / best["time_per_batch_s"], rel=1e-12)
    assert row["bound"] == pytest.approx(row["best"] / 0.98, rel=1e-12)
    assert (row["unproven"], row["gap"]) == (len(solves), 0.02)
