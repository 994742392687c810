"""Time messages between the processes of torchrun, one pair at a time.

This module imports PyTorch and is imported on demand: the default installation has no PyTorch.
"""

from __future__ import annotations

import os
import time

import pandas as pd
import torch
import torch.distributed as dist

from phaze.base.errors import PhazeError
from phaze.validate.links import link_table

WARM, ROUNDS = 3, 20
"""Numbers of warm-up round trips and of timed ones, of which the shortest, least disturbed one counts."""
COMMAND = "torchrun --nproc-per-node 8 -m phaze measure --links -o links.csv"


def measured_links() -> pd.DataFrame | None:
    """Measure all pairs of processes; the table on rank 0, None on the others.

    Uses NCCL if every process of a node has a GPU, else gloo. Raises PhazeError outside of torchrun.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise PhazeError("measure: --links times messages between processes", f"run at least two: {COMMAND}")
    has_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpus else torch.device("cpu")
    if has_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpus else "gloo")
    try:
        table = link_table(_Messages(device).round_trip_s, dist.get_world_size())
        return table if dist.get_rank() == 0 else None
    finally:
        dist.destroy_process_group()


class _Messages:
    """Messages of this process, which takes part in every pair's turn."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.rank = device, dist.get_rank()

    def round_trip_s(self, source: int, target: int, sent_bytes: int, returned_bytes: int) -> float:
        """Shortest time of a round trip, the same on all ranks; only the pair works."""
        sent, returned = (
            torch.zeros(size, dtype=torch.uint8, device=self.device) for size in (sent_bytes, returned_bytes)
        )
        # All ranks meet first, so that no pair is timed while another one is still busy.
        dist.barrier()
        times: list[float] = []
        for _ in range(WARM + ROUNDS):
            start = time.perf_counter()
            if self.rank == source:
                dist.send(sent, target)
                dist.recv(returned, target)
            elif self.rank == target:
                dist.recv(sent, source)
                dist.send(returned, source)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        shortest = torch.tensor([min(times[WARM:])], dtype=torch.float64, device=self.device)
        dist.broadcast(shortest, source)
        return float(shortest.item())
