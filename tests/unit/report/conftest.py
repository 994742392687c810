"""The report of the small study, built once for all tests of this folder."""

import pytest

from phaze.pages.page import Report
from phaze.report.build import compose
from phaze.report.checks import Evidence
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs


@pytest.fixture(scope="session")
def evidence(inputs: Inputs, findings: Findings) -> Evidence:
    return Evidence(inputs, findings.results, findings.energies)


@pytest.fixture(scope="session")
def report(inputs: Inputs, findings: Findings) -> Report:
    return compose(inputs, findings)
