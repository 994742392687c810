"""What was asked before is not worked out again, by the same code and for as long as it is asked."""

import json
from math import inf, nan
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.tables.store import Plain, Recalled

VALUES: list[Plain] = [0.1 + 0.2, 5e-324, -0.0, inf, -inf, 2**60, True, None, "ℓ", [1, [2.5]], {"a": [0.1]}]


class Asking:
    """A job that asks for numbers, and notes which of them it works out."""

    def __init__(self, path: Path | None, code: str = "code") -> None:
        self.recalled = Recalled(path, code)
        self.made: list[int] = []

    def one(self, number: int) -> int:
        """Return the square."""
        self.made.append(number)
        return number**2

    def ask(self, *numbers: int) -> list[int]:
        """Return the squares, and end the job."""
        with self.recalled:
            return self.recalled.each(list(numbers), lambda at: [self.one(numbers[k]) for k in at])


def test_what_is_read_is_what_was_made(tmp_path: Path) -> None:
    """Every bit of a float, and infinity; a tuple is a list from the start."""
    for _ in range(2):
        with Recalled(tmp_path / "a/b.json", "code") as recalled:
            found = [recalled.of(str(k), lambda v=value: v) for k, value in enumerate(VALUES)]
            assert repr(found) == repr(VALUES)
            assert repr(recalled.of("nan", lambda: nan)) == "nan"
            assert recalled.of("tuple", lambda: (1, (2.0,))) == [1, [2.0]]


def test_only_what_is_not_known_is_made_and_equal_questions_once(tmp_path: Path) -> None:
    path = tmp_path / "squares.json"
    first = Asking(path)
    assert first.ask(3, 2, 3) == [9, 4, 9]
    assert first.made == [3, 2]
    more = Asking(path)
    assert more.ask(1, 2, 5, 3, 5) == [1, 4, 25, 9, 25]
    assert more.made == [1, 5]


def test_what_is_no_longer_asked_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "squares.json"
    Asking(path).ask(1, 2, 3)
    Asking(path).ask(2)
    again = Asking(path)
    again.ask(1, 2)
    assert again.made == [1]


def test_the_same_questions_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "squares.json"
    Asking(path).ask(1, 2)
    before = path.stat().st_mtime_ns
    Asking(path).ask(2, 1)
    assert path.stat().st_mtime_ns == before


def test_an_answer_that_no_longer_holds_is_made_again() -> None:
    recalled = Recalled()
    assert recalled.of("a", lambda: 1) == 1
    assert recalled.of("a", lambda: 2, lambda known: known == 1) == 1
    assert recalled.of("a", lambda: 2, lambda known: known == 2) == 2
    assert recalled.of("a", lambda: 3) == 2


def test_other_code_knows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "squares.json"
    Asking(path).ask(1, 2)
    other = Asking(path, "other")
    assert other.ask(1) == [1]
    assert other.made == [1]
    back = Asking(path)
    back.ask(1)
    assert back.made == [1]


def test_work_that_fails_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "squares.json"
    Asking(path).ask(1, 2)
    before = path.read_bytes()

    def fail() -> int:
        raise PhazeError("no")

    with pytest.raises(PhazeError), Recalled(path, "code") as recalled:
        recalled.of(3, fail)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"code": "code"}', "[1, 2]", "\xff", "wrong"]
)
def test_a_file_that_cannot_be_read_counts_as_absent(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So does one in which an answer was changed; it is written anew, and says so."""
    path = tmp_path / "squares.json"
    Asking(path).ask(1, 2)
    document = json.loads(path.read_text())
    document["answers"] = dict.fromkeys(document["answers"], 7)
    path.write_text(json.dumps(document) if content == "wrong" else content, encoding="latin-1")
    again = Asking(path)
    assert again.ask(1, 2) == [1, 4]
    assert again.made == [1, 2]
    assert str(path) in caplog.text
    after = Asking(path)
    after.ask(1, 2)
    assert after.made == []
