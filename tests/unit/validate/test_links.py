"""Latency and bandwidth of links: recovered from simulated links, and measured between real processes."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.map.networks import read_topology
from phaze.validate.links import SIZES, RoundTrip, fit_postal, link_table
from phaze.validate.table import write_table
from tests.commands import assert_refused, torchrun


def simulated(latency_s: np.ndarray, bandwidth: np.ndarray, noise: float, seed: int) -> RoundTrip:
    """Round trips over links of known latency and bandwidth, with relative noise."""
    rng = np.random.default_rng(seed)

    def round_trip_s(source: int, target: int, sent: int, returned: int) -> float:
        there = latency_s[source, target] + sent / bandwidth[source, target]
        back = latency_s[target, source] + returned / bandwidth[target, source]
        return float((there + back) * (1 + noise * rng.uniform(-1, 1)))

    return round_trip_s


def test_links_of_known_latency_and_bandwidth_are_recovered_within_two_percent(tmp_path: Path) -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        latency_s, bandwidth = 10 ** rng.uniform(-6, -4, (4, 4)), 10 ** rng.uniform(8, 11, (4, 4))
        latency_s = np.sqrt(latency_s * latency_s.T)  # both directions wait equally long
        table = link_table(simulated(latency_s, bandwidth, 0.003, seed), 4)
        write_table(table, tmp_path / "links.csv")
        network = read_topology(tmp_path / "links.csv")
        apart = ~np.eye(4, dtype=bool)
        assert network.latency_s[apart] == pytest.approx(latency_s[apart], rel=0.02), seed
        assert network.bandwidth_bytes_per_s[apart] == pytest.approx(bandwidth[apart], rel=0.02), seed
        assert table["residual"].max() < 0.01


def test_of_two_latencies_the_mean_is_found_and_each_direction_has_its_bandwidth() -> None:
    latency_s, bandwidth = np.array([[0, 1e-5], [3e-5, 0]]), np.array([[0, 1e9], [4e9, 0]])
    np.fill_diagonal(bandwidth, 1.0)
    table = link_table(simulated(latency_s, bandwidth, 0.0, 0), 2)
    assert table["latency_s"].tolist() == pytest.approx([2e-5, 2e-5], rel=1e-3)
    assert table["bandwidth_bytes_per_s"].tolist() == pytest.approx([1e9, 4e9], rel=1e-3)


def test_a_link_whose_short_messages_were_disturbed_is_measured_again() -> None:
    """A delayed round trip of one byte would make times of other messages negative."""
    latency_s, bandwidth = np.full((2, 2), 1e-5), np.full((2, 2), 1e9)
    undisturbed, calls = simulated(latency_s, bandwidth, 0.0, 0), []

    def disturbed(source: int, target: int, sent: int, returned: int) -> float:
        calls.append(sent)
        return undisturbed(source, target, sent, returned) + (0.1 if len(calls) == 1 else 0.0)

    table = link_table(disturbed, 2)
    assert table["latency_s"].tolist() == pytest.approx([1e-5, 1e-5], rel=1e-3)
    assert len(calls) == 3 * (1 + len(SIZES))


def test_a_latency_below_zero_is_fitted_as_zero_and_shown_in_the_residual() -> None:
    times = [size / 1e9 * (0.5 if size < 10_000 else 1.0) for size in SIZES]
    fit = fit_postal(SIZES, times)
    assert fit.latency_s == 0.0
    assert fit.residual > 0.1


@pytest.mark.parametrize(
    ("times", "message"),
    [((1.0, -1.0), "times must be > 0, got -1 s"), ((2.0, 1e-9), "must grow with the size")],
)
def test_times_of_no_link_are_refused(times: tuple[float, ...], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        fit_postal((1, 10**9), times)


needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed; make runtimes has it"
)


@needs_torch
def test_outside_of_torchrun_links_are_not_measured(tmp_path: Path) -> None:
    assert_refused("--links times messages between processes", f"measure --links -o {tmp_path}/links.csv")


def test_a_table_of_links_is_a_csv(tmp_path: Path) -> None:
    assert_refused(r"links\.json: must end in \.csv", f"measure --links -o {tmp_path}/links.json")


@needs_torch
@pytest.mark.slow
def test_gloo_links_of_this_machine_become_a_topology(tmp_path: Path) -> None:
    out = tmp_path / "links.csv"
    printed = torchrun(3, "-m", "phaze", "measure", "--links", "-o", out)
    assert "6 links: latency" in printed
    table, network = pd.read_csv(out), read_topology(out)
    assert len(table) == 6
    assert network.devices == 3
    # Loopback of one machine: far above a kilobyte and below a terabyte per second.
    assert table["bandwidth_bytes_per_s"].between(1e6, 1e12).all()
