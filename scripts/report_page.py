"""Write a page beside the report: of plans, of mappings or of tiled accelerators, with its tables."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from phaze import tables
from phaze.base.job import logged
from phaze.report.maps.build import build_map_report
from phaze.report.maps.inputs import MapInputs
from phaze.report.plans.build import build_plan_report
from phaze.report.plans.inputs import PlanInputs
from phaze.report.report import Report, write_report
from phaze.report.tiled.build import build_tiled_report
from phaze.report.tiled.inputs import TiledInputs
from phaze.spec.map_study import Maps
from phaze.spec.planning import PlanStudy
from phaze.spec.published_maps import PublishedMaps
from phaze.spec.published_plans import PublishedPlans
from phaze.spec.published_tiled import PublishedTiled
from phaze.spec.tiled_study import TiledStudy

Loaded = Mapping[str, pd.DataFrame]
"""Tables of all cases, by name."""


def of_plans(loaded: Loaded, plans: object, published: object | None) -> Report:
    """Return the page of the plans: figures, tables, claims of the publication, and checks."""
    printed = None if published is None else PublishedPlans.parse(published, "published")
    return build_plan_report(PlanInputs(PlanStudy.parse(plans, "plans"), published=printed, **loaded))


def of_mappings(loaded: Loaded, maps: object, published: object | None) -> Report:
    """Return the page of the mappings: speed-ups beside the published ones, pictures, checks."""
    return build_map_report(
        MapInputs(
            maps=Maps.parse(maps, "maps"),
            mappings=loaded["mappings"],
            devices=loaded["mapped_devices"],
            durations=loaded["map_durations"],
            gaps=loaded.get("search_gaps"),
            gap_durations=loaded.get("gap_durations"),
            partition_durations=loaded.get("partition_durations"),
            published=None if published is None else PublishedMaps.parse(published, "published"),
        )
    )


def of_tiles(loaded: Loaded, tiled: object, published: object | None, flops: float) -> Report:
    """Return the page of tiled accelerators: figures, tables, claims of the publication, and checks."""
    printed = None if published is None else PublishedTiled.parse(published, "published")
    study = TiledStudy.parse(tiled, "tiled")
    return build_tiled_report(TiledInputs(study=study, flops=flops, published=printed, **loaded))


PAGES: dict[str, Callable[..., Report]] = {"plans": of_plans, "maps": of_mappings, "tiled": of_tiles}


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        page = Path(snakemake.output.page)
        loaded = {name: tables.TABLES[name].load(*paths) for name, paths in snakemake.input.items() if paths}
        asked = {name: value for name, value in snakemake.params.items() if name != "code"}
        write_report(PAGES[page.stem](loaded, **asked), page.parent)
