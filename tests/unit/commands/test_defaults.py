"""One question has one answer from the command line, from Python and from a study."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from phaze.commands.plan_options import PlanOptions
from phaze.plan.answer.study import request
from phaze.plan.search import search
from phaze.spec.layout_study import LayoutPoint, LayoutStudy
from phaze.spec.models import load_transformer
from phaze.spec.names import GAP
from phaze.spec.training_plan import AskedPlan, AskedRun
from tests.commands import invoke

TABLE = "top"
"""Option that only sets the number of printed rows: a study's table has more."""


@pytest.mark.parametrize("noun", [AskedPlan, AskedRun, LayoutStudy])
def test_options_have_the_defaults_of_their_noun(noun: type[AskedPlan | AskedRun | LayoutStudy]) -> None:
    options = {one.name: one.default for one in fields(PlanOptions)}
    shared = {name: field for name, field in noun.model_fields.items() if name in options and name != TABLE}
    assert shared
    for name, field in shared.items():
        if options[name] is not None and field.default is not PydanticUndefined:
            assert options[name] == field.default, name
    assert search.GAP is GAP


@pytest.mark.parametrize(("system", "given"), [("h100", {}), ("tpu-v5p", {"runtime": "maxtext"})])
def test_a_question_is_the_same_from_a_command_from_python_and_from_a_study(
    system: str, given: dict[str, object], tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    command = f"plan gpt2 --gpus 1x{system} --global-batch 1 --sequence 64 -o {out}"
    assert invoke(command).exit_code == 0
    question = AskedPlan.model_validate(json.loads(out.read_text())["question"])
    model = load_transformer("gpt2", "test")
    study = LayoutStudy(global_batch=1, sequence=64)
    point = LayoutPoint(model="gpt2", system=system, devices=1)
    by_study = request(study, point, model.model_dump())
    sizes = {"devices": 1, "global_batch": 1, "sequence": 64}
    given |= {"model": model, "system": system, "stack": by_study.stack}
    by_python = AskedPlan.parse(given | sizes, "test")
    assert question == by_study.stored() == by_python.stored()
