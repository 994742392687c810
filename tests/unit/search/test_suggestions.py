"""A search with the same observations is read from the cache, and any other is run."""

from pathlib import Path

import pandas as pd
import pytest

import phaze.search.suggestions
from phaze.base.store import Store
from phaze.search.hysteresis import Evaluate
from phaze.search.suggestions import suggested_again

CHIPS = pd.DataFrame(
    {name: [1, 2, 4, 8] for name in ("num_tc", "num_vc", "pe_x", "pe_y", "glb_bytes")}
    | {"architecture": ["a", "b", "c", "d"]}
)


def evaluation(samples: dict[str, float]) -> Evaluate:
    """Return an evaluation by look-up."""
    return lambda rows: pd.DataFrame(
        {"samples_per_s": rows["architecture"].map(samples).to_numpy(), "hbm_gib": 32.0},
        index=rows["architecture"],
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds of the searches that run; each looks at three architectures, the fourth first."""
    seeds: list[int] = []

    def search(_: pd.DataFrame, evaluate: Evaluate, seed: int, *__: int) -> list[int]:
        evaluate(CHIPS.iloc[[3]])
        seeds.append(seed)
        return [3, 0, 1]

    monkeypatch.setattr(phaze.search.suggestions, "suggested", search)
    return seeds


def test_a_search_is_made_once_for_what_it_is_told(tmp_path: Path, made: list[int]) -> None:
    """Another throughput of an observed architecture, another seed or limit runs it again; other throughputs
    do not.
    """
    samples = {"a": 0.1 + 0.2, "b": 2.0, "c": 3.0, "d": 4.0}
    for _ in range(2):
        with Store(tmp_path / "searches", "code") as store:
            assert suggested_again(store, CHIPS, evaluation(samples), 0, 10, 20) == [3, 0, 1]

    def search(*asked: object) -> list[int]:
        return suggested_again(Store(tmp_path / "searches", "code"), *asked)  # type: ignore[arg-type]

    assert search(CHIPS, evaluation(samples | {"c": 9.0}), 0, 10, 20) == [3, 0, 1]
    assert made == [0]
    search(CHIPS, evaluation(samples | {"a": 0.3}), 0, 10, 20)
    search(CHIPS, evaluation(samples), 1, 10, 20)
    search(CHIPS, evaluation(samples), 0, 10, 21)
    search(CHIPS.assign(pe_x=[1, 2, 4, 16]), evaluation(samples), 0, 10, 20)
    assert made == [0, 0, 1, 0, 0]
