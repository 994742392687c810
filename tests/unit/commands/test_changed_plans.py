"""Plan files that differ from what `plan` wrote are refused; those of another version are priced again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from phaze.base.errors import PhazeError
from phaze.commands.emit import emitted
from phaze.plan.answer.replay import ReplayedPlan
from phaze.runtimes.recipe import Recipe
from phaze.spec.documents import read_as
from phaze.spec.training_plan import TrainingPlan
from tests.commands import invoke

Plan = dict[str, dict[str, object]]
FREE = {
    "certificate", "alternatives", "recipes", "planners", "next_longer_s", "prudence", "rests_on", "what_if",
    "evidence", "assumptions", "versions",
}  # fmt: skip
"""Fields that only the search computes, in parts or in full; nothing of them is printed."""
VERBS: dict[str, list[str]] = {"emit": ["--for", "megatron"], "simulate": [], "certify": ["--draws", "1"]}


def _put(plan: Any, path: str, change: Callable[[Any], object]) -> None:
    """Change the value at a path of keys and places."""
    *above, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in above:
        plan = plan[key]
    plan[last] = change(plan[last])


def _asked(verb: str, plan_file: Path, folder: Path, change: Callable[[Plan], None]) -> Result:
    """Run a command on a changed plan of a version without checksums."""
    plan = json.loads(plan_file.read_text())
    del plan["sha256"]
    change(plan)
    file = folder / "changed.json"
    file.write_text(json.dumps(plan))
    return invoke(verb, file, *VERBS[verb])


def _more(number: Any) -> object:
    return number + 1


def _with_gpipe(plans: Any) -> object:
    return [*plans, plans[0] | {"layout": plans[0]["layout"] | {"schedule": "gpipe"}}]


def _half(number: Any) -> object:
    return number / 2


STAGES = "layout.pipeline_layout: must be that of the stages"
TAMPERED: list[tuple[str, Callable[[Any], object], str]] = [
    ("time_s alternatives.0.time_s", _half, "time_s: must be that of its layout"),
    ("memory_gib.0", _half, "memory_gib: must agree with the rest of the file"),
    ("memory_gib.0 memory.0.peak_gib alternatives.0.memory_gib.0", _half, "memory_gib.0: must be that of"),
    ("in_use_gib.high alternatives.0.in_use_gib.high", _more, "in_use_gib.high: must be that of its layout"),
    ("alternatives.0.prudent_s", _half, "prudent_s: must agree with the rest of the file"),
    ("certificate.bound_s", _half, "certificate.bound_s: must agree with the rest of the file"),
    ("question.rank", lambda _: "prudent", "certificate.bound_s: must agree with the rest of the file"),
    ("certificate.unfit", _more, "certificate.layouts: must agree with the rest of the file"),
    ("alternatives", _with_gpipe, "alternatives.1.layout: megatron: schedule must be"),
    ("layout.pipeline_layout", lambda _: "Et*20|t*12L", f"{STAGES}, Et*17|t*15L, got 'Et*20|t*12L'"),
    ("layout.tp", lambda _: 4, "question.devices: must agree with the rest of the file, 16, got 8"),
    ("stages.0.layers", _more, "blocks: must be"),
]
"""Paths with their change, and how the refusal begins."""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("row", TAMPERED, ids=lambda row: row[0])
def test_changed_plans_are_refused_by_file_and_field(
    row: tuple[str, Callable[[Any], object], str], verb: str, plan_file: Path, tmp_path: Path
) -> None:
    paths, change, message = row
    with pytest.raises(PhazeError, match=rf"changed\.json: {re.escape(message)}"):
        _asked(verb, plan_file, tmp_path, lambda plan: [_put(plan, path, change) for path in paths.split()])


@pytest.mark.parametrize("verb", VERBS)
def test_plans_of_another_version_are_priced_again(verb: str, plan_file: Path, tmp_path: Path) -> None:
    def older(plan: Plan) -> None:
        for path in ("time_s", "alternatives.0.time_s", "certificate.bound_s"):
            _put(plan, path, lambda time_s: 0.9 * time_s)
        plan["versions"]["prices"] = "of another version"

    time_s = json.loads(plan_file.read_text())["time_s"]
    figures = rf"the file says {0.9 * time_s:.5g} s and [\d.]+ GiB of tensors, now it takes {time_s:.5g} s"
    if verb == "certify":
        figures = rf"changed\.json: {figures}.*; its certificate holds for other prices"
        with pytest.raises(PhazeError, match=figures):
            _asked(verb, plan_file, tmp_path, older)
        return
    found = _asked(verb, plan_file, tmp_path, older)
    assert found.exit_code == 0
    assert re.search(figures, found.stdout if verb == "simulate" else found.stderr)


@pytest.mark.parametrize("verb", VERBS)
def test_plans_as_they_were_written_are_taken(verb: str, plan_file: Path, tmp_path: Path) -> None:
    found = _asked(verb, plan_file, tmp_path, lambda _: None)
    assert found.exit_code == 0
    assert "the file says" not in found.output


def _leaves(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value of a document that is no list or mapping, or an empty one."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    leaves = [leaf for key, item in items for leaf in _leaves(item, (*path, key))]
    yield from leaves or [path]


def _edited(plan: object, path: tuple[str | int, ...]) -> object:
    """Copy of a document with another value of the same type at a path."""
    changed = deepcopy(plan)
    *above, last = path
    place = changed
    for key in above:
        place = place[key]  # type: ignore[index]
    value = place[last]  # type: ignore[index]
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, (int, float)):
        value += type(value)(1)
    else:
        value = f"{value}x" if isinstance(value, str) else [*value, 1]
    place[last] = value  # type: ignore[index]
    return changed


def test_every_changed_value_is_refused_by_file_and_field(plan_file: Path, tmp_path: Path) -> None:
    plan, file = json.loads(plan_file.read_text()), tmp_path / "changed.json"
    paths = [*_leaves(plan)]
    assert len(paths) > 300
    for path in paths:
        file.write_text(json.dumps(_edited(plan, path)))
        name = path[1] if path[0] == "sha256" else path[0]
        with pytest.raises(PhazeError, match=rf"changed\.json: {name}: (was changed|must be)"):
            read_as(TrainingPlan, file)


@pytest.mark.slow
def test_plans_without_checksums_print_nothing_that_was_changed(plan_file: Path) -> None:
    """Whatever follows from the request, the layout and the stages is computed again and compared."""
    plan = json.loads(plan_file.read_text())
    del plan["sha256"]

    def printed(changed: object) -> list[str]:
        planned = TrainingPlan.parse(changed, "plan")
        replayed = ReplayedPlan.of(planned)
        files = emitted(Recipe.of(planned), "megatron", planned.question).files
        return [replayed.in_words(), json.dumps(replayed.as_row()), *files.values()]

    answer, accepted, refused = printed(plan), set[str | int](), []
    for path in _leaves({name: value for name, value in plan.items() if name != "question"}):
        try:
            changed = printed(_edited(plan, path))
        except PhazeError as error:
            refused.append(str(error))
        else:
            assert changed == answer, path
            accepted.add(path[0])
    assert all(message.startswith("plan: ") for message in refused)
    assert accepted <= FREE


def test_a_plan_may_be_formatted_otherwise(plan_file: Path, tmp_path: Path) -> None:
    plan = json.loads(plan_file.read_text())
    (tmp_path / "sorted.json").write_text(json.dumps(plan, sort_keys=True, indent=4))
    assert read_as(TrainingPlan, tmp_path / "sorted.json") == read_as(TrainingPlan, plan_file)
