"""Registry of the supported runtimes."""

from phaze.runtimes.chip import CHIP
from phaze.runtimes.deepspeed import DEEPSPEED
from phaze.runtimes.maxtext import MAXTEXT
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import Runtime
from phaze.runtimes.torchtitan import TORCHTITAN

RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime for runtime in (MEGATRON, TORCHTITAN, DEEPSPEED, MAXTEXT, CHIP)
}
"""All supported runtimes, by name."""
