"""Write an additional page of the report, on layouts or measured runs, with its tables."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from phaze import tables
from phaze.base.job import logged
from phaze.pages.page import Report, write_report
from phaze.report.layouts import LayoutInputs, build_layout_report
from phaze.report.measured_page import MeasuredInputs, build_measured_report
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.measured import MeasuredStudy
from phaze.spec.noun import Noun


class Page(NamedTuple):
    """Definition of a page: settings class, class of its input tables, and function that builds it."""

    study: type[Noun]
    inputs: Callable[..., object]
    build: Callable[..., Report]


PAGES = {
    "validate": Page(MeasuredStudy, MeasuredInputs, build_measured_report),
    "layouts": Page(LayoutStudy, LayoutInputs, build_layout_report),
}


def page_of(name: str, loaded: Mapping[str, pd.DataFrame], asked: object) -> Report:
    """Build the page with the given name from its tables and its part of the study."""
    page = PAGES[name]
    return page.build(page.inputs(study=page.study.parse(asked, name), **loaded))


if __name__ == "__main__":
    with logged(snakemake.log[0], output=snakemake.output[0]):
        page = Path(snakemake.output.page)
        loaded = {name: tables.TABLES[name].load(*paths) for name, paths in snakemake.input.items() if paths}
        write_report(page_of(page.stem, loaded, snakemake.params[page.stem]), page.parent)
