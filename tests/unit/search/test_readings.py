"""A reading keeps the best plan of every architecture, HBM size and planner."""

from __future__ import annotations

from phaze.cost.space import describe_named
from phaze.layout import Layout, layouts_of
from phaze.search.cosearch import PLAN, Terms, evaluate_architectures, extract_subject, read_plans
from phaze.spec.architecture import Architecture
from phaze.spec.config import load_technology
from phaze.spec.model import Model
from phaze.spec.settings import ExtractSettings, Training
from phaze.spec.system import Scenario

MODEL = Model(
    name="tiny", layers=4, hidden=256, heads=4, feed_forward=1024, vocabulary=2048, position_count=128
)
TECHNOLOGY = load_technology("22nm")
TERMS = Terms(Scenario(devices=8, global_batch=32), Training(hbm_gib=(0.02, 0.25)), TECHNOLOGY)


def test_the_best_plan_of_all_widths_and_microbatches_is_kept() -> None:
    chips = [
        Architecture(name=name, num_tc=n, num_vc=n, pe_x=32, pe_y=32, glb_mib=2)
        for name, n in (("small", 1), ("large", 4))
    ]
    named = describe_named(chips, TECHNOLOGY.area_um2, "named")
    subject = extract_subject(
        MODEL, 128, layouts_of((1, 2), (1, 2)), ExtractSettings(), Layout(pp=2, dp=2, tp=1)
    )
    found = read_plans("x", subject, named, TERMS).set_index(PLAN)
    every = evaluate_architectures(subject, named, TERMS).placements
    assert len(found) == 2 * 2 * 3
    assert set(found["reading"]) == {"x"}
    assert (found["time_per_batch_s"] == every.groupby(PLAN)["time_per_batch_s"].min()).all()
    searched = found.xs("phaze", level="planner")
    assert (searched["status"] == "placed").all()
    assert (searched.xs(0.25, level="hbm_gib")["time_per_batch_s"]
            <= searched.xs(0.02, level="hbm_gib")["time_per_batch_s"]).all()  # fmt: skip
