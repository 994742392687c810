"""Models of several kinds of blocks: their parameters are those that are published, to the unit."""

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.model import Model

PLAIN = {
    "name": "test", "positions": "rotary", "position_count": 4096, "activation": "silu", "gated": True,
    "norm": "rms_norm", "attention_bias": False, "feed_forward_bias": False, "tied_embeddings": False,
    "layers": 4, "hidden": 64, "heads": 4, "feed_forward": 128, "vocabulary": 256,
}  # fmt: skip
EXPERTS = {"count": 8, "per_token": 2, "width": 32}


def _model(**fields: object) -> Model:
    return Model.parse(PLAIN | fields, "test")


def test_a_pattern_gives_the_kinds_in_order() -> None:
    """Groups are repeated as a whole, and what follows itself is one run."""
    model = _model(layers=7, window={"size": 8}, pattern="attention-dense (window-dense*2 attention-dense)*2")
    assert model.runs == (
        ("attention-dense", 1), ("window-dense", 2), ("attention-dense", 1), ("window-dense", 2),
        ("attention-dense", 1),
    )  # fmt: skip
    assert list(model.blocks) == ["attention-dense", "window-dense"]
    assert model.distinct().runs == (("attention-dense", 1), ("window-dense", 1))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pattern": "attention-dense*3"}, "pattern must have layers 4 blocks, it has 3"),
        ({"pattern": "dense-attention*4"}, "at most one of attention, window"),
        ({"pattern": "((attention-dense))*4"}, "must be kinds such as"),
        ({"pattern": "attention-dense*4)"}, "must be kinds such as"),
        ({"pattern": "mamba*4"}, "mamba must be given"),
        ({"experts": EXPERTS, "pattern": "attention-dense*4"}, "experts is given, and no block"),
        ({"feed_forward": 0}, "feed_forward must be given"),
        ({"experts": EXPERTS | {"per_token": 9}}, "per_token 9 must be at most count 8"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], said: str) -> None:
    """The message says what is wrong, with what is allowed."""
    with pytest.raises(PhazeError, match=said.replace("(", r"\(")):
        _model(**fields)


def test_a_token_meets_only_its_experts() -> None:
    """Of eight experts two are active."""
    model = _model(experts=EXPERTS, feed_forward=0)
    assert model.parameters - model.active_parameters == 4 * 6 * 3 * 64 * 32


def test_windows_leave_less_to_attend_to() -> None:
    """A token at place i attends to min(i, w) tokens, chunks of w to those before it in its own."""
    model = _model(window={"size": 64}, chunk=64, pattern="attention-dense*2 window-dense chunk-dense")
    blocks = [model.blocks[kind].attention for kind in ("attention-dense", "window-dense", "chunk-dense")]
    reached = [one.attended(1024, causal=True) for one in blocks if one is not None]
    exact = sum(min(i, 64) for i in range(1024)) / 1024
    assert reached == pytest.approx([512, exact, 32], rel=0.002)
