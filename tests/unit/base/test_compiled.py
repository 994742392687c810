"""Compiled functions and where they are kept."""

import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types
from numpy.typing import NDArray

from phaze.base import compiled
from phaze.base.compiled import copy_row, njit, njit_inlined, njit_inner, njit_without_arrays


@njit
def half(x: float) -> float:
    return x / 2.0


@njit
def quarter(x: float) -> float:
    return half(half(x))


@njit_without_arrays
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
    return add(x, 1) + twice(x) + twice(3)


@njit
def twice(x: int) -> int:
    return 2 * x


@njit_inner
def thrice(x: int) -> int:
    return 3 * x


@njit
def nine_times(x: int) -> int:
    return thrice(thrice(x))


def test_what_only_compiled_code_calls_refuses_a_call_from_python() -> None:
    """Whether it is compiled already or not: it has no entry, and the call would end the process."""
    for _ in range(2):
        with pytest.raises(TypeError, match="thrice is for compiled code only"):
            thrice(2)
        assert nine_times(2) == 18


def test_calls_with_constants_share_the_code_of_calls_with_variables() -> None:
    """Numba would compile `twice` for the constant once more; what is inlined has none of its own."""
    assert add_constants(5) == 22
    twice.get_call_template((types.literal(3),), {})  # type: ignore[attr-defined]
    assert twice.signatures == [(types.int64,)]  # type: ignore[attr-defined]
    assert add.signatures == []  # type: ignore[attr-defined]


def test_rows_are_copied() -> None:
    """Into a part of a larger array."""
    target = np.zeros((2, 3))
    copy_row(np.arange(3.0), target[1])
    assert target.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]]


def test_compiled_functions_compute_what_they_say() -> None:
    """Also what they call."""
    assert quarter(10.0) == 2.5


def test_arrays_of_the_caller_are_filled_in_place() -> None:
    """Without counting references to them, and calling functions that do."""
    values = np.array([10.0, 0.0, 0.0])
    shift(values)
    assert values.tolist() == [10.0, 2.5, 2.5]


def test_division_by_zero_is_that_of_numpy() -> None:
    """Infinity, not an exception, so that loops over arrays stay simple."""
    assert inverse(0.0) == np.inf


def test_an_edit_of_a_compiled_file_changes_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one of a file that the function only calls into; other files change nothing."""
    for name, text in (("a.py", "@njit\n1"), ("b.py", "@njit\n2"), ("c.py", "3")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)
    before = compiled._digest()
    (tmp_path / "c.py").write_text("4")
    assert compiled._digest() == before
    (tmp_path / "b.py").write_text("@njit\n5")
    assert compiled._digest() != before


def test_the_cache_is_named_by_the_digest() -> None:
    """It lies beside the package's other compiled files."""
    assert Path(numba.config.CACHE_DIR).name == f"compiled-{compiled._digest()}"
    assert Path(numba.config.CACHE_DIR).parent.name == "__pycache__"


def test_processes_that_need_the_same_function_compile_it_once(tmp_path: Path) -> None:
    """The others wait, and read it; what it calls is compiled on the way, without waiting for itself."""
    (tmp_path / "loops.py").write_text(
        """
import sys
from pathlib import Path
from phaze.base import compiled

compiled.FOLDER = Path(__file__).parent
compiled.numba.config.CACHE_DIR = str(compiled.FOLDER)

@compiled.njit
def one(x):
    return x + 1

@compiled.njit
def two(x):
    return one(one(x))

print("ready", flush=True)
sys.stdin.readline()
print(two(1), sum(two.stats.cache_misses.values()), sum(one.stats.cache_misses.values()))
"""
    )
    command = [sys.executable, str(tmp_path / "loops.py")]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    ready = [process.stdout.readline() for process in processes if process.stdout]
    assert ready == ["ready\n"] * 3
    for process in processes:
        if process.stdin:
            process.stdin.write("\n")
            process.stdin.flush()
    answers = sorted(process.communicate()[0] for process in processes)
    assert answers == ["3 0 0\n", "3 0 0\n", "3 1 1\n"]
