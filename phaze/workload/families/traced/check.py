"""Whether PyTorch is there, and whether its user has said that code may run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from phaze.base.errors import PhazeError

if TYPE_CHECKING:
    from phaze.spec.torch_module import TorchModule
    from phaze.workload.families.traced.calls import Trace


def trace(spec: TorchModule, microbatch: int, *, run_code: bool) -> Trace:
    """Return what a module runs; PhazeError unless its code may run and PyTorch is installed."""
    if not run_code:
        raise PhazeError(
            f"model {spec.name}: torch: {spec.torch} would be imported and called; "
            "allow it with --run-code if you trust the spec and the package"
        )
    if find_spec("torch") is None:
        raise PhazeError(
            "trace: PyTorch is not installed: .venv/bin/pip install -e '.[torch]' in the folder of phaze, or "
            "conda env create -f envs/torch.yaml"
        )
    from phaze.workload.families.traced.record import record

    return record(spec, microbatch)
