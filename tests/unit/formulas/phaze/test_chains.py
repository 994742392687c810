"""The best times of many architectures at once equal those of the dynamic program for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

from phaze.base.arrays import Floats
from phaze.cost.memory import Gradients
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze import chains
from phaze.formulas.phaze.chains import Runs, best_times
from phaze.formulas.phaze.flush import Placement, place_chain
from phaze.layout import Layout
from tests.unit.formulas.phaze import exhaustive
from tests.unit.formulas.phaze.examples import relaxed

ARCHITECTURES = 6


def random_runs(rng: Generator, counts: tuple[int, ...], tensor: int) -> Runs:
    """Return a chain of runs of any sizes, with layers that cannot be split and equal or zero transfers."""
    n = len(counts)
    weights = rng.integers(0, 40, n).astype(float)
    output = rng.integers(0, 20, n).astype(float)
    return Runs(
        counts=counts,
        weight_bytes=weights,
        static_bytes=2 * weights,
        activation_bytes=rng.integers(0, 30, n).astype(float),
        output_bytes=np.full(n, output[0]) if rng.random() < 0.4 else output,
        tensor_parallel=np.full(n, False) if tensor == 1 else (rng.random() < 0.5) | (rng.random(n) < 0.7),
    )


def random_latencies(rng: Generator, runs: int) -> tuple[Floats, Floats]:
    """Return latencies of several architectures; sometimes whole numbers, for ties."""
    forward = rng.random((ARCHITECTURES, runs)) * rng.choice([1.0, 10.0], runs)
    backward = 2 * rng.random((ARCHITECTURES, runs))
    return (np.round(forward), np.round(backward)) if rng.random() < 0.25 else (forward, backward)


def random_setting(rng: Generator, runs: Runs) -> Setting:
    total = float((runs.static_bytes + runs.activation_bytes)[runs.layers].sum())
    return Setting(
        devices=int(rng.integers(1, 60)),
        microbatches=int(rng.integers(1, 50)),
        bandwidth_bytes_per_s=float(rng.choice([5.0, 50.0, 1000.0])),
        memory_bytes=float(np.round(total * (0.05 + rng.random() * rng.choice([0.4, 1.0, 5.0])))),
        recompute=bool(rng.random() < 0.5),
        schedule="1f1b" if rng.random() < 0.7 else "gpipe",
        gradients="every-stage" if rng.random() < 0.5 else "first-stage",
        all_reduce_factor=float(rng.choice([2.0, 4.0])),
    )


def one_by_one(runs: Runs, forward: Floats, backward: Floats, tensor: int, setting: Setting) -> list[float]:
    """Return the best times of the dynamic program."""
    found = [
        place_chain(runs.chain(f, b), Layout(tp=tensor), setting, explain=False)
        for f, b in zip(forward, backward, strict=True)
    ]
    return [one.time_s if isinstance(one, Placement) else inf for one in found]


def embedding_blocks_head(rng: Generator, tensor: int) -> Runs:
    """Return equal blocks between an embedding and a head."""
    return random_runs(rng, (1, int(rng.integers(1, 14)), 1), tensor)


def random_sequence(rng: Generator, tensor: int) -> Runs:
    """Return runs of few kinds of layers in any order, some of them next to a run of the same kind."""
    each = random_runs(rng, (1,) * int(rng.integers(1, 4)), tensor)
    kinds = tuple(rng.integers(0, len(each.counts), rng.integers(1, 7)).tolist())
    return replace(each, counts=tuple(rng.integers(1, 4, len(kinds)).tolist()), kinds=kinds)


@pytest.mark.parametrize("draw", [embedding_blocks_head, random_sequence])
def test_any_sequence_of_layers_has_the_optimum_of_the_dynamic_program(
    draw: Callable[[Generator, int], Runs],
) -> None:
    for seed in range(150):
        rng = np.random.default_rng(seed)
        tensor = int(rng.choice([1, 2, 4]))
        runs = draw(rng, tensor)
        setting = random_setting(rng, runs)
        forward, backward = random_latencies(rng, len(runs.weight_bytes))
        found = best_times(runs, forward, backward, Layout(tp=tensor), [setting])[0]
        np.testing.assert_allclose(found, one_by_one(runs, forward, backward, tensor, setting), rtol=1e-12)


@pytest.mark.parametrize("gradients", get_args(Gradients))
def test_two_kinds_of_block_in_turns_have_the_best_of_all_cuts(gradients: Gradients) -> None:
    """Embedding, two alternating kinds of blocks, head, compared with every cut and data width."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        each = random_runs(rng, (1,) * 4, 2)
        runs = replace(each, counts=(1,) * 6, kinds=(0, 1, 2, 1, 2, 3))
        setting = replace(random_setting(rng, runs), gradients=gradients)
        forward, backward = random_latencies(rng, 4)
        found = best_times(runs, forward, backward, Layout(tp=2), [setting])[0]
        for a in range(ARCHITECTURES):
            chain = runs.chain(forward[a], backward[a])
            times = [
                exhaustive.time_s(chain, cut, data, setting)
                for cut in exhaustive.cuts(len(chain))
                for data in range(1, min(setting.devices, setting.microbatches) + 1)
                if exhaustive.fits(chain, cut, 2, data, setting)
            ]
            assert found[a] == pytest.approx(min(times, default=inf), rel=1e-12)


def test_kinds_that_are_told_apart_or_not_are_the_same_sequence() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        runs = random_sequence(rng, 2)
        kinds = np.array(runs.kinds)
        apart = Runs(
            runs.counts, *(value[kinds] for value in (
                runs.weight_bytes, runs.static_bytes, runs.activation_bytes, runs.output_bytes,
                runs.tensor_parallel,
            ))
        )  # fmt: skip
        setting = random_setting(rng, runs)
        forward, backward = random_latencies(rng, len(runs.weight_bytes))
        np.testing.assert_allclose(
            best_times(runs, forward, backward, Layout(tp=2), [setting]),
            best_times(apart, forward[:, kinds], backward[:, kinds], Layout(tp=2), [setting]),
            rtol=1e-12,
        )


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_of_realistic_size_has_it_too(tensor: int, recompute: bool) -> None:
    rng = np.random.default_rng(tensor)
    weights = np.array([1.2e9, 3.6e9, 1.2e9]) / tensor
    runs = Runs(
        counts=(1, 96, 1),
        weight_bytes=weights,
        static_bytes=2 * weights,
        activation_bytes=np.array([1e8, 8.5e8 / tensor, 2.5e8 / tensor]),
        output_bytes=np.full(3, 5e7),
        tensor_parallel=np.full(3, tensor > 1),
    )
    setting = Setting(1024, 4096, 2.0**32, 64 * 2.0**30, recompute)
    forward = np.array([1e-4, 6e-3, 2.5e-3]) * np.exp(rng.normal(0, 0.5, (ARCHITECTURES, 3)))
    found = best_times(runs, forward, 2 * forward, Layout(tp=tensor), [setting])[0]
    np.testing.assert_allclose(found, one_by_one(runs, forward, 2 * forward, tensor, setting), rtol=1e-12)


@given(st.integers(0, 10**6))
def test_more_memory_devices_or_bandwidth_or_shorter_latencies_are_never_slower(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = random_runs(rng, (1, int(rng.integers(1, 20)), 1), 2)
    setting = random_setting(rng, runs)
    forward, backward = random_latencies(rng, 3)
    before, relieved = best_times(runs, forward, backward, Layout(tp=2), [setting, relaxed(setting, rng)])
    shorter = best_times(runs, 0.9 * forward, 0.9 * backward, Layout(tp=2), [setting])[0]
    for after in (relieved, shorter):
        assert np.all((after <= before * (1 + 1e-12)) | np.isinf(before))


def test_an_architecture_has_the_same_time_whichever_others_are_asked_for() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        runs = random_sequence(rng, 1)
        setting = replace(random_setting(rng, runs), memory_bytes=1e9)
        forward, backward = rng.random((2, 50, len(runs.weight_bytes)))
        found = best_times(runs, forward, backward, Layout(tp=1), [setting])[0]
        alone = [
            best_times(runs, forward[a : a + 1], backward[a : a + 1], Layout(tp=1), [setting])[0, 0]
            for a in range(50)
        ]
        np.testing.assert_array_equal(found, alone)


def test_settings_in_which_the_same_stages_fit_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    runs = random_runs(rng, (1, 5, 1), 1)
    setting = replace(random_setting(rng, runs), memory_bytes=1e9, schedule="1f1b")
    calls: list[Setting] = []
    improve = chains._improve

    def counted(*arguments: object) -> None:
        calls.append(setting)
        improve(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(chains, "_improve", counted)
    same = replace(setting, memory_bytes=2e9)
    other = replace(setting, devices=setting.devices + 1)
    times = best_times(runs, *random_latencies(rng, 3), Layout(tp=1), [setting, same, other])
    assert len(calls) == 2
    np.testing.assert_array_equal(times[0], times[1])


def test_no_architectures_give_no_times() -> None:
    runs = random_runs(np.random.default_rng(0), (1, 3, 1), 1)
    setting = Setting(4, 4, 1.0, 1e9)
    times = best_times(runs, np.empty((0, 3)), np.empty((0, 3)), Layout(tp=1), [setting, setting])
    assert times.shape == (2, 0)
