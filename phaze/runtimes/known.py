"""Runtimes by name."""

from phaze.runtimes.deepspeed import DEEPSPEED
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import Runtime
from phaze.runtimes.torchtitan import TORCHTITAN

RUNTIMES: dict[str, Runtime] = {runtime.name: runtime for runtime in (MEGATRON, TORCHTITAN, DEEPSPEED)}
"""Every runtime that plans are made for."""
