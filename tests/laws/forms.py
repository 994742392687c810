"""Files of runtimes in all forms that are read, from a plan's own file, with any names of their settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from phaze.runtimes.deepspeed_config import OPTIONS
from phaze.runtimes.flags import Emitted, parse_flags, print_flags
from phaze.runtimes.recipe import flattened
from phaze.runtimes.run_file import RunFile
from phaze.runtimes.settings import settings_of
from phaze.runtimes.torchtitan_config import MODULES
from phaze.runtimes.torchtitan_files import JOB_CONVERTERS, settings_in
from phaze.spec.model import Model

Names = Mapping[str, str]
"""Names to write instead of those of a plan's file."""
Values = Mapping[str, object]


@dataclass(frozen=True)
class Form:
    """Form of a runtime's files: the settings that a plan has in it, and a file with other names."""

    runtime: str
    settings: Callable[[str], Values]
    """Function that returns the settings of a plan's file."""
    write: Callable[[str, Names], str]
    """Function that returns a file with some settings renamed."""


def _flags(text: str) -> Values:
    return parse_flags(text)


def _named(text: str, names: Names) -> dict[str, tuple[str, ...]]:
    return {names.get(flag, flag): words for flag, words in parse_flags(text).items()}


def _plain(text: str, names: Names) -> str:
    return print_flags([(flag, *words) for flag, words in _named(text, names).items()])


def _script(text: str, names: Names) -> str:
    """Script with arrays for the flags and variables for their first values."""
    lines = ["#!/bin/bash", "export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}", "ARGS=("]
    for number, (flag, words) in enumerate(_named(text, names).items()):
        said = [*map(shlex.quote, words)]
        if words and not number % 3:
            lines.insert(1, f"export V{number}={said[0]}")
            said[0] = f"${{V{number}:-none}}" if number % 2 else f'"$V{number}"'
        lines.append(f"  {flag} {' '.join(said)}  # flag {number}")
    lines += [")", "mkdir -p logs --mode 755", "torchrun pretrain_gpt.py ${ARGS[@]} 2>&1 | tee log.txt", ""]
    return "\n".join(lines)


def _yaml(text: str, names: Names) -> str:
    values = {flag: " ".join(words) if words else True for flag, words in _named(text, names).items()}
    lines = (f"  {flag}: {json.dumps(_bracketed(flag, value))}" for flag, value in values.items())
    return "\n".join(["MODEL_ARGS:", *lines, ""])


def _bracketed(flag: str, value: object) -> object:
    """Value with brackets if it is several words."""
    several = isinstance(value, str) and " " in value and flag != "--moe-layer-freq"
    return f"[{value}]" if several else value


def _arguments(text: str) -> Values:
    """Arguments that a log lists for the flags of a plan's file."""
    given = {flag: name for name, flag in settings_of("megatron").arguments.items()}
    listed: dict[str, object] = {}
    for flag, words in parse_flags(text).items():
        name = flag.removeprefix("--").replace("-", "_")
        opposite = given.get(f"not {flag}")
        if opposite is not None or (flag.startswith("--no-") and not words):
            listed[opposite or name.removeprefix("no_")] = False
        elif not words:
            listed[given.get(flag, name)] = True
        else:
            listed[given.get(flag, name)] = words[0] if len(words) == 1 else list(words)
    return listed


def _log(text: str, names: Names) -> str:
    lines = (
        f"  {names.get(name, name)} {'.' * (48 - len(names.get(name, name)))} {value}"
        for name, value in _arguments(text).items()
    )
    usual = ("  img_h ........................................... 224", "  rank .... 0", "  fp16 .... False")
    return "\n".join((f"{'-' * 24} arguments {'-' * 24}", *lines, *usual, f"{'-' * 20} end of arguments", ""))


def _settings(text: str) -> Values:
    """Settings of torchtitan that job files and flags have as well."""
    return {
        name: value
        for name, value in settings_in(text).items()
        if "model_spec" not in name and "Converter" not in name
    }


def _as_job(text: str, names: Names) -> dict[str, dict[str, object]]:
    """Sections of a job file with a plan's settings."""
    sections: dict[str, dict[str, object]] = {}
    modes = {"None": "none", "FullAC.Config()": "full", "SelectiveAC.Config()": "selective"}
    settings = dict(_settings(text))
    if settings.get("activation_checkpoint") == "SelectiveAC.Config()":
        settings["activation_checkpoint.selective_ac_option"] = "op"
    for name, value in settings.items():
        is_mode = name == "activation_checkpoint"
        section, _, key = f"{names.get(name, name)}{'.mode' * is_mode}".partition(".")
        sections.setdefault(section, {})[key] = modes[str(value)] if is_mode else value
    on = [name for name, converter in JOB_CONVERTERS.items() if converter in settings_in(text)]
    if on:
        sections["model"] = {"converters": on}
    return sections


def _in_flags(text: str) -> Values:
    """Settings that flags have: no lists of lists."""
    return {name: value for name, value in _settings(text).items() if name != MODULES}


def _toml(text: str, names: Names) -> str:
    sections = _as_job(text, names).items()
    return "\n".join(
        line
        for section, settings in sections
        for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items()), "")
    )


def _json(text: str, names: Names) -> str:
    return json.dumps(_as_job(text, names), indent=1)


def _command(text: str, names: Names) -> str:
    """Command with flags, which have no lists of lists."""
    settings = ((name, value) for name, value in flattened(_as_job(text, names)) if name != MODULES)
    values = {name: ",".join(value) if isinstance(value, list) else value for name, value in settings}
    return shlex.join(["torchrun", "train.py", *(f"--{name}={value}" for name, value in values.items())])


def _python(text: str, names: Names) -> str:
    for name, renamed in names.items():
        text = text.replace(f"config.{name} =", f"config.{renamed} =")
    return text


def _assigned(text: str) -> Values:
    """Settings that a plan's Python assigns."""
    return {name: value for name, value in _settings(text).items() if f"config.{name} =" in text}


def _deepspeed(text: str) -> Values:
    return dict(flattened(json.loads(text)))


def _as_json(text: str, names: Names) -> str:
    nested: dict[str, object] = {}
    for name, value in _deepspeed(text).items():
        *sections, key = names.get(name, name).split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})  # type: ignore[assignment]
        inner[key] = value
    return json.dumps(nested)


FORMS = {
    "megatron flags": Form("megatron", _flags, _plain),
    "megatron script": Form("megatron", _flags, _script),
    "megatron YAML": Form("megatron", _flags, _yaml),
    "megatron log": Form("megatron", _arguments, _log),
    "torchtitan Python": Form("torchtitan", _assigned, _python),
    "torchtitan TOML": Form("torchtitan", _settings, _toml),
    "torchtitan JSON": Form("torchtitan", _settings, _json),
    "torchtitan flags": Form("torchtitan", _in_flags, _command),
    "deepspeed JSON": Form("deepspeed", _deepspeed, _as_json),
}


def script_options(emitted: Emitted) -> dict[str, int | str]:
    """What the script must set of a plan for DeepSpeed, as options of reading it."""
    pairs = (sentence.partition(" ") for sentence in emitted.user_settings)
    return {name: value for name, _, value in pairs if name in OPTIONS}


def given_run(
    runtime: str, file: Path, model: Model, devices: int, emitted: Emitted, *, blackwell: bool
) -> RunFile:
    """Run that a file describes."""
    if runtime == "megatron":
        return RunFile.of_megatron(file, devices, blackwell=blackwell)
    if runtime == "torchtitan":
        return RunFile.of_torchtitan(file, model, devices)
    return RunFile.of_deepspeed(file, model, devices, script_options(emitted))
