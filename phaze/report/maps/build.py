"""The page of the mappings: tables and figures of the Parmesan paper, pictures, and checks."""

from __future__ import annotations

from phaze.report.maps.answer import answer_of
from phaze.report.maps.checks import CHECKS
from phaze.report.maps.inputs import MapInputs, speed_ups, steps
from phaze.report.maps.readings import read_figures
from phaze.report.maps.sections import sections_of
from phaze.report.report import Report, page_of
from phaze.report.verdicts import checks_section, run_checks
from phaze.tables import Checks, FiguresRead, Mappings, SpeedUps

_CHECKS = "What must hold of any mappings, checked on these."


def build_map_report(inputs: MapInputs) -> Report:
    """Return the page of the mappings of a study."""
    gains, figures = SpeedUps.check(speed_ups(steps(inputs.mappings))), read_figures(inputs)
    checks = run_checks(CHECKS, inputs)
    tables = {
        "mappings": (Mappings, inputs.mappings),
        "speed-ups": (SpeedUps, gains),
        "figures-read": (FiguresRead, figures),
        "map-checks": (Checks, checks),
    }
    sections = (*sections_of(inputs, figures), checks_section(checks, "map-checks", _CHECKS))
    return page_of("maps.html", "mappings of Parmesan", answer_of(inputs, gains, figures), sections, tables)
