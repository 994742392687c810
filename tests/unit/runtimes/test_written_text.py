"""Texts of a plan or a model are never code in a written file."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import get_args

import pytest
from pydantic import ValidationError

from phaze.base.errors import PhazeError
from phaze.commands.emit import emitted
from phaze.commands.options import EmitOption
from phaze.runtimes.flags import comments, parse_flags
from phaze.runtimes.recipe import Recipe
from phaze.spec.models import load_transformer, parse_model
from phaze.spec.training_plan import TrainingPlan
from tests.fuzz import CODE
from tests.plans import plan_of, planner_of

RUNTIMES = [name for name in get_args(EmitOption) if name != "torch"]  # torch is written from stages
FIXED = {"tp": 2, "cp": 1, "pp": 2, "vp": 1, "zero": 0, "recompute": "none", "microbatch": 1}
UNTIMED = {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}, "norm_eps": 1e-5}


@pytest.fixture(scope="module")
def plan() -> TrainingPlan:
    """Plan of a small model whose spec has fields without effect on time."""
    model = load_transformer("llama2-7b", "test").model_copy(update={"layers": 4, "untimed": UNTIMED})
    return plan_of(planner_of(model=model, devices=8, global_batch=8, fixed=FIXED), 2)


def _with_code(document: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yield the path of every key and every text of a document."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield (*path, key, "key")
            yield from _with_code(value, (*path, key))
    elif isinstance(document, list):
        for place, value in enumerate(document):
            yield from _with_code(value, (*path, place))
    elif isinstance(document, str):
        yield (*path, "text")


def _changed(document: object, path: tuple[object, ...], text: str) -> object:
    """Copy of a document with another text, or another key, at a path."""
    changed = deepcopy(document)
    *above, last, kind = path
    place = changed
    for key in above:
        place = place[key]  # type: ignore[index]
    if kind == "text":
        place[last] = text  # type: ignore[index]
    else:
        place[text] = place.pop(last)  # type: ignore[attr-defined, index]
    return changed


def _check_files(plan: TrainingPlan) -> int:
    """Number of runtimes whose settings are written; fails if one of the files has other code in it."""
    written = 0
    for runtime in RUNTIMES:
        try:
            files = emitted(Recipe.of(plan), runtime, plan.question).files
        except PhazeError:
            continue
        written += 1
        for name, text in files.items():
            if name.endswith(".py"):
                imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
                assert imported == []
            elif name.endswith(".txt"):
                flags = [line for line in text.splitlines() if not line.startswith("#")]
                assert all(line.startswith("--") for line in flags), text
                assert "os.system" not in " ".join(parse_flags(text))
            else:
                json.loads(text)
    return written


@pytest.mark.slow
@pytest.mark.parametrize("text", CODE, ids=["double quotes", "single quotes", "carriage return", "separator"])
def test_no_text_of_a_plan_becomes_code(text: str, plan: TrainingPlan) -> None:
    document = json.loads(plan.model_dump_json(exclude_none=True))
    accepted = 0
    assert _check_files(plan) == len(RUNTIMES)
    for path in _with_code(document):
        try:
            changed = TrainingPlan.model_validate(_changed(document, path, text))
        except ValidationError:
            continue
        accepted += _check_files(changed)
    assert accepted


@pytest.mark.parametrize("text", CODE, ids=["double quotes", "single quotes", "carriage return", "separator"])
def test_no_text_of_a_model_becomes_code(text: str, plan: TrainingPlan) -> None:
    fields = {**plan.question.model.model_dump(exclude_none=True), "untimed": {"a": {"b": ["c", {"d": "e"}]}}}
    refused = []
    for path in _with_code(fields):
        changed = _changed(fields, path, text)
        assert isinstance(changed, dict)
        try:
            model = parse_model(changed, "model.yaml")
        except PhazeError as error:
            refused.append(error.wrong)
            continue
        question = plan.question.model_copy(update={"model": model})
        _check_files(plan.model_copy(update={"question": question}))
    assert all(line.startswith("model.yaml: ") for line in "\n".join(refused).splitlines())
    assert any("must be one line without control characters" in message for message in refused)


def test_a_comment_stays_one_line() -> None:
    for text in CODE:
        (line,) = comments(text)
        assert line.startswith("# ")
        assert line.splitlines() == [line]
