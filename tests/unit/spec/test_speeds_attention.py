"""Speeds of attention kernels in user files."""

from __future__ import annotations

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.speeds.attention import AttentionKernel, AttentionPass


def test_a_number_stands_for_a_pass_that_has_only_a_share() -> None:
    kernel = AttentionKernel.parse({"forward": 0.6, "backward": {"share": 0.5, "block": 64}}, "x.yaml")
    assert kernel.forward == AttentionPass(share=0.6)
    assert kernel.backward == AttentionPass(share=0.5, block=64)
    assert AttentionKernel.parse({"forward": 0.6}, "x.yaml").backward is None


def test_head_dimensions_may_be_texts_as_json_has_them() -> None:
    kernel = AttentionKernel.parse({"forward": {"share": 0.6, "heads": {"64": 0.9}}}, "x.json")
    assert kernel.forward.heads == {64: 0.9}
    dumped = kernel.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    assert AttentionKernel.parse(dumped, "x.json") == kernel


@pytest.mark.parametrize("name", ["half_sequence", "other_heads"])
def test_fields_of_earlier_versions_say_what_replaces_them(name: str) -> None:
    fields = {"forward": 0.6, "backward": 0.5, name: 0.9}
    with pytest.raises(PhazeError, match=f"{name}: was removed; use the fields fill, tail and heads"):
        AttentionKernel.parse(fields, "x.yaml")
