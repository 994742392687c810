"""The page of tiled accelerators: figures and tables of the PALM paper beside ours, claims, and checks."""

from phaze.report.tiled.build import build_tiled_report
from phaze.report.tiled.inputs import TiledInputs

__all__ = ["TiledInputs", "build_tiled_report"]
