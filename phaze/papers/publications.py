"""Publications that a study names, read and checked before any job is planned."""

from __future__ import annotations

from pathlib import Path

from phaze.papers.palm.published import PublishedTiled
from phaze.papers.parmesan.published import PublishedMaps
from phaze.papers.piper.published import PublishedPlans
from phaze.spec.config import load_publication
from phaze.spec.files import FOLDER
from phaze.spec.study import Study

Plain = dict[str, object]


def load_publications(study: Study, folder: Path = FOLDER) -> dict[str, Plain | None]:
    """Publications by the part of the study that names them, as plain values; None for none."""
    return {
        "plans": load_publication(PublishedPlans, study.plans.published, folder),
        "tiled": load_publication(PublishedTiled, study.tiled.published, folder),
        "maps": load_publication(PublishedMaps, study.maps.published, folder),
    }
