"""Requests for a plan."""

from math import gcd
from random import Random

import pytest

from phaze.spec.training_plan import MOVED, nearest_batch


@pytest.mark.parametrize(
    ("samples", "devices", "batch"),
    [(4e6 / 8192, 64, 512), (4e6 / 8192, 48, 480), (512, 48, 528), (512, 64, 512), (2.4, 8, 2), (1, 8, 1)],
)
def test_a_batch_is_the_nearest_that_most_devices_share(samples: float, devices: int, batch: int) -> None:
    assert nearest_batch(samples, devices) == batch


def test_no_other_batch_within_reach_allows_more_replicas_or_is_nearer() -> None:
    random = Random(1)
    for _ in range(300):
        samples, devices = random.uniform(8, 300), random.randint(1, 200)
        batch = nearest_batch(samples, devices)
        reach = [near for near in range(1, 400) if abs(near - samples) <= MOVED * samples]
        assert batch in reach
        most = max(gcd(near, devices) for near in reach)
        assert gcd(batch, devices) == most
        assert abs(batch - samples) == min(
            abs(near - samples) for near in reach if gcd(near, devices) == most
        )
