"""A reading keeps the best plan of every architecture, HBM size and planner; only new ones are evaluated."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from phaze.base.store import Store
from phaze.cost.space import describe_named
from phaze.layout import Layout, layouts_of
from phaze.search.cosearch import Problem, Terms, evaluate_architectures, extract_subject
from phaze.search.readings import change_problem, read_model, read_plans
from phaze.search.winners import PRICED
from phaze.spec.architecture import Architecture, load_technology
from phaze.spec.model import Model
from phaze.spec.settings import EstimateSettings, ExtractSettings, ScheduleSettings, Training
from phaze.spec.system import Scenario

MODEL = Model(
    name="tiny", layers=4, hidden=256, heads=4, feed_forward=1024, vocabulary=2048, position_count=128
)
TECHNOLOGY = load_technology("22nm")
TERMS = Terms(
    scenario=Scenario(devices=8, global_batch=32),
    training=Training(hbm_gib=(0.02, 0.25)),
    technology=TECHNOLOGY,
)


def chips() -> pd.DataFrame:
    """Return table architectures of a small and a large one."""
    named = [
        Architecture(name=name, num_tc=n, num_vc=n, pe_x=32, pe_y=32, glb_mib=2)
        for name, n in (("small", 1), ("large", 4))
    ]
    return describe_named(named, TECHNOLOGY.area_um2, "named")


def test_the_best_plan_of_all_widths_and_microbatches_is_kept() -> None:
    named = chips()
    subject = extract_subject(
        MODEL, 128, layouts_of((1, 2), (1, 2)), ExtractSettings(), Layout(pp=2, dp=2, tp=1)
    )
    found = read_plans("x", subject, named, TERMS).set_index(PRICED)
    every = evaluate_architectures(subject, named, TERMS).placements
    assert len(found) == 2 * 2 * 3
    assert set(found["reading"]) == {"x"}
    assert (found["time_per_batch_s"] == every.groupby(PRICED)["time_per_batch_s"].min()).all()
    searched = found.xs("phaze", level="planner")
    assert (searched["status"] == "placed").all()
    assert (searched.xs(0.25, level="hbm_gib")["time_per_batch_s"]
            <= searched.xs(0.02, level="hbm_gib")["time_per_batch_s"]).all()  # fmt: skip


def test_only_what_no_other_reading_has_evaluated_is_evaluated(tmp_path: Path) -> None:
    """Equal readings are evaluated once, another microbatch in its own layouts, another reading by itself."""
    own = Problem(
        sequence=128, flops_per_token=MODEL.flops_per_token(128), expert=None, technology=TECHNOLOGY,
        scenario=TERMS.scenario, training=TERMS.training.model_copy(update={"microbatches": (1,)}),
        extract=ExtractSettings(), estimate=EstimateSettings(), schedule=ScheduleSettings(),
    )  # fmt: skip
    readings = {"study": {}, "same": {}, "fast": {"scenario": {"network_bandwidth_bytes_per_s": 1e13}}}

    def read(readings: dict, *microbatches: int) -> tuple[pd.DataFrame, set[Path]]:
        folders = {"solutions": tmp_path / "solutions", "evaluations": Store(tmp_path / "evaluations")}
        cached = own.model_copy(update=folders)
        problem = change_problem(cached, {"training": {"microbatches": list(microbatches)}})
        problems = {name: (MODEL, change_problem(problem, changes)) for name, changes in readings.items()}
        return read_model((1, 2), problems, chips()), set(tmp_path.rglob("*.json"))

    first, evaluated = read(readings, 1)
    widths = 2
    assert len(evaluated) == widths * len({"study", "fast"})
    plans = {
        reading: rows.drop(columns="reading") for reading, rows in first.set_index(PRICED).groupby("reading")
    }
    assert plans["same"].equals(plans["study"])
    assert (plans["fast"]["time_per_batch_s"] < plans["study"]["time_per_batch_s"]).any()
    _, more = read(readings, 1, 2)
    assert more > evaluated
    assert len(more) == 2 * len(evaluated)
    _, most = read({**readings, "adam": {"training": {"optimizer": "adam"}}}, 1, 2)
    assert most > more
    assert len(most) == len(more) + widths * 2
