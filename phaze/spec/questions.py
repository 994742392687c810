"""Fields of questions, with the text and unit that their command-line options show.

Without validation, so that the command line starts fast; documents derive from them (`phaze.spec.derived`).
"""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, kw_only=True)
class Described:
    """Text, name and limits of a field as an option; the type and the default are the field's."""

    text: str
    flag: str = ""
    """Name of the option, such as --mtbf; default: the name of the field."""
    with_suffix: bool = False
    """True if the number may have a decimal suffix, such as 15T."""
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
        float | None, Described(text="Price of a device-hour; adds the cost. Needs --tokens.")
    ] = None
    """Price per device-hour, in any currency."""
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
            flag="--mtbf",
            text="Device-hours between failures; adds the goodput. Needs --checkpoint and --restart.",
        ),
    ] = None
    """Mean device-hours between failures; default: no failures."""
    checkpoint_s: Annotated[
        float | None, Described(flag="--checkpoint", text="Seconds to write a checkpoint.")
    ] = None
    """Time in seconds that training pauses for a checkpoint."""
    restart_s: Annotated[
        float | None, Described(flag="--restart", text="Seconds from a failure until training continues.")
    ] = None
    """Time in seconds from a failure until training resumes from the last checkpoint."""
