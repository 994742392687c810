"""The small study of the report, compared with the printed results of Phaze."""

import pytest

from phaze.papers.phaze.beside import Beside
from phaze.papers.publications import Published
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.spec.files import FOLDER


@pytest.fixture(scope="session")
def published() -> Published:
    return Published.from_file(FOLDER / "published/phaze-icml-2024.yaml")


@pytest.fixture(scope="session")
def printed(inputs: Inputs, findings: Findings, published: Published) -> Beside:
    tables = ("results", "memories", "breakdowns", "complexities", "walks")
    return Beside(inputs, published, **{table: getattr(findings, table) for table in tables})
