"""Operators of a module measured one by one against its whole step: a figure, not an assertion."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.spec.operators import ProfiledInput
from tests.unit.runtimes.modules import RESNET, TRANSFORMER


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed; make runtimes has it")
@pytest.mark.parametrize(
    ("code", "kind", "shape"), [(RESNET, "real", (3, 64, 64)), (TRANSFORMER, "index", (64,))]
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_profile_of_a_module(
    benchmark: BenchmarkFixture, tmp_path: Path, code: str, kind: str, shape: tuple[int, ...]
) -> None:
    """Profile a microbatch of 16 samples on the CPU (2 without measuring)."""
    from phaze.partition.measured import profile_module

    path = tmp_path / "module.py"
    path.write_text(code)
    inputs = (ProfiledInput.model_validate({"kind": kind, "shape": shape}),)
    samples = 16 if benchmark.enabled else 2
    graph = benchmark.pedantic(profile_module, (f"{path}:make", inputs, samples, "cpu"), rounds=1)
    total_s = sum(operator.forward_s + operator.backward_s for operator in graph.operators)
    assert graph.profiled is not None
    benchmark.extra_info["operators_over_step"] = total_s / graph.profiled.step_s
