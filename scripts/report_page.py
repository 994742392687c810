"""Write a page beside the report: of plans, mappings, tiles, layouts or measured runs, with its tables."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from phaze import tables
from phaze.base.job import logged
from phaze.papers.palm.build import build_tiled_report
from phaze.papers.palm.inputs import TiledInputs
from phaze.papers.palm.published import PublishedTiled
from phaze.papers.parmesan.build import build_map_report
from phaze.papers.parmesan.inputs import MapInputs
from phaze.papers.parmesan.published import PublishedMaps
from phaze.papers.piper.build import build_plan_report
from phaze.papers.piper.inputs import PlanInputs
from phaze.papers.piper.published import PublishedPlans
from phaze.report.layouts import LayoutInputs, build_layout_report
from phaze.report.measured.build import build_measured_report
from phaze.report.measured.inputs import MeasuredInputs
from phaze.report.report import Report, write_report
from phaze.spec.claims import Publication
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.map_study import Maps
from phaze.spec.measured import MeasuredStudy
from phaze.spec.noun import Noun
from phaze.spec.planning import PlanStudy
from phaze.spec.tiled_study import TiledStudy


class Page(NamedTuple):
    """What a page is made of: its part of the study, its publication, and its tables by name."""

    study: type[Noun]
    published: type[Publication]
    inputs: Callable[..., object]
    build: Callable[..., Report]


PAGES = {
    "plans": Page(PlanStudy, PublishedPlans, PlanInputs, build_plan_report),
    "maps": Page(Maps, PublishedMaps, MapInputs, build_map_report),
    "validate": Page(MeasuredStudy, Publication, MeasuredInputs, build_measured_report),
    "layouts": Page(LayoutStudy, Publication, LayoutInputs, build_layout_report),
    "tiled": Page(TiledStudy, PublishedTiled, TiledInputs, build_tiled_report),
}


def page_of(name: str, loaded: Mapping[str, pd.DataFrame], asked: Mapping[str, object]) -> Report:
    """The page of that name from its tables; `asked` holds the study, the publication, and other figures."""
    page, rest = PAGES[name], dict(asked)
    study, published = page.study.parse(rest.pop(name), name), rest.pop("published")
    printed = None if published is None else page.published.parse(published, "published")
    return page.build(page.inputs(study=study, published=printed, **loaded, **rest))


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        page = Path(snakemake.output.page)
        loaded = {name: tables.TABLES[name].load(*paths) for name, paths in snakemake.input.items() if paths}
        asked = {name: value for name, value in snakemake.params.items() if name != "code"}
        write_report(page_of(page.stem, loaded, asked), page.parent)
