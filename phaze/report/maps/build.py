"""The page of the mappings as one HTML page, and as Markdown."""

from __future__ import annotations

from phaze.report.document import Document
from phaze.report.maps.answer import answer_of
from phaze.report.maps.checks import check_maps
from phaze.report.maps.inputs import MapInputs, speed_ups, steps
from phaze.report.maps.readings import read_figures
from phaze.report.maps.sections import sections_of
from phaze.report.report import Report
from phaze.report.verdicts import checks_section
from phaze.tables import Checks, FiguresRead, Mappings, SpeedUps, Table

TABLES: dict[str, type[Table]] = {
    "mappings": Mappings,
    "speed-ups": SpeedUps,
    "figures-read": FiguresRead,
    "map-checks": Checks,
}
"""The tables beside the page, by file name."""
_CHECKS = "What must hold of any mappings, checked on these."


def build_map_report(inputs: MapInputs) -> Report:
    """Return the page of the mappings of a study."""
    gains = SpeedUps.check(speed_ups(steps(inputs.mappings)))
    figures = read_figures(inputs)
    tables = {
        "mappings": inputs.mappings,
        "speed-ups": gains,
        "figures-read": figures,
        "map-checks": check_maps(inputs),
    }
    document = Document(
        title="phaze",
        subtitle="mappings of Parmesan",
        answer=answer_of(inputs, gains, figures),
        sections=(*sections_of(inputs, figures), checks_section(tables["map-checks"], "map-checks", _CHECKS)),
        tables=tables,
        page="maps.html",
    )
    return Report(document, TABLES)
