"""Compiled functions and their cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from phaze.base import compiled
from phaze.base.compiled import copy_row, njit, njit_inlined, njit_nested


@njit
def half(x: float) -> float:
    return x / 2.0


@njit
def quarter(x: float) -> float:
    return half(half(x))


@njit
def shift(values: NDArray[np.float64]) -> None:
    values[1:] = quarter(values[0])


@njit
def inverse(x: float) -> float:
    return 1.0 / x


@njit_inlined
def add(x: int, y: int) -> int:
    return x + y


@njit
def add_constants(x: int) -> int:
    return add(x, 1) + add(2, x)


def test_what_is_inlined_has_no_code_of_its_own() -> None:
    assert add_constants(5) == 13
    assert add.signatures == []  # type: ignore[attr-defined]


@njit_nested
def reciprocal(x: float) -> float:
    return 1.0 / x


@njit
def reciprocals(x: float, y: float) -> float:
    return reciprocal(x) + reciprocal(y)


def test_a_nested_function_is_compiled_only_in_its_callers() -> None:
    """Python runs it as Python; compiled code divides by zero as in NumPy."""
    assert not hasattr(reciprocal, "signatures")
    assert reciprocals(4.0, 0.0) == np.inf
    assert reciprocals(4.0, 3.0) == reciprocal(4.0) + reciprocal(3.0)
    with pytest.raises(ZeroDivisionError):
        reciprocal(0.0)


def test_rows_are_copied() -> None:
    """Copy rows into a part of a larger array."""
    target = np.zeros((2, 3))
    copy_row(np.arange(3.0), target[1])
    assert target.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]]


def test_compiled_functions_compute_what_they_say() -> None:
    """A compiled function and the functions it calls give the same results as in Python."""
    assert quarter(10.0) == 2.5


def test_arrays_of_the_caller_are_filled_in_place() -> None:
    """Arrays of the caller are filled by functions that call others."""
    values = np.array([10.0, 0.0, 0.0])
    shift(values)
    assert values.tolist() == [10.0, 2.5, 2.5]


def test_division_by_zero_is_that_of_numpy() -> None:
    """Infinity, not an exception, so that loops over arrays stay simple."""
    assert inverse(0.0) == np.inf


FILES = {
    "phaze/__init__.py": "",
    "phaze/base/__init__.py": "",
    "phaze/sums.py": """from phaze.base.compiled import njit
from phaze.names import STEP

@njit
def more(x):
    return x + STEP

@njit
def other(x):
    return 7 * x
""",
    "phaze/names.py": "STEP = 1\nUNUSED = 2\n",
    "phaze/loops.py": """from phaze.base.compiled import njit
from phaze.sums import more, other

@njit
def twice(x):
    return more(more(x))

@njit
def by_seven(x):
    return other(x)

found = twice(1), by_seven(1)
print(*found, *(sum(one.stats.cache_misses.values()) for one in (twice, more, by_seven, other)))
""",
}
"""Package with functions that call others in another file, which reads a constant in a third. It prints two
results, and how often each function was compiled.
"""


@pytest.fixture(scope="module")
def compiled_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package")
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    base = Path(compiled.__file__).parent
    for name in ("arrays.py", "compiled.py", "progress.py"):
        (path / "phaze/base" / name).write_text((base / name).read_text())
    assert answer(path) == "3 7 1 1 1 1"
    return path


@pytest.fixture(name="package")
def small_package(compiled_package: Path, tmp_path: Path) -> Path:
    return shutil.copytree(compiled_package, tmp_path, dirs_exist_ok=True)


def answer(package: Path, cache: Path | None = None) -> str:
    command = [sys.executable, "-m", "phaze.loops"]
    env = {**os.environ, "PHAZE_COMPILED": str(cache or "")}
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=package, env=env)
    return process.stdout.strip()


def edited(package: Path, name: str, old: str, new: str, cache: Path | None = None) -> str:
    text = (package / name).read_text()
    assert old in text
    (package / name).write_text(text.replace(old, new))
    return answer(package, cache)


@pytest.mark.slow
def test_a_comment_or_code_elsewhere_compiles_nothing_again(package: Path) -> None:
    """Comments or unrelated code in the same file, in a called file, or in that of a constant."""
    assert answer(package) == "3 7 0 0 0 0"
    for name, old, new in (
        ("phaze/sums.py", "@njit\ndef more(x):", '# Lines move.\n\n@njit\ndef more(x):\n    """More."""'),
        ("phaze/loops.py", "@njit\ndef twice(x):", "@njit\ndef twice(x: float) -> float:  # twice"),
        ("phaze/names.py", "UNUSED = 2", "UNUSED = 3"),
    ):
        assert edited(package, name, old, new) == "3 7 0 0 0 0"


@pytest.mark.slow
def test_an_edit_of_what_is_called_compiles_again_what_reaches_it_and_nothing_else(package: Path) -> None:
    """An edit of called code or of a constant, in any file."""
    assert edited(package, "phaze/sums.py", "x + STEP", "x + 2 * STEP") == "5 7 1 1 0 0"
    assert edited(package, "phaze/names.py", "STEP = 1", "STEP = 10") == "41 7 1 1 0 0"
    assert edited(package, "phaze/sums.py", "7 * x", "8 * x") == "41 8 0 0 1 1"
    assert answer(package) == "41 8 0 0 0 0"


@pytest.mark.slow
def test_another_installation_finds_what_is_compiled(package: Path, tmp_path: Path) -> None:
    """Two installations with the same cache folder."""
    cache = tmp_path / "kept"
    other = tmp_path / "other"
    shutil.copytree(package / "phaze", other / "phaze", ignore=shutil.ignore_patterns("__pycache__"))
    assert answer(package, cache) == "3 7 1 1 1 1"
    assert answer(other, cache) == "3 7 0 0 0 0"
    assert edited(other, "phaze/names.py", "STEP = 1", "STEP = 10", cache) == "21 7 1 1 0 0"


def test_a_class_of_arguments_can_have_another_name(package: Path) -> None:
    """What was compiled for a class that is gone is not read, and the rest of the package is kept."""
    (package / "phaze/pairs.py").write_text(
        "from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    x: int\n    y: int\n"
    )
    (package / "phaze/added.py").write_text(
        "from phaze.base.compiled import njit\nfrom phaze.pairs import Pair\n\n"
        "@njit\ndef added(pair: Pair) -> int:\n    return pair.x + pair.y\n"
    )
    with (package / "phaze/loops.py").open("a") as loops:
        loops.write("from phaze.added import added\nfrom phaze.pairs import Pair\nprint(added(Pair(3, 4)))\n")
    assert answer(package) == "3 7 0 0 0 0\n7"
    for name in ("phaze/pairs.py", "phaze/added.py", "phaze/loops.py"):
        text = (package / name).read_text()
        (package / name).write_text(text.replace("Pair", "Couple"))
    assert answer(package) == "3 7 0 0 0 0\n7"
