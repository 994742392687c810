"""phaze finds which accelerator to build for a set of models, and how to train them on a cluster.

Names in `__all__` are public; all else is private and changes without notice. They load when first used.

>>> import phaze
>>> answer = phaze.plan("llama-3.1-8b", gpus="64xH100")  # doctest: +SKIP
>>> print(answer.flags("megatron"))  # doctest: +SKIP
"""

import atexit
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phaze.api import (
        ChipAnswer,
        ComparedRun,
        PhazeError,
        PlanAnswer,
        ReadRun,
        Validation,
        chip,
        compare,
        place,
        plan,
        read,
        schema,
        simulate,
        validate,
    )

__all__ = [
    "ChipAnswer",
    "ComparedRun",
    "PhazeError",
    "PlanAnswer",
    "ReadRun",
    "Validation",
    "chip",
    "compare",
    "place",
    "plan",
    "read",
    "schema",
    "simulate",
    "validate",
]

gc.set_threshold(100_000)  # imports create no garbage worth collecting: saves a quarter of a second per job
atexit.register(gc.freeze)  # without it Python collects all imported objects at exit: 0.1 s


def __getattr__(name: str) -> object:
    """Public name, loaded when first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'phaze' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("phaze.api"), name)


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
