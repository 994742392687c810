"""Cost of profiling by number of operators: a second for thousands, and linear growth."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.partition.profile import profile_model
from phaze.spec.model import Model
from phaze.spec.models import load_model_named


def deep(layers: int) -> Model:
    """Return BERT-24 of the Parmesan paper with another number of blocks, 27 operators each."""
    model = load_model_named("bert-24")
    assert isinstance(model, Model)
    return model.model_copy(update={"layers": layers})


@pytest.mark.slow
@pytest.mark.parametrize("layers", [24, 48, 96, 192])
def test_profile_against_operators(benchmark: BenchmarkFixture, layers: int) -> None:
    """All operators of one model on a Titan V, up to more than 5,000."""
    benchmark.extra_info.update(curve="profile, layers", size=layers, bound=1)
    model = deep(layers)
    profile_model(model, 4, "titan-v-ethernet")
    graph = benchmark.pedantic(profile_model, args=(model, 4, "titan-v-ethernet"), rounds=3)
    assert len(graph.names) == 13 + 27 * layers
