"""Settings of the studies in config/studies, completed by those of the default study."""

from __future__ import annotations

from snakemake.utils import update_config

from phaze.spec.files import FOLDER, read_mapping


def study_settings(name: str) -> dict:
    """Return the settings of a study, as Snakemake merges them with the default study."""
    settings = read_mapping(FOLDER / "config.yaml")
    update_config(settings, read_mapping(FOLDER / f"studies/{name}.yaml"))
    return settings
