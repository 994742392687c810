"""phaze finds which accelerator to build for a set of models, and how to train them on a cluster."""

import atexit
import gc

gc.set_threshold(100_000)  # imports create no garbage worth collecting: saves a quarter of a second per job
atexit.register(gc.freeze)  # without it Python collects all imported objects at exit: 0.1 s
