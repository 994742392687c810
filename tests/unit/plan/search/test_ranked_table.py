"""The ranked table of plans as lines for a terminal."""

from __future__ import annotations

import re

from phaze.base.printed import COLUMNS, PIPED
from phaze.base.units import GIB
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.ranked_table import ranked_table
from phaze.plan.answer.words import table
from phaze.plan.machines import device_of, load_machine
from phaze.plan.question import PlanQuestion
from phaze.plan.search.search import LayoutPlanner
from phaze.plan.terms.memory import capacity_bytes
from phaze.runtimes.layout_string import blocks_of
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.memory import UsedGib
from phaze.spec.models import load_transformer


def _question() -> PlanQuestion:
    model = load_transformer("llama-3.1-8b", "test").model_copy(update={"layers": 4})
    return PlanQuestion(TrainingTask(model, 4096, 64, 8), load_machine("h100", devices=8), MEGATRON)


def test_long_sets_of_recomputed_modules_are_letters_that_one_line_spells_out() -> None:
    question = _question()
    sets = ("moe_act+layernorm+mla_up_proj", "moe_act", "moe_act+layernorm+mla_up_proj", "full")
    plan = LayoutPlanner(fixed={"tp": 4, "cp": 1, "pp": 1}, number=1, most_work=0)(question).plans[0]
    row = PricedLayout.of(question, plan).row(None, 1.0)
    layers = sum(blocks_of(row.layout.pipeline_layout))
    layouts = (row.layout.model_copy(update={"recompute": option}) for option in sets)
    changes = ({"layout": one, "recomputed_layers": layers * (one.recompute == "full")} for one in layouts)
    rows = [row.model_copy(update=change) for change in changes]
    head, *lines, spelt = ranked_table(rows, device_of(question.machine))
    assert head.endswith("recompute")
    assert max(map(len, lines)) <= COLUMNS
    assert len(lines) == len(sets)
    letters = dict(re.findall(r"(\[\w\]) ([^,.]+)", spelt))
    said = [re.search(r"\[\w\]|\S+$", line) for line in lines]
    names = [letters.get(one[0], one[0].split(":")[0]) for one in said if one is not None]
    assert tuple(names) == sets
    assert list(letters) == ["[a]"]


def test_a_row_whose_range_ends_above_the_memory_may_fit() -> None:
    question = _question()
    device = device_of(question.machine)
    plan = LayoutPlanner(fixed={"tp": 4, "cp": 1, "pp": 1}, number=1, most_work=0)(question).plans[0]
    row, usable_gib = PricedLayout.of(question, plan).row(), capacity_bytes(device) / GIB
    above_gib = usable_gib + 0.1
    for low, high, note in ((1.0, usable_gib, ""), (1.0, above_gib, " may fit"), (90, 95, " does not fit")):
        used = UsedGib(low=low, expected=low, high=high)
        line = [*ranked_table([row.model_copy(update={"in_use_gib": used})], device)][1]
        assert line.endswith(f"  none{note}")


def test_a_row_that_is_too_wide_continues_below_its_last_cell() -> None:
    layout = " ".join(f"field{i} {i}" for i in range(12))
    head, *lines = "\n".join(table([["devices", "step", "layout"], ["64", "18.17 s", layout]])).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= PIPED
    assert " ".join(" ".join(lines).split()) == f"64 18.17 s {layout}"
    start = head.index("layout")
    assert all(line[:start].isspace() and not line[start].isspace() for line in lines[1:])
