"""Published speed-ups of mappings to show beside a study's own; nothing is tuned to them."""

from typing import Literal

from pydantic import Field

from phaze.spec.names import Partitioner
from phaze.spec.noun import Noun
from phaze.spec.settings import Name, PositiveFloat

Mapping = Literal["cs-map", "p2p-map", "ours"]
PrintedPartitions = dict[Partitioner, dict[Mapping, dict[str, PositiveFloat]]]
"""Speed-ups by partitioner, mapping and shape SxR."""


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
    over_first: dict[Name, PrintedPartitions] = Field(default_factory=dict)
    """Speed-up over PipeDream's partition with CS map by graph, partitioner, mapping and shape SxR."""
    over_clusters: dict[Name, dict[str, PositiveFloat]] = Field(default_factory=dict)
    """Speed-up by refinement over clusters alone, with the same mapping, by graph and shape SxR."""
    missing: tuple[str, ...] = ()
    """What is printed and cannot be compared, and why; sentences."""
