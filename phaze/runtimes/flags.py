"""Command lines of training programs, parsed into flags with their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from phaze.base.errors import PhazeError
from phaze.base.printed import one_line, short
from phaze.layout import BALANCED, NATURAL, Layout, Load, load_of
from phaze.runtimes.settings import OtherSettings, choice, integer
from phaze.runtimes.shell import CONDITIONAL, command_of, is_program
from phaze.spec.model import Model

Flags = dict[str, tuple[str, ...]]
EXPANDED = (
    "phaze expands plain assignments and arrays of the file, no conditionals, command substitution, "
    "arithmetic, sourced files or variables from outside: pass the command line that `bash -x SCRIPT` "
    "prints, or the log of Megatron-LM, which lists its arguments"
)
"""Advice on scripts that only a shell can follow."""
LOAD = re.compile(r"^# Expert load: (\S+)$", re.MULTILINE)
"""Comment with the expert load that a plan was priced with, for which `emit` writes no setting."""


@dataclass(frozen=True)
class Emitted:
    """Configuration files for a runtime, by name, and the recipe settings that they cannot express."""

    runtime: str
    """Name and version of the runtime for which the files are written."""
    files: Mapping[str, str]
    differences: tuple[str, ...] = ()
    """Differences between runtime and recipe, such as `recomputed: 2 2 instead of 2 1`."""
    user_settings: tuple[str, ...] = ()
    """Settings that the files cannot express and that the user must make, such as `pp 4`."""

    @property
    def notes(self) -> list[str]:
        """Sentences on differences from the recipe, and on settings that the user must make."""
        notes = [f"{self.runtime} will differ: {difference}" for difference in self.differences]
        if self.user_settings:
            notes.append(f"set these yourself: {', '.join(self.user_settings)}")
        return notes


def usual_load(model: Model, routed: Load = NATURAL) -> Load:
    """Expert load of a run that no setting forces: `routed` by the runtime; balanced without experts."""
    return routed if model.experts else BALANCED


def load_comment(layout: Layout, model: Model, *routed: Load) -> list[str]:
    """Comment with a layout's expert load, omitted if it is the default under every load in `routed`.

    These are the loads of the runtime and of the software stack: a run may be read with either. The runtimes'
    settings that force balanced routing are never written: they train on random choices.
    """
    usual = {usual_load(model, load) for load in routed}
    return [f"# Expert load: {layout.load}"] * (usual != {layout.load})


def read_load(text: str, model: Model, forced: Load | None, routed: Load = NATURAL) -> Load:
    """Expert load of a run: `forced` by a setting, else from the file's comment, else the default.

    Raises PhazeError if the comment is invalid.
    """
    loads = LOAD.findall(text)
    return forced or (load_of(loads[-1]) if loads else usual_load(model, routed))


def comments(
    *sentences: str, differences: Sequence[str] = (), user_settings: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the comment lines at the top of a written file, in shell or Python.

    They are the sentences, the differences from the plan, and the settings that the user must make. A text
    never ends its line: the rest of it would be code.
    """
    for sentence in (
        *sentences,
        # the load of experts is no setting of a runtime
        *(f"Unlike the plan, {text}" for text in differences if not text.startswith("load: ")),
        *(f"Set this yourself: {name}" for name in user_settings),
    ):
        yield f"# {one_line(sentence)}"


def parse_flags(text: str) -> Flags:
    """Parse a command line or a script with one into flags with their values.

    Arguments before the first flag are left out. If a flag is repeated, its last value wins. The first value
    of a flag that is set conditionally is `CONDITIONAL`. Raises PhazeError for unclosed quotes.
    """
    flags: Flags = {}
    name = ""
    for word in command_of(text):
        flag = word.removeprefix(CONDITIONAL)
        if flag.startswith("--"):
            name, equals, value = flag.partition("=")
            name = "--" + name[2:].replace("_", "-")
            flags[name] = (CONDITIONAL,) * (flag != word) + (value,) * bool(equals)
        elif is_program(word):
            name = ""  # the script that torchrun runs
        elif name:
            flags[name] = (*flags[name], word)
    return flags


def refuse_unexpanded(flags: Flags, other: OtherSettings, files: Collection[str] = ()) -> None:
    """Raise PhazeError for values that only a shell can tell; flags without a price and `files` may have one.

    A further such word could stand for any flags, so that it is refused after those flags as well.
    """
    for name, words in flags.items():
        is_conditional = words[:1] == (CONDITIONAL,)
        if is_conditional and other.subject(name) is None:
            raise PhazeError(f"{name}: is set in a conditional, loop or function", EXPANDED)
        values = words[is_conditional + (name in files or name in other.valued) :]
        unexpanded = next((word for word in values if re.search(r"[$`]", word)), None)
        if unexpanded is not None and other.valued.get(name) != ("*",):
            raise PhazeError(f"{name}: {short(unexpanded)} is not set by a plain assignment", EXPANDED)


def print_flags(flags: Sequence[tuple[str, ...]]) -> str:
    """Format flags and their values for the shell, one flag per line."""
    return " \\\n".join(shlex.join(flag) for flag in flags) + "\n"


def whole_number(flags: Flags, name: str, default: int | None = None) -> int:
    """Integer value >= 1 of a flag; PhazeError naming the flag if it is invalid or missing."""
    if name not in flags and default is not None:
        return default
    return integer({name: one_value(flags, name)}, name)


def one_value(flags: Flags, name: str) -> str:
    """Single value of a flag; PhazeError if the flag is missing or has more or fewer values."""
    if name not in flags:
        raise PhazeError(f"{name}: must be given")
    if len(flags[name]) != 1:
        raise PhazeError(f"{name}: must have one value, got {len(flags[name])}")
    return flags[name][0]


def word_of(flags: Flags, name: str, words: Mapping[str, str], default: str | None = None) -> str:
    """Translate a flag's value to our name; PhazeError for other values, or if missing without a default."""
    if name not in flags and default is not None:
        return default
    return choice({name: one_value(flags, name)}, name, {theirs: ours for ours, theirs in words.items()})


def share(flags: Flags, name: str, default: str) -> float:
    """Read the value of a flag as a number >= 0 and < 1; PhazeError for any other value."""
    text = one_value(flags, name) if name in flags else default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise PhazeError(f"{name}: must be a number >= 0 and < 1, got {short(text)}")
    return value
