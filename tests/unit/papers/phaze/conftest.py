"""The report's small study, compared with the printed results of Phaze."""

import pytest

from phaze.papers.phaze.beside import Beside
from phaze.papers.phaze.published import Published
from phaze.report.build import summarise
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.spec.files import FOLDER
from tests.unit.report import builder


@pytest.fixture(scope="session")
def inputs() -> Inputs:
    return builder.inputs()


@pytest.fixture(scope="session")
def findings(inputs: Inputs) -> Findings:
    return summarise(inputs)


@pytest.fixture(scope="session")
def published() -> Published:
    return Published.from_file(FOLDER / "published/phaze-icml-2024.yaml")


@pytest.fixture(scope="session")
def printed(inputs: Inputs, findings: Findings, published: Published) -> Beside:
    tables = ("results", "memories", "breakdowns", "complexities", "walks")
    return Beside(inputs, published, **{table: getattr(findings, table) for table in tables})
