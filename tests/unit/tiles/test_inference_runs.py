"""Inference as a setting of a point: prefill and decode, their work, caches and throughput."""

from __future__ import annotations

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.models import load_model_named
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.lowering import laid_out, model_layers
from phaze.tiles.on_tiles import TiledOutcome, outcomes

CHIP = load_tiled_machine("wafer").chip


def outcome(model: str, **settings: object) -> TiledOutcome:
    point = TiledPoint.parse(
        {"show": "table", "system": "wafer", "model": model, "batch": 40, "sequence": 256, **settings}, "x"
    )
    ((_, simulated),) = outcomes("x", point, load_model_named(model), CHIP)
    return simulated


def test_the_next_token_of_llama_has_its_flops_and_caches() -> None:
    samples, tokens = 3, 2048
    layers = model_layers(load_model_named("llama-3.1-8b"), tokens, Layout(microbatch=samples))
    shares = [
        operator.share  # type: ignore[union-attr]
        for name in layers.order
        for operator, _ in laid_out(layers.layers[name], Layout(microbatch=samples), tokens)
    ]
    # 32 layers with 8 heads of keys and of values, 128 wide, for every token of every sample.
    assert sum(share.stored or 0.0 for share in shares) == samples * tokens * 32 * 2 * 8 * 128
    weights = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336) + 128256 * 4096
    attention = 32 * 4 * 4096 * tokens
    assert sum(share.flops for share in shares) == samples * (2 * weights + attention)


def test_prefill_is_the_forward_pass_without_states() -> None:
    trained = outcome("llama-3.1-8b", recompute="never", dram="unlimited")
    prefill = outcome("llama-3.1-8b", inference="prefill")
    assert {kind.item() for kind in prefill.carried.timeline.jobs.kind} == {
        trained.carried.timeline.jobs.kind.min()
    }
    assert prefill.time_s < trained.time_s / 2
    assert prefill.dram_bytes < trained.dram_bytes / 4
    # Without set-up and drain, more than the batch over its time.
    assert prefill.samples_per_s > prefill.run.samples / prefill.time_s


def test_decode_is_bound_by_memory_and_longer_contexts_take_longer() -> None:
    short, long = (
        outcome("llama-3.1-8b", inference="decode", sequence=tokens, batch=1280) for tokens in (256, 4096)
    )
    assert long.time_s > short.time_s
    assert long.dram_bytes > short.dram_bytes
    assert short.row["bound_by"] == "dram"
    prefill = outcome("llama-3.1-8b", inference="prefill", sequence=256, batch=1280)
    assert short.time_s < prefill.time_s / 5


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("resnet-50", {"inference": "decode", "stages": 1, "tensor": [1], "batch": 6400}, "must be prefill"),
        (
            "t-18b",
            {"inference": "decode", "operators": "palm"},
            "operators: must be all for inference decode",
        ),
        ("t-18b", {"inference": "prefill", "chunks": 2, "schedule": "interleaved"}, "must have 1 chunk"),
    ],
)
def test_what_inference_cannot_have_is_refused(model: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        outcome(model, **settings)
