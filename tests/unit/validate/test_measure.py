"""Kernels are timed only on a GPU; elsewhere one line states what is missing."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError


def test_without_a_gpu_one_line_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "kernels.csv"
    with pytest.raises(PhazeError, match=r"^measure: .*PyTorch") as error:
        CliRunner().invoke(app, ["measure", "-o", str(out)], catch_exceptions=False)
    assert "\n" not in str(error.value)
    assert not out.exists()
