"""All stages together: the kept architectures suffice, and the composition agrees with the stages."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest

from phaze import tables
from phaze.base.ranking import name_ranks, order, smallest
from phaze.base.store import Store
from phaze.cost.operators import estimate_operators
from phaze.cost.space import enumerate_grid
from phaze.formulas.phaze.model import place_model
from phaze.formulas.phaze.point import Conditions
from phaze.layout import Layout, layouts_of
from phaze.schedule.stage import schedule_layers
from phaze.search.common import choose_common, common_candidates
from phaze.search.cosearch import (
    Evaluation,
    Subject,
    Terms,
    best_placement,
    evaluate_architectures,
    extract_subject,
    vary_cluster,
)
from phaze.search.stage import screen_architectures
from phaze.search.throughputs import exact_times, restrict_search, walk_models
from phaze.spec.architecture import Grid, load_technology
from phaze.spec.settings import ExtractSettings, ScheduleSettings, ScreenSettings, Training
from phaze.spec.system import Scenario
from tests.unit.certify.study import model as tiny

BEST, TOLERANCE = 3, 0.01
SHARDS = {"small-buffer": (2.0,), "large-buffer": (32.0,)}
SMALL, LARGE = 0.0125, 0.25
"""HBM sizes in GiB: the models fit the small one only with recomputation, TMP or more stages."""


SOLVED = TemporaryDirectory(prefix="phaze-solutions-")
"""Cache of programs for all stages and evaluations, as in a study."""

MODELS = {"wide": tiny("wide", 4, 512, 2048), "deep": tiny("deep", 10, 256, 1024)}


@cache
def subject(name: str, backward: str = "paired") -> Subject:
    """Return a model at two TMP widths and two microbatches; with a split backward pass at one of each."""
    widths = (1, 2) if backward == "paired" else (1,)
    return extract_subject(
        MODELS[name],
        sequence=128,
        layouts=layouts_of(widths, widths),
        settings=ExtractSettings(backward=backward),  # type: ignore[arg-type]
        expert=Layout(pp=2, dp=2, tp=1),
    )


@cache
def terms() -> Terms:
    """Return a cluster of eight devices with scarce memory."""
    return Terms(
        scenario=Scenario(devices=8, global_batch=32),
        training=Training(hbm_gib=(SMALL, LARGE), microbatches=(1, 2)),
        technology=load_technology("22nm"),
        schedule=ScheduleSettings(solver=("highs",), node_limit=20),
        solutions=Path(SOLVED.name),
    )


@cache
def shard(name: str) -> pd.DataFrame:
    """Return a few dozen small architectures."""
    sizes = {"num_tc": (1, 2, 8), "num_vc": (1, 4), "pe_x": (16, 64), "pe_y": (16, 64)}
    grid = Grid(**sizes, glb_mib=SHARDS[name], minimum_area_share=None)
    return enumerate_grid(grid, terms().technology.area_um2, 60e6, name)


def everything() -> pd.DataFrame:
    """Return the architectures of both shards."""
    return pd.concat([shard(name) for name in SHARDS], ignore_index=True)


@cache
def exhaustive(name: str) -> Evaluation:
    """Return the evaluation of a model on all architectures."""
    return evaluate_architectures(subject(name), everything(), terms())


@cache
def screened(name: str, backward: str = "paired", step: int = 1) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """Return screens and placements as the workflow makes them: point by point and shard by shard."""
    model, given = subject(name, backward), terms()
    conditions = Conditions(
        given.scenario, given.training, given.technology.energy,
        sequence=model.sequence, flops_per_token=model.flops_per_token,
    )  # fmt: skip
    screens, placements = [], []
    for point in model.points:
        for chips in (shard(part).iloc[::step] for part in SHARDS):
            estimates = estimate_operators(
                point.tables["parts"], chips, given.hardware, given.technology, given.estimate
            )
            screen = screen_architectures(
                point.tables["operators"], point.tables["edges"],
                point.tables["layers"], model.graph, estimates, chips,
                given.scenario, given.training, ScreenSettings(best=BEST, tolerance=TOLERANCE),
                given.technology.energy,
            )  # fmt: skip
            solves, _ = schedule_layers(
                point.tables["operators"], point.tables["edges"], estimates, chips, screen, given.schedule,
                Store(given.solutions),
            )  # fmt: skip
            placed, _ = place_model(point.tables["layers"], model.graph, solves, chips, screen, conditions)
            screens.append(screen)
            placements.append(placed)
    return screens, pd.concat(placements, ignore_index=True)


def answers(placements: pd.DataFrame) -> dict[float, tuple[list[str], str | None, float]]:
    """Return the best few, the smallest within the tolerance, and the best time for every HBM size."""
    area = everything().set_index("architecture")["area_um2"]
    found = {}
    for size, rows in placements[placements["planner"] == "phaze"].groupby("hbm_gib"):
        time = rows.groupby("architecture")["time_per_batch_s"].min()
        areas, name = area[time.index].to_numpy(), name_ranks(time.index)
        first = [time.index[a] for a in order(time.to_numpy(), areas, name)[:BEST]]
        small = smallest(time.to_numpy(), areas, name, TOLERANCE)
        found[size] = (first, None if small is None else time.index[small], time.min())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_the_screen_keeps_gives_the_answers_of_the_exhaustive_search(name: str) -> None:
    """The best few, the smallest within 1 % and the best time of every HBM size, over points and shards."""
    screens, placements = screened(name)
    kept = pd.concat(screens)
    assert kept.loc[kept["kept"], "architecture"].nunique() < len(everything()) / 2
    assert answers(placements) == answers(exhaustive(name).placements)


def test_memory_decides_in_this_space() -> None:
    """HBM sizes, recompute, TMP widths and depths all matter in this space."""
    placements = exhaustive("wide").placements
    mine = placements[placements["planner"] == "phaze"]
    best = mine.groupby(["hbm_gib", "recompute"])["time_per_batch_s"].min()
    assert best[(SMALL, False)] > best[(LARGE, False)]
    assert (mine["status"] == "infeasible").any()
    assert mine.loc[mine["status"] == "placed", "stages"].nunique() > 1


@pytest.mark.slow
@pytest.mark.parametrize(("backward", "step"), [("paired", 1), ("split", 96)])
def test_exact_times_lie_between_the_bounds_of_the_screen(backward: str, step: int) -> None:
    """Every placement respects its row of the screen, and the fast computation of its time agrees."""
    screens, _ = screened("wide", backward, step)
    chips = pd.concat([shard(part).iloc[::step] for part in SHARDS])
    evaluation = (
        exhaustive("wide") if step == 1 else evaluate_architectures(subject("wide", backward), chips, terms())
    )
    exact = evaluation.placements[evaluation.placements["planner"] == "phaze"]
    keys = ["layout", "architecture", "hbm_gib", "recompute"]
    both = exact.merge(pd.concat(screens), on=keys, validate="one_to_one")
    assert len(both) == len(chips) * 2 * 2 * len(subject("wide", backward).points)
    assert (both["lower_s"] <= both["time_per_batch_s"] * (1 + 1e-12)).all()
    assert (both["time_per_batch_s"] <= both["feasible_s"] * (1 + 1e-12)).all()
    assert (np.isinf(both["lower_s"]) == (both["status"] == "infeasible")).all()
    full = exact.groupby(["architecture", "hbm_gib"])["time_per_batch_s"].min()
    quick = exact_times(subject("wide", backward), chips, terms())
    assert np.allclose(quick[full.index], full, rtol=1e-12)


@pytest.mark.parametrize("mode", ["mean", "normalised", "geometric"])
def test_the_common_candidates_hold_the_exhaustive_choice(mode: str) -> None:
    """The common architecture among the candidates is the one among all."""
    weights = {"wide": 1.0, "deep": 3.0}
    screens = [screen for name in MODELS for screen in screened(name)[0]]
    found = common_candidates(
        screens, everything(), weights, mode=mode, global_batch=32, best=BEST, tolerance=TOLERANCE
    )  # type: ignore[arg-type]
    exact = pd.concat([exhaustive(name).placements for name in MODELS])
    reference = exact.groupby("model")["samples_per_s"].max().to_dict()
    among = exact[exact["architecture"].isin(found["architecture"])]
    assert 0 < len(among) < len(exact)
    marks = ["best_of_hbm", "smallest_of_hbm", "chosen"]
    chosen = []
    for placements in (exact, among):
        ranked = choose_common(
            placements, everything(), weights, mode=mode, tolerance=TOLERANCE, reference=reference
        )  # type: ignore[arg-type]
        marked = ranked[ranked[marks].any(axis=1)]
        chosen.append(marked.sort_values(["hbm_gib", "architecture"], ignore_index=True))
    pd.testing.assert_frame_equal(chosen[0], chosen[1])
    assert chosen[0]["chosen"].sum() == 1


def test_the_tables_of_an_evaluation_are_tables() -> None:
    """Every part passes the validation of its table, and has every architecture at every point."""
    evaluation = exhaustive("wide")
    for name, table in (
        ("estimates", tables.Estimates),
        ("solves", tables.Solves),
        ("schedules", tables.Schedules),
        ("placements", tables.Placements),
        ("stages", tables.Stages),
    ):
        table.check(getattr(evaluation, name))
    assert set(evaluation.placements["architecture"]) == set(everything()["architecture"])
    assert len(evaluation.solves) == len(everything()) * 4 * 3 * 2


def test_the_best_placement_is_the_fastest_and_infeasible_only_if_all_are() -> None:
    """Ties go to the smaller HBM; without any placement the row gives the reason."""
    placements = exhaustive("deep").placements
    best = best_placement(placements)
    assert best["time_per_batch_s"] == placements["time_per_batch_s"].min()
    nowhere = placements[placements["status"] == "infeasible"]
    assert best_placement(nowhere)["reason"]


def test_the_expert_placement_is_evaluated_on_named_architectures() -> None:
    """Named architectures also have the placement with the experts' widths, which is not faster than the
    best.
    """
    chips = everything().iloc[:1].assign(named=True)
    placements = evaluate_architectures(subject("deep"), chips, terms()).placements
    assert set(placements["planner"]) == {"phaze", "expert", "expert-even"}
    times = (
        placements[placements["layout"].str.startswith("tp1-")]
        .groupby(["planner", "hbm_gib"])["time_per_batch_s"]
        .min()
    )
    assert (times["phaze"] <= times["expert"]).all()


def test_a_faster_cluster_is_never_slower() -> None:
    """More bandwidth of HBM or network shortens the time per batch, less lengthens it."""
    chips = everything().iloc[23::24]
    base = exact_times(subject("wide"), chips, terms())
    given = terms().scenario
    variations = {
        f"{key.split('_')[0]}-{word}": {key: getattr(given, key) * factor}
        for key in ("hbm_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s")
        for word, factor in (("half", 0.5), ("double", 2.0))
    }
    frame = vary_cluster(subject("wide"), chips, terms(), variations)
    assert set(frame["variation"]) == set(variations)
    times = frame.groupby(["variation", "architecture", "hbm_gib"])["time_per_batch_s"].min()
    for name in variations:
        varied = times[name][base.index]
        faster, slower = (varied, base) if name.endswith("double") else (base, varied)
        assert (faster <= slower * (1 + 1e-12)).all()
        assert (faster < slower * (1 - 1e-6)).any()
    assert len(vary_cluster(subject("wide"), chips, terms(), {})) == 0


def test_an_own_hbm_bandwidth_varies_like_that_of_the_cluster() -> None:
    chips = everything().iloc[23::24]
    own = chips.assign(hbm_bandwidth_bytes_per_s=terms().scenario.hbm_bandwidth_bytes_per_s)
    half = {"half": {"hbm_bandwidth_bytes_per_s": terms().scenario.hbm_bandwidth_bytes_per_s / 2}}
    usual, with_own = (vary_cluster(subject("wide"), one, terms(), half) for one in (chips, own))
    pd.testing.assert_frame_equal(usual, with_own)


def test_a_walk_to_the_end_finds_the_best() -> None:
    """With a hysteresis that never ends the walk, its best visit equals the best of exhaustive search."""
    settings = ScreenSettings(hysteresis=1000)
    visits = walk_models(
        {"wide": subject("wide")}, {"wide": 1.0}, everything(), terms(), settings, name="wide"
    )
    assert len(visits) == len(everything())
    best = best_placement(exhaustive("wide").placements)
    top = visits.loc[visits["samples_per_s"].idxmax()]
    assert top["samples_per_s"] == pytest.approx(best["samples_per_s"], rel=1e-12)
    assert top["best_so_far"] == visits["best_so_far"].iloc[-1]


def test_a_walk_over_several_models_is_on_their_mean() -> None:
    """The throughput of a visit is the weighted mean of the models' on the same architecture and HBM size."""
    weights = {"wide": 1.0, "deep": 3.0}
    subjects = {name: subject(name) for name in weights}
    settings = ScreenSettings(hysteresis=1000)
    visits = walk_models(subjects, weights, everything(), terms(), settings, name="both")
    times = {name: exact_times(subjects[name], everything(), terms()) for name in weights}
    mean = sum(weights[name] * 32 / time for name, time in times.items()) / 4.0
    trains = np.isfinite(times["wide"]) & np.isfinite(times["deep"])
    expected = mean.where(trains, 0.0).groupby(level="architecture").max()
    assert np.allclose(visits["samples_per_s"], expected[visits["architecture"]], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("backward", "step"), [("paired", 1), ("split", 96)])
def test_throughputs_from_the_screens_are_exact(backward: str, step: int) -> None:
    """If bounds meet, times are taken from the screens, otherwise evaluated, once each."""
    model = subject("wide", backward)
    screens = pd.concat(screened("wide", backward, step)[0], ignore_index=True)
    chips = pd.concat([shard(part).iloc[::step] for part in SHARDS], ignore_index=True)
    for training in (
        terms().training,
        terms().training.model_copy(update={"microbatches": (1,), "hbm_gib": (LARGE,), "recompute": (True,)}),
    ):
        search = restrict_search(model, terms(), screens, training)
        decided = search.exact.mean()
        assert (decided < 1) == (backward == "split")
        found = search(chips)
        exact = exact_times(search.subject, chips, search.terms).groupby(level="architecture").min()
        names = chips["architecture"]
        assert np.allclose(found["samples_per_s"], (32 / exact[names]).to_numpy(), rtol=1e-12)
        assert search.exact.all()
        pd.testing.assert_frame_equal(search(chips), found)
        least, most = (search.bounds.loc[names, c].to_numpy() for c in ("lower_s", "feasible_s"))
        time = exact[names].to_numpy()
        assert ((least <= time * (1 + 1e-12)) & (time <= most * (1 + 1e-12))).all()
    assert len(search.subject.points) == len(model.points) // (2 if backward == "paired" else 1)
