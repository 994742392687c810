"""A layout has groups in Megatron's rank order, a key of the fields that change a shard, and one
validation.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.layout import MODULES, Axis, Group, Layout, load_of, recompute_of

WIDTH = st.sampled_from([1, 2, 3, 4, 8])
LAYOUTS = st.builds(
    Layout, tp=WIDTH, cp=WIDTH, ep=WIDTH, etp=WIDTH, pp=WIDTH, vp=WIDTH, dp=WIDTH, microbatch=WIDTH,
    sequence_parallel=st.booleans(), cp_kind=st.sampled_from(["all_gather", "p2p", "a2a", "a2a+p2p:2"]),
    load=st.sampled_from(["balanced", "natural", "1.25", "power_law_1.2"]),
    precision=st.sampled_from(["half", "mixed", "single"]),
)  # fmt: skip
DENSE: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
EXPERTS: tuple[Axis, ...] = ("etp", "ep", "edp", "pp")


def members(layout: Layout, axis: Axis, rank: int) -> set[int]:
    group = layout.group(axis)
    first = rank - rank // group.stride % group.ranks * group.stride
    return {first + i * group.stride for i in range(group.ranks)}


def test_the_ranks_of_sixteen_devices_are_those_of_megatron() -> None:
    """Groups from Megatron-Core's documentation of parallel_state for tp 2, pp 4, dp 2."""
    layout = Layout(tp=2, pp=4, dp=2)
    assert members(layout, "tp", 0) == {0, 1}
    assert members(layout, "dp", 0) == {0, 2}
    assert members(layout, "dp", 5) == {5, 7}
    assert members(layout, "pp", 0) == {0, 4, 8, 12}
    assert members(layout, "pp", 3) == {3, 7, 11, 15}
    layout = Layout(tp=2, cp=4, cp_kind="a2a+p2p:2")  # `create_hierarchical_groups`
    assert members(layout, "cp-heads", 0) == {0, 2}
    assert members(layout, "cp-ring", 2) == {2, 6}


def test_replicas_are_groups_of_neighbours_that_shard_states() -> None:
    """Groups of Megatron-Core's partial distributed optimizer, of neighbours on the dp-cp axis."""
    layout = Layout(tp=2, cp=2, ep=4, dp=8, sequence_parallel=True, zero=1, replicate=4)
    assert layout.sharding("dp-cp") == (Group(4, 2), Group(4, 8))
    assert layout.sharding("edp") == (Group(2, 4), Group(4, 8))
    assert (layout.shards, layout.expert_shards) == (4, 2)


@given(LAYOUTS)
def test_groups_of_all_axes_reach_every_device_once(layout: Layout) -> None:
    for axes in (DENSE, EXPERTS):
        if axes is EXPERTS and layout.tp * layout.cp * layout.dp % (layout.etp * layout.ep):
            continue
        reached = {0}
        for axis in axes:
            reached = {member for rank in reached for member in members(layout, axis, rank)}
        assert reached == set(range(layout.devices))


@given(LAYOUTS)
def test_a_key_stands_for_what_changes_a_slice(layout: Layout) -> None:
    parsed = Layout.of_key(layout.key)
    assert parsed.key == layout.key
    assert replace(layout, pp=7, vp=2, dp=5, zero=3, recompute="full").key == layout.key
    assert replace(layout, cp=layout.cp + 1).key != layout.key


def test_axes_of_width_one_are_not_in_the_key() -> None:
    assert Layout(tp=4, microbatch=2).key == "tp4-b2"
    assert Layout(tp=4, cp=2, sequence_parallel=True).key == "tp4-cp2-sp-b1"
    assert Layout(sequence_parallel=True).key == "tp1-b1"
    assert Layout(cp_kind="p2p").key == "tp1-b1"
    assert Layout(cp=4, cp_kind="a2a+p2p:2", ep=4, load="1.25").key == "tp1-cp4-a2a+p2p2-ep4-load1.25-b1"


def test_loads_have_one_spelling_which_keys_hold() -> None:
    assert [load_of(text) for text in ("1", "1.0", "Balanced")] == ["balanced"] * 3
    for load in (load_of("1.250"), "natural", "power_law_1.01", "max_vio_0.72"):
        layout = Layout(ep=4, load=load)
        assert f"load{load}-" in layout.key
        assert Layout.of_key(layout.key) == layout
    for word in ("0", "-1", "inf", "power_law_1", "max_vio_"):
        with pytest.raises(PhazeError, match="load must be balanced, natural, a factor > 0, power_law_x"):
            load_of(word)


def test_recomputation_by_modules_is_one_word_in_one_order() -> None:
    assert recompute_of("moe_act + core_attn+moe_act") == "core_attn+moe_act"
    assert [recompute_of(word) for word in ("none", "full", "selective")] == ["none", "full", "selective"]
    assert Layout(recompute="core_attn+moe").modules == {"core_attn", "moe"}
    assert all(not Layout(recompute=word).modules for word in ("none", "full", "selective"))
    assert recompute_of("+".join(reversed(MODULES))) == "+".join(MODULES)


@pytest.mark.parametrize("key", ["", "t4-b2", "tp4", "tp4-b2-", "tp-b1", "b1-tp4"])
def test_another_word_is_no_key(key: str) -> None:
    with pytest.raises(PhazeError, match="layout: must be a key such as tp4-b2"):
        Layout.of_key(key)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(tp=0), "tp must be >= 1, got 0"),
        (Layout(ep=4, dp=2), "ep [*] etp must divide tp [*] cp [*] dp 2, got 4"),
        (Layout(cp=2, cp_kind="ring"), "cp_kind must be one of all_gather, p2p, a2a, a2a[+]p2p:k, got ring"),
        (Layout(cp=6, cp_kind="a2a+p2p:4"), "a2a[+]p2p:k must have 1 < k < cp 6 that divides it, got .*:4"),
        (Layout(recompute="some"), "recompute must be one of none, full, selective, or of .* got some"),
        (Layout(recompute="moe+mlp"), "recompute must be mlp[+]moe in order, got moe[+]mlp"),
        (Layout(load="0"), "load must be balanced, natural, a factor > 0, .*, got 0"),
        (Layout(tp=2, ep=2), "sequence_parallel must be true with ep 2 and tp 2, got false"),
        (Layout(vp=2), "pp must be >= 2 with vp 2, got 1"),
        (Layout(tp=2, dp=3), "tp [*] pp [*] dp must be gpus 8, got 6"),
        (Layout(cp=2, dp=3), "tp [*] cp [*] pp [*] dp must be gpus 8, got 6"),
        (Layout(tp=2, dp=4, microbatch=5), "microbatch [*] dp must divide global_batch 64, got 20"),
    ],
)
def test_fields_that_disagree_are_named(layout: Layout, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        layout.check(devices=8, global_batch=64)


def test_a_layout_that_agrees_passes() -> None:
    Layout(tp=2, cp=2, ep=4, dp=2, pp=2, vp=3, sequence_parallel=True).check(devices=16, global_batch=64)
