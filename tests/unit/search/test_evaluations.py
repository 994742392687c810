"""Evaluated architectures are cached by the inputs of their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from phaze.base.store import Plain, Store
from phaze.search.cosearch import evaluate_architectures, look_up_architectures, look_up_point
from tests.unit.search.test_cosearch import everything, subject, terms

NAMES = ["solves", "schedules", "placements", "stages"]
CHIPS = everything().iloc[5::24]
KEYS = (
    "layout",
    "architecture",
    "hbm_gib",
    "recompute",
    "planner",
    "stage",
    "layer",
    "direction",
    "operator",
)


class Counted(Store):
    """Store that records the evaluated architectures."""

    def __init__(self, folder: Path, code: str = "one") -> None:
        super().__init__(folder, code)
        self.evaluated: list[object] = []

    def each(self, asked: Sequence[Plain], make: Callable, **options: object) -> list:
        """Return the answers, and record the evaluated names."""

        def note(places: list[int]) -> object:
            self.evaluated += [asked[k][0] for k in places]
            return make(places)

        return super().each(asked, note, **options)


def look_up(store: Counted, chips: pd.DataFrame = CHIPS, **changes: object) -> dict[str, pd.DataFrame]:
    """Clear the records, and return the known results of architectures at the first point."""
    store.evaluated.clear()
    one = subject("wide")
    given = terms().model_copy(update={"evaluations": store, **changes})
    return look_up_point(one, one.points[0], chips, given, NAMES)


def test_what_is_read_is_what_was_evaluated(tmp_path: Path) -> None:
    """All tables of all points agree with an evaluation, computed and then read by a new store."""
    exact = evaluate_architectures(subject("wide"), CHIPS, terms())
    for _ in range(2):
        found = look_up_architectures(
            subject("wide"), CHIPS, terms().model_copy(update={"evaluations": Store(tmp_path)}), NAMES
        )
        for name in NAMES:
            keys = [key for key in KEYS if key in found[name]]
            one, other = (
                frame.sort_values(keys, ignore_index=True)[sorted(frame)]
                for frame in (found[name], getattr(exact, name))
            )
            pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_only_what_is_not_known_is_evaluated(tmp_path: Path) -> None:
    """Only new architectures are evaluated, in any order; each is cached."""
    store = Counted(tmp_path)
    look_up(store, CHIPS.iloc[:2])
    assert store.evaluated == list(CHIPS["architecture"][:2])
    found = look_up(store, CHIPS.iloc[::-1])
    assert set(store.evaluated) == set(CHIPS["architecture"][2:])
    assert set(found["placements"]["architecture"]) == set(CHIPS["architecture"])
    assert look_up(Counted(tmp_path)) is not None
    again = Counted(tmp_path)
    look_up(again)
    assert again.evaluated == []


def test_the_microbatches_of_a_study_do_not_matter_and_all_else_does(tmp_path: Path) -> None:
    """A point depends on its own microbatch only; cluster, memory, code and the architecture itself count."""
    look_up(Counted(tmp_path))
    more, less = (
        terms().training.model_copy(update={"microbatches": which, "hbm_gib": sizes})
        for which, sizes in (((1, 2, 4, 8), terms().training.hbm_gib), ((1,), (32.0,)))
    )
    slow = terms().scenario.model_copy(update={"hbm_bandwidth_bytes_per_s": 1e11})
    same, store = Counted(tmp_path), Counted(tmp_path)
    look_up(same, training=more)
    assert same.evaluated == []
    for change in ({"training": less}, {"scenario": slow}):
        look_up(store, **change)
        assert len(store.evaluated) == len(CHIPS)
    other = Counted(tmp_path, "another")
    look_up(other)
    assert len(other.evaluated) == len(CHIPS)
    larger = CHIPS.assign(glb_words_per_cycle=CHIPS["glb_words_per_cycle"] * 2)
    look_up(store, larger)
    assert len(store.evaluated) == len(CHIPS)
