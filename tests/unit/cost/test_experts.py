"""Expert products and complete expert networks, in closed form and in limits."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.experts import (
    FILL,
    TILE,
    ExpertNetwork,
    ExpertRows,
    expert_speed,
    expert_times,
    feed_forward_s,
    products_s,
)
from phaze.cost.products import Products
from phaze.spec.speeds.experts import ExpertSpeed
from phaze.spec.system import Device
from phaze.spec.systems import load_device
from phaze.workload.expert_loads import exponent_of, load_factor, natural_factor, rank_loads

DEVICE = load_device("h100-80gb").model_copy(update={"sustained_clock": 1.0, "kernel_s": 0.0})
START = DEVICE.products["bf16"].start_s
SPEED = ExpertSpeed(reached=0.5, hbm=0.8, passes=0.4, start_s=1e-5, row_s=1e-8, expert_s=2e-6)
NETWORK = ExpertNetwork(*(np.array([value]) for value in (1024.0, 2048.0, 768.0, 1.0)))


def seconds(rows: list[float], device: Device = DEVICE, speed: ExpertSpeed = SPEED) -> float:
    """Seconds of a network whose experts have these rows."""
    return float(feed_forward_s(ExpertRows.of(np.array([rows])), NETWORK, device, speed, "bf16")[0])


def product(*shape: int, device: Device = DEVICE, speed: ExpertSpeed = SPEED, added: float = 0.0) -> Floats:
    """Seconds of one expert product, by arrays, HBM and start; `added` for weight gradients."""
    asked = Products(np.array([shape]), np.array([added > 0]), 2, added_bytes=added)
    found: Floats = products_s(asked, device, speed)[0]
    return found


def test_a_product_of_one_tile_takes_one_wave() -> None:
    """One expert, one tile of a sum of 4,096 terms; reads and writes at 80 % of the HBM bandwidth."""
    computed_s = 2 * TILE * TILE * (4096 + FILL) / (2 * 64 * 32 * DEVICE.clock_hz * 0.5)
    moved_s = 2 * (2 * TILE * 4096 + TILE * TILE) / (DEVICE.hbm_bandwidth_bytes_per_s * 0.8)
    found = product(1, TILE, 4096, TILE)
    assert found == pytest.approx([np.hypot(computed_s, moved_s), 0.0, START + 2e-6])
    assert product(1, 1, 4096, TILE)[0] == pytest.approx(found[0], rel=0.05)


def test_waves_are_of_the_tiles_of_all_experts() -> None:
    """132 processors: 132 tiles of any experts are one wave, and one more tile is a second wave."""
    speed = SPEED.model_copy(update={"hbm": 1.0})
    device = DEVICE.model_copy(update={"hbm_bandwidth_bytes_per_s": 1e18})
    one, same, two = (
        product(experts, TILE, 1024, TILE * columns, device=device, speed=speed)[0]
        for experts, columns in ((1, 132), (132, 1), (133, 1))
    )
    assert (same, two) == (pytest.approx(one), pytest.approx(2 * one))


def test_few_rows_an_expert_are_bound_by_the_weights() -> None:
    """Twice the experts take twice as long, independent of their small number of rows."""
    one, two = (product(experts, 8, 4096, 8192) for experts in (64, 128))
    assert one[0] == 0.0
    assert two[1] == pytest.approx(2 * one[1], rel=0.01)


@pytest.mark.parametrize("key", ["clock_hz", "hbm_bandwidth_bytes_per_s", "num_tc", "sustained_clock"])
def test_more_of_a_device_never_makes_experts_slower(key: str) -> None:
    smaller = DEVICE.model_copy(update={"sustained_clock": 0.5})
    larger = smaller.model_copy(update={key: getattr(smaller, key) * 2})
    for rows in ([1.0] * 64, [512.0] * 16, [8192.0, 0.0]):
        assert seconds(rows, larger) <= seconds(rows, smaller)


@pytest.mark.parametrize("key", ["reached", "hbm", "passes"])
def test_kernels_that_reach_more_are_faster(key: str) -> None:
    faster = SPEED.model_copy(update={key: getattr(SPEED, key) * 1.2})
    assert seconds([512.0] * 16, speed=faster) < seconds([512.0] * 16)


def test_gradients_that_are_added_up_are_read_and_written() -> None:
    """In single precision: 8 bytes per element instead of 2, if bound by HBM."""
    fast = SPEED.model_copy(update={"reached": 1.0})
    plain, added = (product(64, 4096, 32, 8192, speed=fast, added=more)[1] for more in (1e-9, 6.0))
    operands, results = 2 * 32 * (4096 + 8192), 4096 * 8192
    assert added / plain == pytest.approx((operands + 8 * results) / (operands + 2 * results), rel=0.1)


def test_experts_reach_at_most_what_dense_products_do() -> None:
    fast = SPEED.model_copy(update={"reached": 1.0})
    asked = Products(np.array([[8, 4096, 4096, 4096]]), np.zeros(1, bool), 2)
    dense = SPEED.model_copy(update={"reached": DEVICE.products["bf16"].reached})
    assert expert_times(asked, DEVICE, fast) == pytest.approx(products_s(asked, DEVICE, dense))


def test_more_rows_never_take_less_time() -> None:
    times = [seconds([float(rows)] * 16) for rows in range(0, 2048, 64)]
    assert (np.diff(times) >= 0).all()


def test_a_heavy_expert_is_slow_where_blocks_belong_to_experts() -> None:
    """The same total rows, but one expert's rows in its own blocks: the time of a row times the excess."""
    even, uneven = [256.0] * 8, [1152.0] + [128.0] * 7
    more = seconds(uneven) - seconds(even)
    assert more == pytest.approx((1152 - 256) * SPEED.row_s)


def test_constants_of_a_precision_are_its_own_or_the_nearest() -> None:
    """Tensor-wise FP8 uses FP8; experts launched one by one, known in half precision, use dense products."""
    grouped = DEVICE.experts["grouped"]
    assert expert_speed(DEVICE, "grouped", "fp8-cs") == grouped["fp8"]
    assert expert_speed(DEVICE, "fused", "bf16") == grouped["bf16"]
    half, low = (expert_speed(DEVICE, "each", word) for word in ("bf16", "fp8"))
    assert half is not None
    assert low is not None
    dense = DEVICE.products
    assert low.reached == pytest.approx(half.reached * dense["fp8"].reached / dense["bf16"].reached)
    assert expert_speed(load_device("tpu-v5e"), "each", "bf16") is None


def test_balanced_experts_have_equal_rows() -> None:
    assert rank_loads(4096, 64, 8, 16) == pytest.approx(np.full((1, 4), 512.0))
    assert load_factor("balanced", 4096, 64, 8, 16) == 1.0


@pytest.mark.parametrize("power", ["power_law_1.01", "power_law_1.2"])
def test_a_power_law_loads_one_rank_more(power: str) -> None:
    """Limited by the number of tokens; a rank with all experts has all rows."""
    loads = rank_loads(4096, 128, 8, 16, power)
    assert loads.shape == (6, 8)
    assert loads.max() <= 4096
    assert 1.2 < load_factor(power, 4096, 128, 8, 16) < 16
    assert rank_loads(4096, 128, 8, 1, power).sum(axis=1) == pytest.approx(4096 * 8, rel=0.01)
    assert load_factor(power, 4096, 8, 2, 8) <= 4


def test_the_busiest_rank_has_as_many_rows_more_as_its_experts_allow() -> None:
    """The full MaxVio if a rank has one expert, none if it has all, and by the square root in between."""
    found = [load_factor("max_vio_0.72", 4096, 128, 8, ranks) for ranks in (1, 8, 32, 128)]
    assert found[0] == 1.0
    assert found[-1] == pytest.approx(1.72)
    assert found == sorted(found)
    drawn = np.random.default_rng(0).normal(size=(4000, 128))
    deviation = 0.72 / drawn.max(axis=1).mean()
    busiest = 1 + deviation * drawn.reshape(4000, 8, 16).mean(axis=2).max(axis=1).mean()
    assert found[1] == pytest.approx(busiest, rel=0.01)


def test_natural_routing_follows_from_the_correlation_of_scores() -> None:
    """None without correlation, more with it and with ranks; close to drawn scores of tokens."""
    for correlation in (0.0, 0.4, 1.0):
        assert natural_factor(correlation, 128, 8, 1) == 1.0
        assert natural_factor(correlation, 8, 8, 8) == 1.0
    assert natural_factor(0.0, 128, 8, 8) == 1.0
    factors = [natural_factor(correlation, 128, 8, 8) for correlation in (0.1, 0.4, 0.7, 1.0)]
    assert factors == sorted(factors)
    draws, tokens, random = 200, 400, np.random.default_rng(0)
    common = np.sqrt(0.4) * random.normal(size=(draws, 1, 128))
    scores = common + np.sqrt(0.6) * random.normal(size=(draws, tokens, 128))
    chosen = np.argpartition(scores, -8, axis=2)[:, :, -8:]
    rows = np.array([np.bincount(drawn.ravel(), minlength=128) for drawn in chosen])
    busiest = rows.reshape(draws, 8, 16).sum(axis=2).max(axis=1).mean() / tokens
    assert natural_factor(0.4, 128, 8, 8) == pytest.approx(busiest, rel=0.05)


def test_natural_routing_depends_on_how_training_balances() -> None:
    biases, loss, none = (
        load_factor("natural", 4096, 128, 8, 8, balancing) for balancing in ("biases", "loss", "none")
    )
    assert 1.0 < biases < loss < none
    assert biases == load_factor("max_vio_0.04", 4096, 128, 8, 8)
    # All tokens visit the same eight experts: the busiest of eight ranks has some of them.
    assert none < 8


def test_no_rank_has_more_than_there_is_nor_than_a_trained_router_gives() -> None:
    """Three of four experts visited: the busiest has 4/3 of the mean. With a loss, an expert a rank: 1.72."""
    assert load_factor("natural", 4096, 4, 3, 4, balancing="none") == pytest.approx(4 / 3)
    assert load_factor("natural", 4096, 128, 8, 128, balancing="loss") == 1.72
    assert load_factor("natural", 4096, 128, 8, 128, balancing="none") > 1.72


def test_a_factor_is_that_of_every_rank() -> None:
    assert [load_factor("1.25", 4096, 128, 8, ranks) for ranks in (1, 128)] == [1.25, 1.25]


def test_an_unknown_distribution_is_refused() -> None:
    for word in ("even", "natural", "power_law_x", "power_law_0.9", "power_law_nan", "max_vio_0.7"):
        with pytest.raises(PhazeError, match="must be balanced"):
            exponent_of(word)
