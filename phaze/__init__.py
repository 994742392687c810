"""phaze: which accelerator to build for a set of models, and how to spread their training over many of it."""

import atexit
import gc

gc.set_threshold(100_000)  # imports leave no garbage to look for: a quarter of a second of every job
atexit.register(gc.freeze)  # else Python, as it ends, looks for some in all that was imported: 0.1 s
