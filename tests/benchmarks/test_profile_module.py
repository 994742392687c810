"""Operators of a module measured one by one against its whole step, with one thread.

A figure, not an assertion: `make runtimes` prints it below the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.spec.operators import ProfiledInput
from tests.unit.runtimes.modules import RESNET, TRANSFORMER

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed; make runtimes has it"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of torch.export in itself
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run PyTorch with one thread, as the processes of a pipeline."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("code", "kind", "shape"), [(RESNET, "real", (3, 64, 64)), (TRANSFORMER, "index", (64,))]
)
def test_profile_of_a_module(
    benchmark: BenchmarkFixture, tmp_path: Path, code: str, kind: str, shape: tuple[int, ...]
) -> None:
    """Profile a microbatch of 16 samples on the CPU (2 without measuring), by the time of this process."""
    from phaze.partition.measured import profile_module

    path = tmp_path / "module.py"
    path.write_text(code)
    inputs = (ProfiledInput.model_validate({"kind": kind, "shape": shape}),)
    samples = 16 if benchmark.enabled else 2
    graph = benchmark.pedantic(
        profile_module, (f"{path}:make", inputs, samples, "cpu"), {"clock": time.process_time}, rounds=1
    )
    total_s = sum(operator.forward_s + operator.backward_s for operator in graph.operators)
    assert graph.profiled is not None
    benchmark.extra_info["note"] = f"{kind}: operators over step {total_s / graph.profiled.step_s:.3f}"
