"""One small study, built once for the tests of its report and of its comparison with a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from phaze.report.findings import Findings
    from phaze.report.inputs import Inputs


@pytest.fixture(scope="session")
def inputs() -> Inputs:
    from tests.unit.report import builder  # the report takes long to import, and few tests need it

    return builder.inputs()


@pytest.fixture(scope="session")
def findings(inputs: Inputs) -> Findings:
    from phaze.report.build import summarise

    return summarise(inputs)
