"""A module's operators against its whole step, and the predicted step of its pipeline against a measured one.

Both are figures, not assertions; `make runtimes` prints them below the table. One thread per process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.spec.operators import ProfiledInput
from tests.commands import invoke, torchrun
from tests.unit.runtimes.modules import RESNET, TRANSFORMER, WIDE_RESNET

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


@pytest.mark.slow
@pytest.mark.parametrize(("module", "microbatch"), [(RESNET, 64), (WIDE_RESNET, 32)], ids=["narrow", "wide"])
def test_predicted_step_of_a_pipeline(
    benchmark: BenchmarkFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, microbatch: int
) -> None:
    """Profile, partition into two stages, emit and run by torchrun, in two processes over measured links.

    A pass of a narrow stage takes 10 ms, so the executor's time per microbatch shows, which has no price.
    """
    monkeypatch.chdir(tmp_path)
    Path("resnet.py").write_text(module)
    samples, steps = (microbatch, 12) if benchmark.enabled else (2, 3)
    invoke(
        f"profile resnet.py:make --input 3x16x16 --microbatch {samples} --run-code --device cpu -o graph.json"
    )
    torchrun(2, "-m", "phaze", "measure", "--links", "-o", "links.csv")
    shape = "--stages 2 --replicas 1 --microbatches 8 --no-recompute"
    printed = invoke(
        f"partition graph.json --topology links.csv {shape} -o stages.json --map-out map.json"
    ).stdout
    (predicted,) = re.findall(r"step (\S+) s", printed)
    invoke("emit stages.json --map map.json --for torch -o pipe.py")
    printed = benchmark.pedantic(torchrun, (2, "pipe.py", "--steps", steps), rounds=1)
    (measured,) = re.findall(r"passes: (\S+) s", printed)
    benchmark.extra_info["note"] = (
        f"step of two stages of {samples} samples: predicted {predicted} s, measured {measured} s, "
        f"ratio {float(predicted) / float(measured):.3f}"
    )
