"""What is legal, priced, emitted and read back are one description: laws over random plans.

`PHAZE_DRAWS=20000 pytest -s -o faulthandler_timeout=0 tests/laws` draws more, and prints how many by runtime
and family.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phaze.layout import Layout
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import device_of
from phaze.plan.question import PlanQuestion
from phaze.plan.terms.overlap import kept_apart, takes_many_queues
from phaze.runtimes.deepspeed_config import emit_deepspeed
from phaze.runtimes.flags import Emitted
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_flags import emit_megatron
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import CONNECTIONS_NAME, TrainingTask
from phaze.runtimes.torchtitan_config import emit_torchtitan
from phaze.spec.files import FOLDER
from phaze.spec.model import Model
from phaze.spec.models import load_model_named
from tests.laws.draws import Drawn, draw, machine
from tests.laws.forms import given_run

EXACT = 1e-9
READ = ("megatron", "torchtitan", "deepspeed")
"""Runtimes whose files are written and read."""
PRICED_ALIKE = {"scales of float8", "optimizer"}
"""Differences that emitted files name and that the price does not know."""
SOFTWARE = {"bytes of a gradient"}
"""Differences of the software, which the runtime alone sets."""
APART = "stack torchtitan is priced with compile.enable_async_tensor_parallel True, not False"
"""Remark on a file whose tensor-parallel ranks span NVLink domains, where the price has no such overlap."""
REMARKS = {
    "stack torchtitan is priced with float8 scaled by whole tensors, not by rows", "gradient_clipping",
}  # fmt: skip
"""Remarks on what is read that hold for the plan as well."""
LAWS = settings(suppress_health_check=list(HealthCheck), print_blob=False)


@LAWS
@given(seed=st.integers(0, 2**32))
def test_every_layout_that_a_runtime_can_run_is_priced(tally: Counter[tuple[str, ...]], seed: int) -> None:
    drawn = draw(Random(seed))
    drawn.recipe.check(drawn.runtime)
    found = drawn.priced
    assert isfinite(found.price.time_s), drawn
    assert found.price.time_s > 0, drawn
    assert all(0 < rank.peak_gib < float("inf") for rank in found.memory), drawn
    tally["legal plans are priced", drawn.runtime.name, drawn.family] += 1


@LAWS
@given(seed=st.integers(0, 2**32))
def test_what_is_emitted_and_read_back_has_the_price_of_the_plan(
    tally: Counter[tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    drawn = draw(Random(seed), READ)
    emitted = emitted_files(drawn)
    reason = _not_expressed(emitted)
    tally["price is read back", drawn.runtime.name, reason or drawn.family] += 1
    if reason:
        return
    asked, recipe, unread = _read(drawn, emitted, tmp_path_factory.getbasetemp())
    before, after = drawn.priced, PricedLayout.of_recipe(asked, recipe)
    apart = {APART} if kept_apart(recipe.layout, asked.machine) else set()
    assert not {*unread} - REMARKS - apart, drawn
    assert after.price.time_s == pytest.approx(before.price.time_s, rel=EXACT), f"{drawn}\n{emitted.files}"
    assert _gib(after) == pytest.approx(_gib(before), rel=EXACT), f"{drawn}\n{emitted.files}"


@LAWS
@given(seed=st.integers(0, 2**32))
def test_what_overlaps_can_overlap_with_the_variables_that_are_emitted(
    tally: Counter[tuple[str, ...]], seed: int
) -> None:
    """Exchanges of experts overlap in many hardware queues, collectives of tensor parallelism in one."""
    drawn = draw(Random(seed), ("megatron",))
    layout, stack = drawn.recipe.layout, drawn.question.machine.stack
    lowering = drawn.question.lowering(layout)
    text = emitted_files(drawn).files["megatron.txt"]
    experts = drawn.family if layout.ep > 1 else "no expert parallelism"
    tally["overlap is possible", drawn.runtime.name, experts] += 1
    pairs, ordered = lowering.pairs(layout), not device_of(drawn.question.machine).is_blackwell
    assert ("--overlap-moe-expert-parallel-comm" in text) == pairs, drawn
    if pairs and ordered and max(layout.tp, layout.cp) > 1:
        assert f"{CONNECTIONS_NAME}=1\n" not in text, drawn
        assert f"{CONNECTIONS_NAME}=32\n" in text, drawn
        if stack.ordered_queue:
            queues = replace(drawn.question.machine, stack=lowering.layers(layout).stack)
            assert kept_apart(layout, queues), drawn
            ring = layout.cp > 1 and layout.cp_kind not in ("all_gather", "a2a")
            assert not ring or takes_many_queues(layout, queues) or not queues.stack.overlap_share("cp"), (
                drawn
            )


@pytest.mark.parametrize("name", sorted(path.stem for path in (FOLDER / "models").glob("*.yaml")))
def test_a_field_that_is_called_untimed_changes_no_price(name: str) -> None:
    """All fields of every model: without each of them the price is the same."""
    model = load_model_named(name)
    if not isinstance(model, Model) or not model.untimed:
        pytest.skip("has no such fields")
    layout = Layout(dp=8, zero=1)
    own = machine("h100", "megatron", 8)
    prices = set()
    for untimed in _fewer(model.untimed):
        task = TrainingTask(model.model_copy(update={"untimed": untimed}), 512, 8, 8)
        staged = PlanQuestion(task, own, MEGATRON).staged(layout, "1f1b")
        stage = staged.stage("whole", range(staged.layers), 0)
        prices.add(
            (stage.forward_s, stage.backward_s, stage.fixed_bytes, stage.stash_bytes, stage.work_bytes)
        )
    assert len(prices) == 1


def _fewer(untimed: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield all fields, no fields, and all fields but one."""
    yield from (dict(untimed), {})
    for left_out in untimed:
        yield {key: value for key, value in untimed.items() if key != left_out}


def emitted_files(drawn: Drawn) -> Emitted:
    """Files of a plan for its runtime, with the software that its price assumes."""
    recipe, asked = drawn.recipe, drawn.question
    stack = asked.lowering(recipe.layout).layers(recipe.layout).stack
    if drawn.runtime.name == "megatron":
        return emit_megatron(recipe, stack, blackwell=device_of(asked.machine).is_blackwell)
    return (emit_torchtitan if drawn.runtime.name == "torchtitan" else emit_deepspeed)(recipe, stack)


def _not_expressed(emitted: Emitted) -> str:
    """Fields of model or software that the runtime lacks, so that the law does not hold; never a layout's."""
    fields = sorted({difference.partition(":")[0] for difference in emitted.differences} - PRICED_ALIKE)
    assert all(field.startswith("model.") or field in SOFTWARE for field in fields), fields
    return f"no setting for {', '.join(fields)}" if fields else ""


def _gib(priced: PricedLayout) -> list[float]:
    """Memory of all ranks: each part, and all in use, as a range."""
    memory = [rank.model_dump() for rank in priced.memory]
    return [
        float(number)
        for rank in memory
        for part in ({key: one for key, one in rank.items() if not isinstance(one, dict)}, *_parts(rank))
        for number in part.values()
    ]


def _parts(rank: Mapping[str, object]) -> Iterator[dict[str, float]]:
    yield from (part for part in rank.values() if isinstance(part, dict))


def _read(drawn: Drawn, emitted: Emitted, folder: Path) -> tuple[PlanQuestion, Recipe, tuple[str, ...]]:
    """Planning request and recipe read from a plan's files, and what is not priced in them."""
    asked, devices = drawn.question, drawn.recipe.layout.devices
    file = folder / f"read-{os.getpid()}"
    file.write_text(next(iter(emitted.files.values())))
    blackwell = device_of(asked.machine).is_blackwell
    given = given_run(drawn.runtime.name, file, drawn.recipe.model, devices, emitted, blackwell=blackwell)
    software = given.software(asked.machine.stack)
    own = replace(asked.machine, stack=software.stack)
    again = replace(asked, machine=own, task=given.recipe.task, flash=software.flash)
    return again, given.recipe, (*given.unread, *software.unmodelled)
