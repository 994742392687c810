"""Measure GEMMs, attention and collectives on this machine's GPUs, in the format of kernel tables.

Only this module of `validate` imports PyTorch, and it is imported on demand: the default installation has no
PyTorch. Kernels run in a loop after warm-up rounds; a time is the median of rounds, by device events.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from phaze.base.errors import PhazeError

WARM, ROUNDS = 5, 20
"""Numbers of warm-up rounds and of timed rounds."""
ROWS = (1024, 4096, 8192, 16384)
"""Values of m of the GEMMs to measure."""
WIDTHS = ((4096, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (8192, 1024), (2048, 2048), (16384, 2048))
"""Values of n and k of the GEMMs to measure: layers of models with 1 to 70 billion parameters, and shards."""
LENGTHS = (1024, 2048, 4096, 8192, 16384)
HEADS = ((16, 16), (32, 8), (8, 1))
"""Numbers of query heads and key-value heads of the attention to measure."""
HEAD = 128
BATCHES = (1, 4)
MOST_TOKENS = 32768
"""Maximum number of tokens in a batch of attention."""
MESSAGES = tuple(2**power for power in range(8, 29, 2))
"""Message sizes to measure, in elements of the whole tensor on one rank."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
Row = dict[str, object]


@dataclass(frozen=True)
class Timer:
    """Timer of device work, between two device events."""

    event: Callable[[], torch.cuda.Event]
    wait: Callable[[], None]

    def milliseconds(self, work: Callable[[], object]) -> float:
        """Median time of a round, in milliseconds."""
        for _ in range(WARM):
            work()
        times_ms: list[float] = []
        for _ in range(ROUNDS):
            start, end = self.event(), self.event()
            start.record()
            work()
            end.record()
            self.wait()
            times_ms.append(start.elapsed_time(end))
        return statistics.median(times_ms)


def measured() -> pd.DataFrame:
    """Measure GEMMs and attention on one GPU, and collectives on several; returns a table of kernel times.

    Raises PhazeError if PyTorch sees no GPU.
    """
    if not torch.cuda.is_available():
        raise PhazeError("measure: PyTorch sees no GPU here; run it on a machine that has one")
    timer = Timer(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)
    about = {
        "device": torch.cuda.get_device_name(),
        "precision": "bf16",
        "source": f"phaze measure, PyTorch {torch.__version__}",
    }
    rows = [*products(timer, "cuda"), *attention(timer, "cuda"), *collectives()]
    return pd.DataFrame([{**about, **row} for row in rows])


def products(timer: Timer, device: str) -> Iterator[Row]:
    """Yield the measured time of each GEMM in bf16."""
    for m, (n, k) in product(ROWS, WIDTHS):
        activations = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        weights = torch.randn(n, k, device=device, dtype=torch.bfloat16)
        # Bound as defaults, because a closure would see the operands of a later round.
        took = timer.milliseconds(lambda a=activations, b=weights: functional.linear(a, b))  # type: ignore[misc]
        yield {"part": "products", "m": m, "n": n, "k": k, "latency_ms": took}


def attention(timer: Timer, device: str) -> Iterator[Row]:
    """Yield the measured time of causal attention, forward and backward, with PyTorch's FlashAttention-2."""
    for batch, length, (heads, shared) in product(BATCHES, LENGTHS, HEADS):
        if batch * length > MOST_TOKENS:
            continue
        options = {"device": device, "dtype": torch.bfloat16, "requires_grad": True}
        query = torch.randn(batch, heads, length, HEAD, **options)
        key, value = (torch.randn(batch, shared, length, HEAD, **options) for _ in range(2))
        for direction, work in passes((query, key, value)).items():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                took = timer.milliseconds(work)
            yield {
                "part": "attention",
                "kernel": "2",
                "direction": direction,
                "batch_size": batch,
                "isl": length,
                "num_heads": heads,
                "num_key_value_heads": shared,
                "head_dim": HEAD,
                "latency_ms": took,
            }


def passes(inputs: tuple[torch.Tensor, ...]) -> dict[str, Callable[[], object]]:
    """Functions that run the forward and the backward pass of causal attention on the given inputs."""

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        result = forward()
    # The graph is kept, so that the backward pass can run again without a forward pass.
    gradient = torch.ones_like(result)
    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True),
    }


def collectives() -> list[Row]:
    """Measure collectives on 2, 4, … GPUs of this machine; none on a machine with one GPU."""
    count, rows = torch.cuda.device_count(), []
    ranks = 2
    while ranks <= count:
        with tempfile.TemporaryDirectory() as folder:
            # PyTorch's NCCL groups have one process per device; results come back through a file.
            multiprocessing.spawn(_rank, (ranks, folder), nprocs=ranks)
            rows += pd.read_json(Path(folder) / "rows.json").to_dict("records")
        ranks *= 2
    return [{str(key): value for key, value in row.items()} for row in rows]


def _rank(rank: int, ranks: int, folder: str) -> None:
    """Run the process of one rank; the first rank writes the measured times."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    timer = Timer(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)
    rows = [
        {
            "part": "collectives",
            "precision": "half",
            "op_name": kind,
            "num_gpus": ranks,
            "message_size_as_given": size,
            "latency_ms": timer.milliseconds(_work(kind, size, ranks)),
        }
        for kind, size in product(KINDS, MESSAGES)
    ]
    if rank == 0:
        pd.DataFrame(rows).to_json(Path(folder) / "rows.json", orient="records")
    dist.destroy_process_group()


def _work(kind: str, size: int, ranks: int) -> Callable[[], object]:
    """Function that runs a collective on a tensor of `size` elements in total."""
    tensor = torch.zeros(size, device="cuda", dtype=torch.float16)
    part = torch.zeros(max(size // ranks, 1), device="cuda", dtype=torch.float16)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(tensor)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(tensor, part)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, tensor)
    other = torch.empty_like(tensor)
    return lambda: dist.all_to_all_single(other, tensor)
