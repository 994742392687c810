"""Runtimes by name."""

from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import Runtime
from phaze.runtimes.torchtitan import TORCHTITAN

RUNTIMES: dict[str, Runtime] = {runtime.name: runtime for runtime in (MEGATRON, TORCHTITAN)}
"""Every runtime that plans are made for."""
