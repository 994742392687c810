"""Kernels are timed only on a GPU; elsewhere one line states what is missing."""

from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from tests.commands import invoke


def test_without_a_gpu_one_line_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "kernels.csv"
    with pytest.raises(PhazeError, match=r"^measure: .*PyTorch") as error:
        invoke("measure -o", out)
    assert "\n" not in str(error.value)
    assert not out.exists()
