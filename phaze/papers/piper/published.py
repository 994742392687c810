"""Published results of Piper."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from phaze.papers.publication import Publication
from phaze.spec.noun import Noun
from phaze.spec.values import Name, Positive, PositiveInt

OUT_OF_MEMORY = "OOM"
_PRINTED = re.compile(r"\d+(\.\d+)?|OOM")


def _as_printed(text: str) -> str:
    if not _PRINTED.fullmatch(text):
        raise ValueError("must be a number as printed, or OOM")
    return text


Printed = Annotated[str, AfterValidator(_as_printed)]
"""Time with its printed digits, or OOM."""


class PrintedPlan(Noun):
    """Row of a printed table of plans."""

    devices: PositiveInt
    """Number of devices."""
    memory_gib: Positive
    """Memory of a device."""
    piper: Printed
    """Time per sample of Piper's plan."""
    equi: Printed
    """Time per sample of the best equal stages."""


class PublishedPlans(Publication):
    """Published plans of Piper."""

    table: dict[Name, tuple[PrintedPlan, ...]] = Field(default_factory=dict)
    """Printed rows, by input (Table 1)."""
