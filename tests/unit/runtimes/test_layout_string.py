"""Layout strings give the blocks of stages, as Megatron-Core reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.runtimes.layout_string import (
    blocks_of,
    by_cost,
    counted,
    cuts_of,
    entries_of,
    layout_string,
    stages_of,
    written,
)

ENDS = st.integers(0, 9)
MIDDLE = st.lists(st.sampled_from([1, 2, 2, 3, 4, 12]), max_size=40)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("E|(t|)*126L", (0, *(1,) * 126, 0)),
        ("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", (*(2,) * 35, 3, 2, 2, 2, 1)),  # Llama 3 70B of Megatron-Bridge
        ("Et|(tt|)*22L", (1, *(2,) * 22, 0)),
        ("E, t t | ttL", (2, 2)),
        ("Et*32L", (32,)),
        ("Ettt|(tt|t|)*2tL", (3, 2, 1, 2, 1, 1)),
    ],
)
def test_a_published_layout_string_is_read(text: str, blocks: tuple[int, ...]) -> None:
    assert blocks_of(text) == blocks
    assert blocks_of(layout_string(blocks)) == blocks


@given(ENDS, MIDDLE, ENDS, st.booleans())
def test_blocks_survive_their_layout_string(first: int, middle: list[int], last: int, alone: bool) -> None:
    blocks = (first,) if alone else (first, *middle, last)
    assert blocks_of(layout_string(blocks)) == blocks


@pytest.mark.parametrize(
    ("count", "text"),
    [(32, "Et|(tt|)*30mL"), (16, "Ettt|(t*4|)*14ttmL")],  # DeepSeek-V3 of Megatron-MoE-ModelZoo on H100
)
def test_deepseek_v3_is_divided_as_published(count: int, text: str) -> None:
    assert written(counted(61, 1, count)) == text
    assert stages_of(text) == counted(61, 1, count)


def test_counted_stages_differ_by_one_entry_and_keep_multi_token_prediction_together() -> None:
    for layers, mtp, count in ((43, 0, 8), (70, 0, 12), (78, 1, 16), (61, 2, 32), (5, 1, 6)):
        stages = counted(layers, mtp, count)
        assert stages_of(written(stages)) == stages
        assert "".join(stages) == "".join(entries_of((layers,), mtp))
        lengths = [len(stage) for stage in stages]
        assert max(lengths) - min(lengths) <= max(mtp, 1)
        assert [len(cut) for cut in cuts_of(stages)] == lengths


def test_layers_of_multi_token_prediction_have_a_stage() -> None:
    assert stages_of("Et*2|tt,m|L") == ("Ett", "ttm", "L")
    assert entries_of((2, 2), 1) == ("Ett", "ttmL")
    assert blocks_of("Et*3|(tt|)*29,m|L") == (3, *(2,) * 29, 1, 0)
    assert blocks_of(layout_string((3, 2, 3), mtp=2)) == (3, 2, 3)


def test_equal_stages_are_written_once() -> None:
    assert layout_string((3, *(4,) * 30, 2)) == "Ettt|(t*4|)*30ttL"
    assert layout_string((1, 2, 1)) == "Et|tt|tL"


@pytest.mark.parametrize(
    "text",
    ["", "tL", "Et", "E||L", "Et|L|tL", "EtL*3", "Etm|mL", "EtmtL", "((t|)*2)*2", "E(t|)*99999999999999L"],
)
def test_another_string_is_refused(text: str) -> None:
    with pytest.raises(PhazeError, match=r"layout string: (must have E for|repeats expand to more than)"):
        blocks_of(text)


@pytest.mark.parametrize(
    ("layers", "head_cost", "count", "blocks"),
    [
        (32, 2.0, 8, (5, 4, 4, 5, 4, 4, 4, 2)),  # nanotron's own example, a model of 8 billion parameters
        (16, 4.0, 2, (11, 5)),
        (16, 4.0, 4, (6, 5, 5, 0)),
        (4, 0.0, 1, (4,)),
    ],
)
def test_blocks_follow_their_cumulative_cost(
    layers: int, head_cost: float, count: int, blocks: tuple[int, ...]
) -> None:
    stages = by_cost(layers, head_cost, count)
    assert tuple(stage.count("t") for stage in stages) == blocks
    assert (stages[0][0], stages[-1][-1]) == ("E", "L")


@pytest.mark.parametrize("count", range(1, 13))
def test_no_stage_of_a_split_by_cost_is_empty(count: int) -> None:
    for head_cost in (0.0, 1.2, 4.0):
        stages = by_cost(16, head_cost, count)
        assert len(stages) == count
        assert all(stages)
        assert "".join(stages) == "E" + "t" * 16 + "L"


def test_a_split_by_cost_refuses_stages_that_nothing_is_left_for() -> None:
    """Two modules without cost follow the head at the cost of four blocks: with 16 stages it is in the
    13th.
    """
    with pytest.raises(PhazeError, match="pp must be at most 15 if stages are split by cost, got 16"):
        by_cost(16, 4.0, 16)
    assert len(by_cost(32, 2.2, 32)) == 32
