"""Answers are computed once by the same code, and files are verified."""

import json
from math import inf, nan
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.base.store import Plain, Store

VALUES: list[Plain] = [0.1 + 0.2, 5e-324, -0.0, inf, -inf, 2**60, True, None, "ℓ", [1, [2.5]], {"a": [0.1]}]


class Asking:
    """Job that asks for squares of numbers, and records which of them it computes."""

    def __init__(self, folder: Path | None, code: str = "code") -> None:
        self.store = Store(folder, code)
        self.made: list[int] = []

    def ask(self, *numbers: int, about: str = "") -> list[int]:
        """Return the squares."""

        def make(places: list[int]) -> list[int]:
            self.made += [numbers[k] for k in places]
            return [numbers[k] ** 2 for k in places]

        return self.store.each(numbers, make, about=about)

    def end(self) -> None:
        """End like a job that owns its folder."""
        with self.store:
            pass


def test_what_is_read_is_what_was_made(tmp_path: Path) -> None:
    """Every bit of a float, and infinity; tuples are returned as lists from the start."""
    for _ in range(2):
        store = Store(tmp_path / "a/b", "code")
        answers = [store.of(str(k), lambda v=value: v) for k, value in enumerate(VALUES)]
        assert repr(answers) == repr(VALUES)
        assert repr(store.of("nan", lambda: nan)) == "nan"
        assert store.of("tuple", lambda: (1, (2.0,))) == [1, [2.0]]


def test_only_what_is_not_known_is_made_and_equal_questions_once(tmp_path: Path) -> None:
    """Within a job, in the next one, and in a concurrent job; each may add to the folder."""
    first, beside, third = Asking(tmp_path), Asking(tmp_path), Asking(tmp_path)
    for _ in range(2):
        assert first.ask(3, 2, 3) == [9, 4, 9]
        assert first.made == [3, 2]
    assert beside.ask(2, 7) == [4, 49]
    assert beside.made == [7]
    assert third.ask(1, 2, 5, 3, 5, 7) == [1, 4, 25, 9, 25, 49]
    assert third.made == [1, 5]
    assert third.ask(2, about="another thing") == [4]
    assert third.made == [1, 5, 2]


def test_equal_answers_are_equal_files(tmp_path: Path) -> None:
    """A file does not depend on when or by whom it was written."""
    for folder in ("a", "b"):
        Asking(tmp_path / folder).ask(1, 2)
    files, other = (list((tmp_path / folder).rglob("*.json")) for folder in ("a", "b"))
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in other]
    assert len(files) == 1


def test_without_a_folder_answers_last_as_long_as_the_store() -> None:
    store = Store()
    assert [store.of("a", lambda: 1), store.of("a", lambda: 2), Store().of("a", lambda: 3)] == [1, 1, 3]


def test_a_job_that_owns_its_folder_leaves_nothing_that_it_did_not_ask_for(tmp_path: Path) -> None:
    """A file that was used in part stays complete."""
    job = Asking(tmp_path)
    job.ask(1, 2)
    job.ask(3)
    job.ask(4, about="another thing")
    second = Asking(tmp_path)
    second.ask(2)
    second.end()
    after = Asking(tmp_path)
    after.ask(1, 2, 3)
    after.ask(4, about="another thing")
    assert after.made == [3, 4]


def test_other_code_knows_nothing(tmp_path: Path) -> None:
    Asking(tmp_path).ask(1, 2)
    other = Asking(tmp_path, "other")
    assert other.ask(1) == [1]
    assert other.made == [1]
    other.end()
    back = Asking(tmp_path)
    back.ask(1)
    assert back.made == [1]


def test_work_that_fails_leaves_what_is_there(tmp_path: Path) -> None:
    """Results computed before the failure stay as well."""
    Asking(tmp_path).ask(1, 2)

    def fail() -> None:
        with Store(tmp_path, "code") as store:
            store.of(3, lambda: 9)
            raise PhazeError("no")

    with pytest.raises(PhazeError):
        fail()
    after = Asking(tmp_path)
    after.ask(1, 2)
    assert after.made == []
    assert Store(tmp_path, "code").of(3, lambda: 10) == 9


def test_what_no_longer_holds_is_made_again_and_what_does_not_last_is_not_written(tmp_path: Path) -> None:
    assert Store(tmp_path).of("a", lambda: 1) == 1
    assert Store(tmp_path).of("a", lambda: 2, holds=lambda answer: answer == 1) == 1
    assert Store(tmp_path).of("a", lambda: 2, holds=lambda answer: answer == 2) == 2
    assert Store(tmp_path).of("a", lambda: 3) == 2
    store = Store(tmp_path)
    assert [store.of("b", lambda k=k: k, lasts=lambda fresh: fresh > 1) for k in (1, 2)] == [1, 1]
    assert Store(tmp_path).of("b", lambda: 2) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"answers": {}}', "[1, 2]", "\xff", "wrong", "half"]
)
def test_a_file_that_cannot_be_read_counts_as_absent(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So does a file with a changed answer; it is written again, with a warning."""
    Asking(tmp_path).ask(1, 2)
    (path,) = tmp_path.rglob("*.json")
    text = path.read_text()
    document = json.loads(text)
    document["answers"] = dict.fromkeys(document["answers"], 7)
    damaged = {"wrong": json.dumps(document), "half": text[: len(text) // 2]}
    path.write_text(damaged.get(content, content), encoding="latin-1")
    second = Asking(tmp_path)
    assert second.ask(1, 2) == [1, 4]
    assert second.made == [1, 2]
    assert str(path) in caplog.text
    after = Asking(tmp_path)
    after.ask(1, 2)
    assert after.made == []
