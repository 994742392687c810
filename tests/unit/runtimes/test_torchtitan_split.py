"""Stages of a planner's plan are modules of torchtitan's stages; what no runtime can run is one message."""

from __future__ import annotations

from typing import cast

import pytest

from phaze.base.errors import PhazeError
from phaze.runtimes.flags import Emitted
from phaze.runtimes.torchtitan_config import read_torchtitan
from phaze.runtimes.torchtitan_files import settings_in
from phaze.runtimes.torchtitan_split import emit_split
from phaze.spec.model import Model
from phaze.spec.models import load_model_named
from phaze.spec.planner_rows import PlannerRow, PlannerStage
from phaze.spec.training_plan import AskedPlan


def row(*stages: tuple[int, int, int, str], schedule: str = "2bw") -> PlannerRow:
    """Return a plan with stages of so many layers, tp, dp and configurations."""
    planned, first = [], 0
    for layers, tp, dp, text in stages:
        planned.append(
            PlannerStage(
                first_layer=first,
                layers=layers,
                tp=tp,
                dp=dp,
                recompute="recompute" in text,
                configurations=text,
            )
        )
        first += layers
    return PlannerRow(planner="piper", schedule=schedule, microbatch=2, stages=tuple(planned))


def emitted(planned: PlannerRow, batch: int = 16, model: str = "gpt2") -> Emitted:
    """Return the changes for a plan of a model with sequences of 512 tokens."""
    spec = cast(Model, load_model_named(model))
    question = AskedPlan(model=spec, system="x", stack="x", devices=16, global_batch=batch, sequence=512)
    return emit_split(planned, question)


def settings(written: Emitted) -> dict[str, object]:
    """Return the settings that the written function makes, without the name of their section."""
    return {name.partition(".")[2] or name: v for name, v in settings_in(written.files["plan.py"]).items()}


def test_stages_of_different_widths_keep_their_modules_and_lose_their_widths() -> None:
    changes = emitted(
        row((1, 1, 2, "1 × whole"), (3, 2, 4, "2 × tensor; 1 × sequence"), (2, 1, 2, "2 × whole"))
    )
    assert settings(changes) == {
        "seq_len": 512,
        "global_batch_size": 16,
        "pipeline_parallel_degree": 3,
        "pipeline_parallel_microbatch_size": 2,
        "pipeline_parallel_schedule": "1F1B",
        "module_fqns_per_model_part": [
            ["tok_embeddings"],
            ["layers.0", "layers.1", "layers.2"],
            ["layers.3", "norm", "lm_head"],
        ],
        "activation_checkpoint": None,
    }
    widths, schedule, layers = changes.differences
    assert widths.startswith("no runtime has widths by stage (tp 1 dp 2, tp 2 dp 4, tp 1 dp 2)")
    assert widths.endswith("training.local_batch_size to the 16 samples over dp")
    assert schedule.startswith("no runtime has schedule 2bw")
    assert layers.startswith("no runtime has splits by layer (1 × whole | 2 × tensor; 1 × sequence")


@pytest.mark.parametrize(
    ("kind", "sequence_parallel", "ep"), [("tensor", False, 1), ("sequence", True, 1), ("expert", True, 2)]
)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_all_layers_have_in_common_is_read_back(
    kind: str, sequence_parallel: bool, ep: int, recompute: str
) -> None:
    """Batch, widths, kind of split and recomputation, under a schedule of the runtime; nothing is lost."""
    text = f"5 × {kind}, recompute {recompute}" if recompute != "none" else f"5 × {kind}"
    model = cast(Model, load_model_named("mixtral-8x7b"))
    half = model.layers // 2 + 1
    planned = row((half, 2, 4, text), (half, 2, 4, text), schedule="1f1b")
    changes = emitted(planned, model="mixtral-8x7b")
    assert changes.differences == ()
    recipe, _ = read_torchtitan(changes.files["plan.py"], model, 16)
    layout = recipe.layout
    assert (recipe.global_batch, recipe.sequence, layout.microbatch) == (16, 512, 2)
    assert settings(changes)["local_batch_size"] == 4
    assert (layout.tp, layout.dp, layout.pp, layout.zero) == (2, 4, 2, 0)
    assert (layout.sequence_parallel, layout.ep, layout.recompute) == (sequence_parallel, ep, recompute)


def test_recomputation_of_some_layers_is_a_difference_and_no_setting() -> None:
    """Phaze's planner recomputes all stages but the last, whose backward pass follows at once."""
    some = row((2, 2, 4, "1 × tensor; 1 × tensor, recompute full"), (2, 2, 4, "2 × tensor"), schedule="1f1b")
    stages = [
        stage.model_copy(update={"configurations": None, "recompute": not q})
        for q, stage in enumerate(some.stages)
    ]
    phaze = some.model_copy(update={"planner": "phaze", "stages": tuple(stages)})
    for planned, listed in (
        (some, "1 × tensor; 1 × tensor, recompute full | 2 × tensor"),
        (phaze, "2 × tensor, recompute full | 2 × tensor"),
    ):
        changes = emitted(planned)
        assert changes.differences == (
            f"torchtitan has no recomputation by layer ({listed}): set one for all layers",
        )
        assert "activation_checkpoint" not in settings(changes)
        assert settings(changes)["enable_sequence_parallel"] is False
    both = phaze.model_copy(update={"stages": (phaze.stages[0], phaze.stages[0])})
    assert settings(emitted(both))["activation_checkpoint"] == "FullAC.Config()"
    assert emitted(both).differences == ()


def test_recomputation_that_torchtitan_lacks_is_a_difference() -> None:
    text = "2 × tensor, recompute core_attn+moe"
    changes = emitted(row((2, 2, 4, text), (2, 2, 4, text), schedule="1f1b"))
    (difference,) = changes.differences
    assert difference.startswith("torchtitan has no recomputation core_attn+moe: set activation_checkpoint")
    assert "activation_checkpoint" not in settings(changes)


def test_a_batch_that_replicas_cannot_share_in_whole_microbatches_is_a_difference() -> None:
    """Piper's 3 microbatches of 2 samples are shared by 4 replicas."""
    changes = emitted(row((2, 2, 4, "2 × tensor"), (2, 2, 4, "2 × tensor"), schedule="1f1b"), batch=6)
    (difference,) = changes.differences
    assert "set training.global_batch_size to a multiple of 8 instead of 6" in difference
    assert "local_batch_size" not in settings(changes)


def test_a_planner_without_stages_to_split_is_refused() -> None:
    with pytest.raises(PhazeError, match="planner piper has no plan: nothing fits; leave out --planner"):
        emitted(PlannerRow(planner="piper", reason="nothing fits"))
    with pytest.raises(PhazeError, match="planner piper has one stage, and no split to write"):
        emitted(row((4, 1, 8, "4 × whole")))
