"""Check memory requests against the machine's memory, before allocation."""

import os
from contextlib import suppress
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.base.units import GIB

CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")
"""Linux file with the memory limit of a container; `max` means no limit."""


def machine_bytes() -> int:
    """Memory of the machine, or of the container if that is less."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        available = min(available, int(CONTROL_GROUP.read_text(encoding="utf-8")))
    return available


def refuse_beyond_memory(needed_bytes: float, what: str, advice: str) -> None:
    """Raise PhazeError if `what` needs more memory than the machine has, with both sizes and `advice`."""
    available = machine_bytes()
    if needed_bytes > available:
        needed, limit = (f"{size / GIB:,.4g} GiB" for size in (needed_bytes, available))
        raise PhazeError(f"{what} need {needed} of memory, this machine has {limit}: {advice}")
