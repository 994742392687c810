"""Fields given as FIELD=VALUE: of layouts, such as tp=8,pp=16, and of traces."""

import re
from collections.abc import Collection

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean

TRUTHS = {"true": 1, "false": 0}
"""Numbers of truth values in layout fields."""

SYNONYMS = {
    "tensor": "tp", "tensor_parallel": "tp", "pipeline": "pp", "pipeline_parallel": "pp", "data": "dp",
    "data_parallel": "dp", "context": "cp", "context_parallel": "cp", "expert": "ep", "expert_parallel": "ep",
    "mbs": "microbatch", "micro_batch": "microbatch", "virtual": "vp", "fsdp": "zero", "hsdp": "replicate",
    "sp": "sequence_parallel", "checkpointing": "recompute",
}  # fmt: skip
"""Layout field for each name that other programs have for it."""


def layout_field(name: str) -> str | None:
    """Layout field that an option such as --tp or --tensor-parallel-size means; None if it means none."""
    plain = name.strip("-").replace("-", "_").lower().removesuffix("_size")
    return SYNONYMS.get(plain) or (plain if plain in SYNONYMS.values() else None)


def _layout_fix(text: str, allowed: Collection[str]) -> str:
    """Fix of a malformed layout field: its separator, its name here, or similar names."""
    name = re.split("[:= ]", text)[0]
    if (field := layout_field(name)) in allowed:
        return f"write {field}=VALUE" if field == name else f"did you mean {field}?"
    return did_you_mean(name, allowed, "config/commands.md")


def set_fields(text: str | None) -> dict[str, object]:
    """Parse `--set` into fields with whole numbers, true, false or strings; PhazeError if malformed."""
    from phaze.base.printed import short

    values: dict[str, object] = {}
    for part in text.split(",") if text else ():
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name or not value or name in values:
            raise PhazeError(
                "--set: must be FIELD=VALUE pairs, each field once, such as experts.per_token=2; got "
                f"{short(part)}"
            )
        words: dict[str, object] = {"true": True, "false": False}
        values[name] = int(value) if value.isdecimal() else words.get(value, value)
    return values


def layout_fields(where: str, text: str | None, allowed: Collection[str]) -> dict[str, int | str]:
    """Parse layout fields such as tp=8,pp=16; PhazeError for an unknown field."""
    values: dict[str, int | str] = {}
    for part in text.split(",") if text is not None else ():
        name, equals, value = part.strip().partition("=")
        if not equals or not value or name not in allowed or name in values:
            raise PhazeError(
                f"{where}: must be FIELD=VALUE pairs such as tp=8,pp=16, each field once, "
                f"got {part.strip()!r}",
                _layout_fix(name, allowed),
            )
        values[name] = int(value) if value.isdecimal() else TRUTHS.get(value, value)
    return values
