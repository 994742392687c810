"""A setting that is renamed in a valid file of any form is named, changes the answer, or the file is refused.

`PHAZE_DRAWS=2000 pytest -s tests/laws/test_renamed.py` draws more, and prints how many by form and outcome.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.plan.machines import device_of
from phaze.runtimes.run_file import RunFile
from phaze.runtimes.settings import settings_of
from phaze.spec.system import Stack
from tests.laws.draws import Drawn, draw
from tests.laws.forms import FORMS, Form, Names, given_run
from tests.laws.test_laws import LAWS, emitted_files

ALIKE = (
    "tp", "cp", "ep", "etp", "pp", "dp", "microbatch", "zero", "recompute", "sequence_parallel", "compute",
)  # fmt: skip
"""Layout fields that every form of a plan's file has."""


@LAWS
@given(seed=st.integers(0, 2**32))
def test_a_renamed_setting_is_not_passed_over(
    tally: Counter[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = Random(seed)
    name = random.choice(list(FORMS))
    form = FORMS[name]
    drawn = draw(random, (form.runtime,))
    emitted = emitted_files(drawn)
    text = next(iter(emitted.files.values()))
    settings = form.settings(text)
    known = {*settings, *settings_of(form.runtime).names}
    setting = random.choice(list(settings))
    renamed = misspelt(random, setting)
    if renamed in known or f"--{renamed.replace('_', '-')}" in known:
        return
    file = tmp_path_factory.getbasetemp() / f"renamed-{os.getpid()}"
    before = answer(drawn, form, text, {}, file)
    if isinstance(before, str):
        tally[name, "not in the form"] += 1
        return
    for field in ALIKE:
        same = getattr(before.recipe.layout, field) == getattr(drawn.recipe.layout, field)
        assert same, (name, field, drawn)
    after = answer(drawn, form, text, {setting: renamed}, file)
    outcome = _outcome(before, after, renamed, drawn.question.machine.stack)
    tally[name, outcome] += 1
    assert outcome, f"{name}: {setting} renamed to {renamed} changes nothing, unnamed\n{file.read_text()}"


def misspelt(random: Random, name: str) -> str:
    """Name with two neighbouring letters exchanged, or one left out or doubled."""
    place = random.choice([i for i in range(len(name) - 1) if name[i : i + 2].isalpha()])
    first, second = name[place : place + 2]
    change = random.choice((second + first, second, first + first + second))
    return name[:place] + change + name[place + 2 :]


def answer(drawn: Drawn, form: Form, text: str, names: Names, file: Path) -> RunFile | str:
    """Run that a form of a plan's file describes, or why it is refused."""
    file.write_text(form.write(text, names))
    blackwell = device_of(drawn.question.machine).is_blackwell
    run = form.runtime, file, drawn.recipe.model, drawn.recipe.layout.devices
    try:
        return given_run(*run, emitted_files(drawn), blackwell=blackwell)
    except PhazeError as error:
        return str(error)


def _outcome(before: RunFile, after: RunFile | str, renamed: str, stack: Stack) -> str:
    """What becomes of a renamed setting; empty if nothing does."""
    name = renamed.replace("_", "-")
    if isinstance(after, str):
        return "refused by name" if name in after.replace("_", "-") else "refused"
    if name in " ".join(after.unread).replace("_", "-"):
        return "named"
    changes = (after.recipe, after.software(stack)) != (before.recipe, before.software(stack))
    return "answer changes" if changes else ""
