"""Parmesan's published speed-ups of mappings."""

from typing import Literal

from pydantic import Field

from phaze.papers.publication import Publication
from phaze.spec.names import Partitioner
from phaze.spec.values import Name, Positive

Mapping = Literal["cs-map", "p2p-map", "ours"]
PrintedPartitions = dict[Partitioner, dict[Mapping, dict[str, Positive]]]
"""Speed-ups by partitioner, mapping and shape SxR."""


class PublishedMaps(Publication):
    """Published results of Parmesan: speed-ups by mapping and partitioning."""

    over_consecutive: dict[Name, dict[str, Positive]] = Field(default_factory=dict)
    """Speed-up over CS map by topology and shape SxR."""
    over_heuristics: dict[Name, dict[str, Positive]] = Field(default_factory=dict)
    """Speed-up over the better of CS map and p2p map by topology and shape SxR."""
    over_first: dict[Name, PrintedPartitions] = Field(default_factory=dict)
    """Speed-up over PipeDream's partition with CS map by graph, partitioner, mapping and shape SxR."""
    over_clusters: dict[Name, dict[str, Positive]] = Field(default_factory=dict)
    """Speed-up by refinement over clusters alone, with the same mapping, by graph and shape SxR."""
