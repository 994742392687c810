"""Fields of questions, with the text and unit that their command-line options show.

Without validation, so that the command line starts fast; documents derive from them (`phaze.spec.derived`).
"""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, kw_only=True)
class Described:
    """Text, name and limits of a field as an option; the type and the default are the field's."""

    text: str | None = None
    """Default: the docstring of the field."""
    flags: tuple[str, ...] = ()
    """Names of the option, such as --mtbf; default: the name of the field."""
    with_suffix: bool = False
    """True if the number may have a decimal suffix, such as 15T."""
    with_currency: bool = False
    """True if the number may have a currency, such as 2.5USD."""
    least: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunFields:
    """Whole training run: tokens, price, deadline and failures."""

    tokens: Annotated[
        float | None,
        Described(text="Tokens of the whole training run, such as 15T; adds its duration.", with_suffix=True),
    ] = None
    """Training tokens."""
    price: Annotated[
        float | None,
        Described(
            text="Price of a device-hour, such as 2.5 or 2.5USD; adds the cost. Needs --tokens.",
            with_currency=True,
        ),
    ] = None
    """Price per device-hour."""
    days: Annotated[
        float | None,
        Described(
            text="Deadline in days; finds the cheapest number of devices that meets it. Needs --tokens."
        ),
    ] = None
    """Deadline in days."""
    mtbf_hours: Annotated[
        float | None,
        Described(
            flags=("--mtbf",),
            text="Device-hours between failures; adds checkpoints, restarts and lost work. Needs --tokens.",
            with_suffix=True,
        ),
    ] = None
    """Mean device-hours between failures; default: no failures."""
    checkpoint_s: Annotated[
        float | None,
        Described(flags=("--checkpoint",), text="Seconds to write a checkpoint. Default with --mtbf: 60."),
    ] = None
    """Time in seconds that training pauses for a checkpoint."""
    restart_s: Annotated[
        float | None,
        Described(
            flags=("--restart",),
            text="Seconds from a failure until training continues. Default with --mtbf: 600.",
        ),
    ] = None
    """Time in seconds from a failure until training resumes from the last checkpoint."""


FAILURE_DEFAULTS = {
    "checkpoint": (60.0, "assumed: training waits while the states are written to shared storage"),
    "restart": (600.0, "assumed: ten minutes to notice, replace the node and load the last checkpoint"),
}
"""Seconds of a checkpoint and of a restart if failures are given without them, with the reason, by option."""
