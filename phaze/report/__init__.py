"""Report: from the tables of a study to its answer, beside what was published."""

from phaze.report.build import Report, build_report, export_table, write_report
from phaze.report.findings import RESULT_TABLES
from phaze.report.inputs import Cluster, DetailFiles, Inputs, read_times
from phaze.report.winners import choose_winner

__all__ = [
    "RESULT_TABLES",
    "Cluster",
    "DetailFiles",
    "Inputs",
    "Report",
    "build_report",
    "choose_winner",
    "export_table",
    "read_times",
    "write_report",
]
