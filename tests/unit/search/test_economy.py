"""No placement takes less energy than the bound, and the bound is tight if few choices are open."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.random import Generator

from phaze.base.arrays import Floats
from phaze.formulas.flushing import Chain, Setting, room
from phaze.formulas.phaze.chains import Runs, possible_depths
from phaze.formulas.phaze.energy import (
    Batch,
    LayerEnergy,
    Rates,
    dynamic_j,
    ring_bytes,
    sample_j,
    sent_bytes,
)
from phaze.formulas.phaze.flush import Placement, place_chain
from phaze.layout import Layout
from phaze.search.economy import Least, least_sample_j
from phaze.tables.columns import ENERGIES
from tests.unit.formulas.phaze.test_chains import random_latencies, random_runs, random_setting

PARTS = (*ENERGIES, "leakage")
RATES = Rates(link_j_per_byte=0.01, leakage_w_per_um2=0.5)


def joules(
    runs: Runs, work: LayerEnergy, placement: Placement, setting: Setting, area: float, samples: int
) -> float:
    """Return joules per sample of a placement, microbatches of that many samples."""
    starts, devices = list(placement.starts), np.array(placement.devices)
    ends = np.repeat(runs.output_bytes, runs.counts)[np.array(starts[1:], dtype=int) - 1]
    gradients = np.add.reduceat(np.repeat(runs.weight_bytes, runs.counts), starts)
    batch = Batch(Layout(microbatch=samples), setting.microbatches * samples)
    parts = sample_j(
        dynamic_j(runs, work, placement.layout, starts[-1], setting.recompute),
        sent_bytes(ends, devices),
        ring_bytes(gradients, devices, placement.layout),
        area * placement.devices_used * placement.time_s,
        batch,
        RATES,
    )
    assert len(parts) == len(PARTS)
    return float(parts.sum())


def bound(
    runs: Runs,
    seconds: tuple[Floats, Floats],
    spent: tuple[Floats, Floats],
    times: tuple[Floats, Floats],
    area: Floats,
    tensor: int,
    setting: Setting,
    samples: int,
) -> Floats:
    batch = Batch(Layout(tp=tensor, microbatch=samples), setting.microbatches * samples)
    watts = RATES.leakage_w_per_um2 * area
    depths = possible_depths(runs, Layout(tp=tensor), setting)
    return least_sample_j(runs, Least(*seconds, *spent), times, watts, depths, setting, batch, RATES)


def random_case(rng: Generator) -> tuple[Runs, int, Setting]:
    tensor = int(rng.choice([1, 2, 4]))
    counts = (1, int(rng.integers(1, 9)), 1) if rng.random() < 0.7 else tuple(rng.integers(1, 4, 2).tolist())
    runs = random_runs(rng, counts, tensor)
    return runs, tensor, random_setting(rng, runs)


@pytest.mark.parametrize("seed", range(150))
def test_no_best_placement_takes_less_energy(seed: int) -> None:
    """Latencies known exactly or by bounds, any TMP width, memory, schedule and recomputation."""
    rng = np.random.default_rng(seed)
    runs, tensor, setting = random_case(rng)
    forward, backward = random_latencies(rng, len(runs.counts))
    work = rng.random((2, len(forward), len(runs.counts), len(ENERGIES)))
    area, samples = rng.random(len(forward)), int(rng.integers(1, 4))
    slack = rng.choice([1.0, 0.9])
    placements = [
        place_chain(runs.chain(f, b), Layout(tp=tensor), setting)
        for f, b in zip(forward, backward, strict=True)
    ]
    exact = np.array([p.time_s if isinstance(p, Placement) else np.inf for p in placements])
    least = bound(
        runs, (slack * forward, slack * backward), tuple(work.sum(axis=-1)), (slack * exact, exact / slack),
        area, tensor, setting, samples,
    )  # fmt: skip
    for a, placement in enumerate(placements):
        if isinstance(placement, Placement):
            found = joules(runs, LayerEnergy(*work[:, a]), placement, setting, area[a], samples)
            assert 0 < least[a] <= found * (1 + 1e-9)
        else:
            assert np.isinf(least[a])


def test_the_bound_is_exact_for_one_stage_on_every_device() -> None:
    """With one device there is one placement, and no communication."""
    rng = np.random.default_rng(1)
    runs = random_runs(rng, (1, 4, 1), 1)
    setting = Setting(devices=1, microbatches=6, bandwidth_bytes_per_s=10.0, memory_bytes=1e9)
    forward, backward = rng.random((2, 3, 3))
    work = rng.random((2, 3, 3, len(ENERGIES)))
    placements = [
        place_chain(runs.chain(f, b), Layout(tp=1), setting) for f, b in zip(forward, backward, strict=True)
    ]
    times = np.array([placement.time_s for placement in placements if isinstance(placement, Placement)])
    area = np.array([1.0, 2.0, 3.0])
    least = bound(runs, (forward, backward), tuple(work.sum(axis=-1)), (times, times), area, 1, setting, 2)
    found = [
        joules(runs, LayerEnergy(*work[:, a]), placement, setting, area[a], 2)
        for a, placement in enumerate(placements)
        if isinstance(placement, Placement)
    ]
    assert least == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_depths_are_possible_where_some_cut_fits(seed: int) -> None:
    """All placements have a feasible depth with at least its devices; the last stage starts late enough."""
    rng = np.random.default_rng(seed)
    runs, tensor, setting = random_case(rng)
    depths = possible_depths(runs, Layout(tp=tensor), setting)
    chain = runs.chain(*rng.random((2, len(runs.counts))))
    found = place_chain(chain, Layout(tp=tensor), setting)
    if setting.schedule == "1f1b":
        assert isinstance(found, Placement) == bool(depths.devices.any())
    if isinstance(found, Placement):
        assert 0 < depths.devices[found.stages] <= sum(found.devices)
        assert found.starts[-1] >= depths.last_start
    ample = replace(setting, memory_bytes=1e12)
    assert possible_depths(runs, Layout(tp=tensor), ample).last_start == 0
    assert last_stage_fits(chain, setting, depths.last_start)
    assert not last_stage_fits(chain, setting, depths.last_start - 1)


def last_stage_fits(chain: Chain, setting: Setting, start: int) -> bool:
    """Return whether the stage from there to the end fits, with the fewest possible microbatches."""
    if start < 0 or start >= len(chain):
        return start >= len(chain)
    widest = min(setting.microbatches, setting.devices)
    return bool(room(chain.footprints, setting, -(-setting.microbatches // widest)).last_fits[start])
