"""One small study and its report, made once for all tests here."""

import pytest

from phaze.report.build import Report, build_report
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from tests.unit.report import builder


@pytest.fixture(scope="session")
def inputs() -> Inputs:
    return builder.inputs()


@pytest.fixture(scope="session")
def report(inputs: Inputs) -> Report:
    return build_report(inputs)


@pytest.fixture(scope="session")
def findings(report: Report) -> Findings:
    return report.findings
