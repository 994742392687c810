"""Write an additional page of the report, on layouts or measured runs, with its tables."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from phaze import tables
from phaze.base.job import run_script
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


def main(files: dict[str, list[str]], outputs: dict[str, str], *, params: dict[str, object]) -> None:
    """Build the page that is named like its file from its tables and its part of the study, and write it."""
    path = Path(outputs["page"])
    page = PAGES[path.stem]
    loaded = {name: tables.TABLES[name].load(*paths) for name, paths in files.items() if paths}
    study = page.study.parse(params[path.stem], path.stem)
    simulated = params.get("simulated")
    muted = {"simulated": tuple(simulated)} if isinstance(simulated, list) else {}
    write_report(page.build(page.inputs(study=study, **loaded, **muted)), path.parent)


if __name__ == "__main__":
    run_script(main, snakemake, logs_params=False)
