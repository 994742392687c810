"""Readings: what a study asks again of its named architectures under other settings, to show them side by
side.
"""

from __future__ import annotations

from pydantic import Field, JsonValue

from phaze.spec.noun import Noun
from phaze.spec.settings import Name

Changes = dict[str, JsonValue]
"""Settings of a section that differ, by their key there."""


class Reading(Noun):
    """Settings that differ from the study's, under which every model is placed again on the named
    architectures.
    """

    note: str = Field(min_length=1)
    """What the reading assumes, in a sentence."""
    baseline: Name | None = None
    """The named architecture that gains under this reading are over, if not `architectures.baseline`."""
    scenario: Changes = Field(default_factory=dict)
    """Keys of the first of `scenarios` that differ."""
    training: Changes = Field(default_factory=dict)
    """Keys of `training` that differ."""
    extract: Changes = Field(default_factory=dict)
    """Keys of `extract` that differ."""
    estimate: Changes = Field(default_factory=dict)
    """Keys of `estimate` that differ."""
