"""A small model for commands, and a small study for the tests of its report and of comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from phaze.report.findings import Findings
    from phaze.report.inputs import Inputs


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """File of a transformer with four small blocks."""
    path = tmp_path_factory.mktemp("models") / "tiny.yaml"
    sizes = {"layers": 4, "hidden": 64, "heads": 4, "feed_forward": 256, "vocabulary": 512}
    path.write_text("".join(f"{name}: {size}\n" for name, size in (sizes | {"position_count": 64}).items()))
    return str(path)


@pytest.fixture(scope="session")
def inputs() -> Inputs:
    from tests.unit.report import builder  # the report takes long to import, and few tests need it

    return builder.inputs()


@pytest.fixture(scope="session")
def findings(inputs: Inputs) -> Findings:
    from phaze.report.build import summarise

    return summarise(inputs)
