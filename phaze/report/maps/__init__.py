"""The page of the mappings: tables and figures of the Parmesan paper, pictures, and checks."""

from phaze.report.maps.build import build_map_report
from phaze.report.maps.inputs import MapInputs

__all__ = ["MapInputs", "build_map_report"]
