"""Memory is affine in the microbatches in flight (Piper, Section 3.5 and Appendix A)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phaze.base.arrays import Floats
from phaze.plan.piper.chain import Affine, Scheme, Sizes, affine_memory
from phaze.plan.piper.instance import Configuration, read_instance
from phaze.plan.piper.layers import in_flight

FIGURE_5 = {
    # d, s and the microbatches at work, a dot where the device waits; a microbatch passes twice.
    "stage 1, device 1": (3, 6, "1 1 1 . . . 4 4 4 1 1 1 7 7 7 4 4 4 10 10 10 7 7 7"),
    "stage 1, device 2": (3, 6, ". . 2 2 2 . . . 5 5 5 2 2 2 8 8 8 5 5 5 11 11 11 8"),
    "stage 1, device 3": (3, 6, ". . . . 3 3 3 . . . 6 6 6 3 3 3 9 9 9 6 6 6 12 12"),
    "stage 2, device 4": (1, 3, "1 . 2 . 3 1 4 2 5 3 6 4 7 5 8 6 9 7 10 8 11"),
    "stage 3, device 5": (1, 2, "1 . 2 1 3 2 4 3 5 4 6 5 7 6 8 7 9 8 10 9"),
    "stage 4, device 6": (1, 1, "1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10"),
}
"""The schedule of the paper's Figure 5 as far as its rows are printed."""


def most_waiting(row: str, cells: int) -> int:
    """Return the most microbatches between the begin of their forward and the end of their backward pass."""
    seen: dict[str, int] = {}
    most = 0
    for microbatch in row.replace(".", "").split():
        seen[microbatch] = seen.get(microbatch, 0) + 1
        most = max(most, sum(times <= 2 * cells for times in seen.values()))
        seen = {one: times for one, times in seen.items() if times < 2 * cells}
    return most


@pytest.mark.parametrize("device", FIGURE_5)
def test_as_many_microbatches_wait_as_the_papers_schedule_shows(device: str) -> None:
    """A pass takes three cells in the first stage and one in the others."""
    data, degree, row = FIGURE_5[device]
    assert in_flight(degree, data) == most_waiting(row, 3 if "stage 1" in device else 1)


def test_degrees_of_the_figure_sum_up_from_the_end() -> None:
    data = [3, 1, 1, 1]
    assert [in_flight(sum(data[i:]), data[i]) for i in range(4)] == [2, 3, 2, 1]


def bytes_with(memory: Affine, microbatches: int) -> Floats:
    return memory.stash_bytes * microbatches + memory.fixed_bytes


SIZES = Sizes(weight_bytes=100.0, rest_bytes=30.0, activation_bytes=50.0, input_bytes=8.0)


@pytest.mark.parametrize(
    ("scheme", "recompute", "stash", "fixed"),
    [
        ("pipedream", False, 100 + 50, 30),
        ("pipedream", True, 100 + 8, 30 + 42),
        ("pipedream-2bw", False, 50, 2 * 100 + 30),
        ("pipedream-2bw", True, 8, 2 * 100 + 30 + 42),
    ],
)
def test_what_each_scheme_keeps(scheme: Scheme, recompute: bool, stash: float, fixed: float) -> None:
    found = affine_memory(SIZES, scheme, recompute=recompute)
    assert (float(found.stash_bytes), float(found.fixed_bytes)) == (stash, fixed)
    assert float(bytes_with(found, 3)) == 3 * stash + fixed


@pytest.mark.parametrize("scheme", ["pipedream", "pipedream-2bw"])
def test_recomputing_costs_nothing_with_one_microbatch_and_saves_the_rest_with_each_more(
    scheme: Scheme,
) -> None:
    plain, again = (affine_memory(SIZES, scheme, recompute=recompute) for recompute in (False, True))
    saved = [float(bytes_with(plain, m) - bytes_with(again, m)) for m in (1, 2, 3)]
    assert saved == [0, 42, 84]


@pytest.mark.parametrize("recompute", [False, True])
def test_the_schemes_differ_by_the_versions_of_the_weights(recompute: bool) -> None:
    """PipeDream keeps one for each microbatch in flight, PipeDream-2BW two."""
    schemes: tuple[Scheme, Scheme] = ("pipedream", "pipedream-2bw")
    one, two = (affine_memory(SIZES, scheme, recompute=recompute) for scheme in schemes)
    assert [float(bytes_with(one, m) - bytes_with(two, m)) for m in (1, 2, 3)] == [-100, 0, 100]


def test_layers_are_counted_at_once() -> None:
    many = Sizes(np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0]), np.array([1.0, 6.0]))
    found = affine_memory(many, "pipedream-2bw", recompute=True)
    assert found.stash_bytes.tolist() == [1, 6]
    assert found.fixed_bytes.tolist() == [2 + 3 + 4, 4 + 4 + 0]


def affine_of(configuration: Configuration) -> Affine:
    return Affine(np.array(configuration.memory_usage_a), np.array(configuration.memory_usage_b))


@pytest.mark.parity
@pytest.mark.parametrize(("name", "closeness"), [("gnmt", 1e-12), ("resnet", 1e-12), ("bert32a100", 2e-3)])
def test_the_authors_inputs_count_as_pipedream_2bw(name: str, closeness: float, shared_data: Path) -> None:
    """BERT's were profiled: recomputing layers keep up to 0.2 % more."""
    for node in read_instance(shared_data / "piper" / f"{name}.json").nodes:
        for plain, again in node.configurations.values():
            sizes = Sizes(plain.parameter_size, 0.0, plain.memory_usage_a, again.memory_usage_a)
            for recompute, given in ((False, plain), (True, again)):
                found = affine_memory(sizes, "pipedream-2bw", recompute=recompute)
                for microbatches in (1, 5):
                    expected = bytes_with(affine_of(given), microbatches)
                    assert bytes_with(found, microbatches) == pytest.approx(expected, rel=closeness)
