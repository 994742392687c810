"""Published speed-ups of mappings to show beside a study's own; nothing is tuned to them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from phaze.spec.noun import Noun
from phaze.spec.plain import read_yaml
from phaze.spec.settings import Name, PositiveFloat


class PublishedMaps(Noun):
    """A publication's speed-ups."""

    title: str
    """Title."""
    citation: str
    """Authors, place, year."""
    over_consecutive: dict[Name, dict[str, PositiveFloat]] = Field(default_factory=dict)
    """Speed-up over CS map by topology and shape SxR."""
    over_heuristics: dict[Name, dict[str, PositiveFloat]] = Field(default_factory=dict)
    """Speed-up over the better of CS map and p2p map by topology and shape SxR."""


def load_published_maps(path: Path) -> PublishedMaps:
    """Return published speed-ups from a YAML file, or raise PhazeError."""
    return PublishedMaps.parse(read_yaml(path), str(path))
