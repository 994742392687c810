"""Settings of torchtitan's files and flags by name, such as `training.seq_len`.

A file is a function of `config_registry` in Python, a job file in TOML or JSON, as torchtitan had them until
February 2026, or a command with flags.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.runtimes.flags import parse_flags, refuse_unexpanded
from phaze.runtimes.settings import settings_of, settings_of_sections
from phaze.spec.plain import parse_json

SECTIONS = {"TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile"}
"""Configuration classes by name, with the section that each of them sets wherever it is made."""
SECTION = re.compile(r"^\s*\[[\w.\"-]+\]\s*(?:#.*)?$", re.MULTILINE)
"""Line with which a section of TOML begins."""
ELSEWHERE = ("job.config_file", "config", "module")
"""Flags that take further settings from a file, or from a function of torchtitan."""
JOB_CONVERTERS = {
    "float8": "Float8LinearConverter", "quantize.linear.float8": "Float8LinearConverter",
    "quantize.dense.float8": "Float8LinearConverter", "mx": "MXFP8LinearConverter",
    "quantize.linear.mx": "MXFP8LinearConverter", "quantize.dense.mx": "MXFP8LinearConverter",
    "quantize.grouped_mm.float8": "Float8GroupedExpertsConverter",
    "quantize.moe.float8": "Float8GroupedExpertsConverter",
    "quantize.grouped_mm.mx": "MXFP8GroupedExpertsConverter",
    "quantize.moe.mx": "MXFP8GroupedExpertsConverter",
}  # fmt: skip
"""Converters by their names in job files, which are the sections of their settings as well."""
SWITCHES = ("training.fp8_linear", "training.enable_fp8_linear", "training.enable_float8_linear",
            "float8.enable_float8_linear")  # fmt: skip
"""Settings of 2024 that turn FP8 on."""
SELECTION, USUAL_SELECTION = "activation_checkpoint.selective_ac_option", "2"
"""What selective recomputation of job files recomputes: by default every second layer."""
MOST_PRODUCT = 10**18


def settings_in(text: str) -> dict[str, object]:
    """Settings by name; PhazeError if the text cannot be parsed, or refers to settings elsewhere."""
    if text.lstrip().startswith("{"):
        return _job_settings(parse_json(text, "settings"))
    if SECTION.search(text):
        try:
            return _job_settings(tomllib.loads(text))
        except (ValueError, RecursionError) as error:
            raise PhazeError(f"settings: is not valid TOML: {error}") from error
    if "config." not in text and "Config(" not in text:
        return _flag_settings(text)
    try:
        return _assigned_settings(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PhazeError(f"changes: cannot be parsed as Python: {error}") from error


def _job_settings(sections: object) -> dict[str, object]:
    """Settings of a job file, with torchtitan's defaults for recompute and conversion."""
    settings = settings_of_sections(sections)
    # Job files recompute selectively by default, where configurations in Python name an object.
    settings.setdefault("activation_checkpoint.mode", "selective")
    return _with_selection(_with_converters(settings))


def _with_selection(settings: dict[str, object]) -> dict[str, object]:
    """Settings with the option of selective recomputation if that is on, and else without it."""
    if str(settings.get("activation_checkpoint.mode")) == "selective":
        return {SELECTION: USUAL_SELECTION} | settings
    return {name: value for name, value in settings.items() if name != SELECTION}


def _with_converters(settings: dict[str, object]) -> dict[str, object]:
    """Settings with the converters that a job file turns on, as a function of `config_registry` has them."""
    switches = [name for name in SWITCHES if settings.get(name)]
    listed = settings.pop("model.converters", [])
    names = [*(listed.split(",") if isinstance(listed, str) else listed), *["float8"] * bool(switches)]  # type: ignore[misc]
    unknown = [name for name in names if name not in JOB_CONVERTERS]
    if unknown:
        raise PhazeError(f"model.converters: must be of {', '.join(JOB_CONVERTERS)}, got {short(unknown[0])}")
    on = {JOB_CONVERTERS[name] for name in names}
    converted: dict[str, object] = dict.fromkeys(sorted(on), True)
    if "Float8LinearConverter" in on:
        converted["Float8LinearConverter.recipe_name"] = "tensorwise"  # unless the file says another
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        if name not in SWITCHES:
            converted[f"{JOB_CONVERTERS[section]}.{key}" if JOB_CONVERTERS.get(section) in on else name] = (
                value
            )
    return converted


def _flag_settings(text: str) -> dict[str, object]:
    """Parse flags `--section.name value`; `--section.no-name` means false."""
    settings: dict[str, object] = {}
    flags = {flag[2:].replace("-", "_"): words for flag, words in parse_flags(text).items()}
    refuse_unexpanded(flags, settings_of("torchtitan"))
    for flag, words in flags.items():
        section, dot, name = flag.partition(".")
        # tyro writes a false boolean as `--section.no-name`.
        off = name.startswith("no_") and not words
        settings[section + dot + (name.removeprefix("no_") if off else name)] = (
            " ".join(words) if words else not off
        )
    for name in ELSEWHERE:
        if name in settings:
            raise PhazeError(
                f"--{name}: takes settings from elsewhere, got {short(settings[name])}",
                "pass that file, or the function of config_registry with these flags as assignments",
            )
    return _with_selection(_with_converters(settings))


def _assigned_settings(text: str) -> dict[str, object]:
    """Settings assigned in a Python file that defines one function.

    They are the arguments of configurations and of model converters, overridden by the assignments
    `config.section.name = value`.
    """
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    if len(functions) > 1:
        raise PhazeError(f"changes: must define one function, got {', '.join(functions)[:60]}")
    # Values may be variables that are assigned in the file.
    named = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    settings: dict[str, object] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            settings |= _call_settings(node, named)
    for node in nodes:
        _refuse_statement(node)
        if isinstance(node, ast.Assign):
            name, value = ast.unparse(node.targets[0]), node.value
            if name == "config" and not ast.unparse(value).startswith("Trainer.Config("):
                raise PhazeError(
                    "changes: config must be created by Trainer.Config in this file, got "
                    f"{short(ast.unparse(value))}"
                )
            if name.startswith("config."):
                settings |= _assignment_settings(name[7:], value, named)
    return settings


def _refuse_statement(node: ast.AST) -> None:
    """Raise PhazeError for a statement that may change settings and is no assignment."""
    is_branch = isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.AugAssign)
    if not is_branch and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return
    source = ast.unparse(node)
    if re.search(r"\bconfig\b", source):
        line = source.partition("\n")[0]
        raise PhazeError(f"changes: must be assignments, outside of branches and loops, got {short(line)}")


def _call_settings(node: ast.Call, named: Mapping[str, ast.expr]) -> dict[str, object]:
    """Settings passed to the constructor of a configuration or converter, by name."""
    name = ast.unparse(node.func)
    if name.endswith("Converter.Config"):
        converter = name.removesuffix(".Config").rpartition(".")[2]
        return {converter: True} | _keyword_settings(converter, node)
    if name.endswith("Trainer.Config"):
        return {
            k: v
            for word in node.keywords
            for k, v in _assignment_settings(str(word.arg), word.value, named).items()
        }
    section = SECTIONS.get(name.rpartition(".")[2])
    return _keyword_settings(section, node) if section else {}


def _assignment_settings(name: str, node: ast.expr, named: Mapping[str, ast.expr]) -> dict[str, object]:
    """Setting with a value, or a section that is made by a call, with its settings."""
    if isinstance(node, ast.Name):
        node = named.get(node.id, node)
    if not isinstance(node, ast.Call) or name == "model_spec.model":
        return {name: _value(node)}
    maker = ".".join(ast.unparse(node.func).split(".")[-2:])
    return {name: f"{maker}()"} | _keyword_settings(name, node)


def _keyword_settings(section: str, node: ast.Call) -> dict[str, object]:
    return {f"{section}.{word.arg}": _value(word.value) for word in node.keywords if word.arg != "converters"}


def _value(node: ast.expr) -> object:
    """Value of a literal or a product of numbers, or the source text of any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        product = _product(node)
        return ast.unparse(node) if product is None or product >= MOST_PRODUCT else product


def _product(node: ast.expr) -> int | None:
    """Product of positive numbers; None for any other expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        first, second = _product(node.left), _product(node.right)
        # Capped, as a product of many numbers could fill the memory.
        return None if first is None or second is None else min(MOST_PRODUCT, first * second)
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) and value > 0 else None
