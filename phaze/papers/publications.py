"""Publications of a study, read and validated before any job is planned."""

from __future__ import annotations

from pathlib import Path

from phaze.papers.palm.published import PublishedTiled
from phaze.papers.parmesan.published import PublishedMaps
from phaze.papers.phaze.published import Published
from phaze.papers.piper.published import PublishedPlans
from phaze.papers.publication import Publication
from phaze.spec.files import FOLDER, named_file
from phaze.spec.study import Study

Plain = dict[str, object]


KINDS: dict[str, type[Publication]] = {
    "report": Published, "plans": PublishedPlans, "tiled": PublishedTiled, "maps": PublishedMaps,
}  # fmt: skip
"""Type of publication, by part of a study."""


def load_publications(study: Study, folder: Path = FOLDER) -> dict[str, Plain]:
    """Publications by part of the study, as plain values; PhazeError if a file is missing or invalid."""
    named = {part: getattr(study, part).published for part in KINDS}
    return {
        part: KINDS[part]
        .from_file(named_file("publication", name, folder / "published"))
        .model_dump(mode="json")
        for part, name in named.items()
        if name is not None
    }
