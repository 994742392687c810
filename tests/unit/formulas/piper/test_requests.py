"""Any model is an input of Piper's planner, from the cost model's layers or from measured ones."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.formulas.piper.instance import read_instance, write_instance
from phaze.formulas.piper.layers import Configurations
from phaze.formulas.piper.planner import SearchOptions, plan
from phaze.formulas.piper.question import PiperQuestion, answer
from phaze.formulas.piper.requests import PiperRequest
from phaze.formulas.piper.timings import check_timings, read_timings, timings_text
from tests.unit.plan.search.exhaustive import SmallCase

DENSE = SmallCase("llama2-7b", 6, 2048, devices=16, hbm_gib=8.0, global_batch=16)
EXPERTS = SmallCase("mixtral-8x7b", 2, 2048, devices=8, hbm_gib=80.0, global_batch=8)


def request(case: SmallCase = DENSE) -> PiperRequest:
    """Return the request of a small case."""
    return PiperRequest(case.question("megatron"))


@pytest.fixture(scope="module")
def dense() -> PiperRequest:
    """Return a request whose memory makes layers recompute."""
    return request()


def test_the_written_input_is_the_same_instance(dense: PiperRequest, tmp_path: Path) -> None:
    run, path = dense.best, tmp_path / "input.json"
    assert run is not None
    write_instance(path, run.layers, run.cluster)
    stored = read_instance(path)
    layers = stored.layers()
    assert (layers.ids, layers.names, layers.tensors) == (
        run.layers.ids,
        run.layers.names,
        run.layers.tensors,
    )
    assert list(layers.options) == list(run.layers.options)
    for width, options in layers.options.items():
        for column in fields(Configurations):
            written = getattr(run.layers.options[width], column.name)
            assert np.array_equal(getattr(options, column.name), written)
    assert PiperQuestion().cluster(stored) == run.cluster
    assert answer(stored, PiperQuestion())["time_per_sample"] == run.plan.time_per_sample_s


def test_the_best_run_is_the_fastest_of_all_microbatch_sizes_and_rounds(dense: PiperRequest) -> None:
    times = {}
    for size in dense.microbatches:
        for rounds in dense.rounds(size):
            cluster = replace(dense.cluster(size), microbatches=DENSE.global_batch // size // rounds)
            planned = plan(dense.models[size], cluster)
            times[size, rounds] = planned.time_per_sample_s / size if planned else np.inf
    assert dense.best is not None
    assert len(times) == 5 + 4 + 3
    assert dense.best.sample_s == min(times.values()) == times[dense.best.microbatch, 1]
    # Accumulated rounds only lower the limit of the sum of degrees, and exchange gradients more often.
    for (size, _), time_s in times.items():
        assert time_s >= times[size, 1]


def test_configurations_are_widths_by_splits_by_recompute_options() -> None:
    rows = request(EXPERTS).timings
    kinds = {(row.t, row.kind) for row in rows}
    assert kinds == {
        (1, "whole"),
        *((t, kind) for t in (2, 4, 8) for kind in ("tensor", "sequence", "expert")),
    }
    blocks = {
        (row.t, row.kind, row.recompute): row for row in rows if row.layer == "block" and row.microbatch == 1
    }
    for (t, kind, recompute), row in blocks.items():
        stored = blocks[t, kind, "none"]
        assert row.stash_bytes <= stored.stash_bytes
        assert row.forward_s == stored.forward_s
        assert row.backward_s >= stored.backward_s
        if recompute == "full":
            assert row.backward_s == pytest.approx(stored.backward_s + stored.forward_s)
        if kind == "sequence":
            assert row.stash_bytes <= blocks[t, "tensor", recompute].stash_bytes


def test_surpassed_configurations_are_in_no_fastest_plan(
    dense: PiperRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = SearchOptions(exact_knapsack=True)
    useful = dense.models[1]
    monkeypatch.setattr("phaze.formulas.piper.requests.LayerConfiguration.surpasses", lambda *_: False)
    complete = request().models[1]
    assert any(len(complete.options[t].names) > len(useful.options[t].names) for t in useful.options)
    times = [plan(layers, dense.cluster(1), exact) for layers in (useful, complete)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].time_per_sample_s == pytest.approx(times[1].time_per_sample_s, rel=1e-12)


def test_a_plan_of_mixed_configurations_has_the_price_of_its_layers() -> None:
    planner = request(replace(DENSE, hbm_gib=2.0))
    run = planner.best
    assert run is not None
    priced = planner.plan(run)
    names = [run.layers.options[stage.layout.tp].names for stage in run.plan.stages]
    recomputed = [
        sum("recompute" in names[s][c] for c in stage.configurations)
        for s, stage in enumerate(run.plan.stages)
    ]
    assert any(recomputed)
    for stage, planned, count in zip(priced.stages, run.plan.stages, recomputed, strict=True):
        assert (stage.recompute_s > 0) == (count > 0)
        options = run.layers.options[planned.layout.tp]
        chosen = list(planned.configurations)
        assert stage.compute_s >= options.time_s[chosen].sum() * (1 - 1e-9)
        assert stage.stash_bytes == pytest.approx(options.stash_bytes[chosen].sum())
        assert stage.pieces == sum(0 < v <= DENSE.layers for v in planned.layers)
        assert stage.weight_bytes == pytest.approx(options.weight_bytes[chosen].sum())


def test_measured_layers_that_are_the_cost_models_give_the_same_plan(
    dense: PiperRequest, tmp_path: Path
) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(timings_text(dense.timings))
    rows = read_timings(path)
    assert rows == dense.timings
    check_timings(rows, dense, path)
    measured = PiperRequest(dense.question, rows)
    assert measured.best is not None
    assert dense.best is not None
    assert measured.best.plan == dense.best.plan
    # A layer that takes twice as long at every width makes the plan slower, by at most a factor of two.
    slower = [row.model_copy(update={"forward_s": 2 * row.forward_s}) for row in rows]
    slow = PiperRequest(dense.question, tuple(slower)).best
    assert slow is not None
    assert dense.best.sample_s < slow.sample_s <= 2 * dense.best.sample_s


HEAD = "layer,microbatch,t,recompute,kind,forward_s,backward_s,bytes\n"
ROW = "embedding,1,1,none,whole,1e-3,2e-3,0\n"
MISTAKES = {
    "layer,t,recompute,kind,forward_s,backward_s\n": r"layers.csv: lacks columns bytes; columns are layer, ",
    HEAD.replace("kind", "sort"): r"layers.csv: lacks columns kind; ",
    HEAD: r"layers.csv: has no rows; give a row ",
    HEAD
    + ROW.replace("2e-3", "-2e-3"): r"layers.csv: row 1: backward_s: .* greater than or equal to 0.*-0.002",
    HEAD + ROW.replace("2e-3", ""): r"layers.csv: row 1: backward_s: .*(missing|required)",
    HEAD + ROW.replace("2e-3", "fast"): r"layers.csv: row 1: backward_s: .*number.*fast",
    HEAD + ROW.replace("whole", "rows"): r"layers.csv: row 1: kind: .*'whole', 'tensor', 'sequence'.*rows",
    HEAD
    + ROW.replace(
        "whole", "tensor"
    ): r"layers.csv: row 1: kind: must be whole on t = 1 devices, got 'tensor'",
    HEAD
    + ROW.replace("embedding", "embed"): r"row 1: layer: 'embed' is not a layer of .*: embedding, block, h",
    HEAD + ROW.replace("none", "some"): r"row 1: recompute: must be one of none, full, .* got 'some'",
    HEAD + ROW.replace("1,1,none", "1,3,none"): r"row 1: t: must be one of 1, 2, 4, 8, .* got 3",
    HEAD + ROW.replace("1,1,none", "3,1,none"): r"row 1: microbatch: must divide the batch of 16, got 3",
    HEAD + ROW + ROW: r"row 2: repeats layer, microbatch, t, recompute and kind of an earlier row",
    HEAD
    + ROW: r"layers.csv: no row for layer block, head with microbatch 1; --write-layers FILE writes rows",
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_rows_that_cannot_be_used_are_named(text: str, dense: PiperRequest, tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(text)
    with pytest.raises(PhazeError, match=MISTAKES[text]):
        check_timings(read_timings(path), dense, path)
