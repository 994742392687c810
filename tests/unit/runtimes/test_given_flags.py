"""Flag sets from Megatron-LM's own tests are read, and a sample of them is priced."""

import csv
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_flags import megatron_software, read_megatron
from phaze.runtimes.megatron_software import GROUP
from phaze.runtimes.recipe import Recipe

GIVEN = Path(__file__).parents[4] / "shared" / "data" / "measured" / "megatron_golden_values.csv"
KNOWN = ("gpt", "moe", "bert", "hybrid", "mixtral", "nemotron")
"""Families of the sets with known models; the others are encoder-decoders and image models."""
LEAST = 0.95
"""Minimum share of the sets of known families that are read."""
REFUSED = (
    (r"--perform-rl-step: is not modelled", 5),
    (r"--vocab-size: must be given, or --vocab N of `phaze read`", 1),
)
"""Reasons for the refused sets, with counts."""
PRICED = 10

pytestmark = pytest.mark.skipif(not GIVEN.is_file(), reason=f"{GIVEN} is absent")


def flag_sets() -> list[tuple[str, str]]:
    """Families with flags as in a shell: a list is several words."""
    with GIVEN.open() as file:
        rows = list(csv.DictReader(file))
    return [(row["family"], " ".join(map(_flag, json.loads(row["all_flags_json"]).items()))) for row in rows]


def _flag(flag: tuple[str, object]) -> str:
    name, value = flag
    text = re.sub(r"\$?\{(\w+)\}", r"\1", str(value))
    if value is True:
        return name
    several = text.startswith("[") or re.fullmatch("[0-9 ]+", text)
    return f"{name} {text.strip('[]')}" if several else f"{name} '{text}'"


@pytest.fixture(scope="module")
def readings() -> list[tuple[str, str, Recipe | str]]:
    """Every set with its family, and its recipe or the reason for a refusal."""
    answers: list[tuple[str, str, Recipe | str]] = []
    for family, text in flag_sets():
        try:
            answers.append((family, text, read_megatron(text)[0]))
        except PhazeError as error:
            answers.append((family, text, str(error)))
    return answers


def test_nearly_all_sets_of_known_families_are_read(readings: list[tuple[str, str, Recipe | str]]) -> None:
    answers = [answer for family, _, answer in readings if family in KNOWN]
    reasons = Counter(answer for answer in answers if isinstance(answer, str))
    assert len(answers) - reasons.total() >= LEAST * len(answers), reasons
    for reason, number in REFUSED:
        assert sum(n for text, n in reasons.items() if re.search(reason, text)) == number
    assert reasons.total() == sum(number for _, number in REFUSED)


def test_groups_of_microbatches_are_those_that_are_given(
    readings: list[tuple[str, str, Recipe | str]],
) -> None:
    flag = re.compile(rf"{GROUP} '?(\d+)")
    matches = [(flag.search(text), answer) for _, text, answer in readings]
    pairs = [
        (int(size[1]), recipe.microbatch_group)
        for size, recipe in matches
        if size and isinstance(recipe, Recipe)
    ]
    assert len(pairs) == 4
    assert all(flag_size == group for flag_size, group in pairs)


def test_other_families_are_refused_by_the_flag_that_says_so(
    readings: list[tuple[str, str, Recipe | str]],
) -> None:
    others = {str(answer) for family, _, answer in readings if family not in KNOWN}
    reasons = "--(decoder-num-layers|img-h): |Megatron-LM: neither layout nor batch is set"
    assert all(re.match(reasons, reason) for reason in others), others


def test_a_sample_is_priced(readings: list[tuple[str, str, Recipe | str]]) -> None:
    read = [(text, answer) for _, text, answer in readings if isinstance(answer, Recipe)]
    flash = set()
    for text, recipe in read[:: len(read) // PRICED]:
        machine = load_machine("h100", stack="megatron-core", devices=recipe.layout.devices)
        software = megatron_software(text, recipe, machine.stack)
        machine = replace(machine, stack=software.stack)
        question = PlanQuestion(recipe.task, machine, MEGATRON, flash=software.flash)
        priced = PricedLayout.of_recipe(question, recipe)
        assert priced.price.time_s > 0
        assert all(rank.peak_gib > 0 for rank in priced.memory)
        flash.add(software.flash)
    assert flash == {True, False}
