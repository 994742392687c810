"""Publications that a study names, read and checked before any job is planned."""

from __future__ import annotations

from pathlib import Path

from phaze.papers.claims import Publication
from phaze.papers.palm.published import PublishedTiled
from phaze.papers.parmesan.published import PublishedMaps
from phaze.papers.phaze.published import Published
from phaze.papers.piper.published import PublishedPlans
from phaze.spec.files import FOLDER, named_file
from phaze.spec.study import Study

Plain = dict[str, object]


KINDS: dict[str, type[Publication]] = {
    "report": Published, "plans": PublishedPlans, "tiled": PublishedTiled, "maps": PublishedMaps,
}  # fmt: skip
"""What a part of a study may name as published."""


def load_publications(study: Study, folder: Path = FOLDER) -> dict[str, Plain]:
    """Publications by the part of the study that names them, as plain values; raises PhazeError."""
    named = {part: getattr(study, part).published for part in KINDS}
    return {
        part: KINDS[part]
        .from_file(named_file("publication", name, folder / "published"))
        .model_dump(mode="json")
        for part, name in named.items()
        if name is not None
    }
