"""Slowdown of a step with the number of devices: all wait for the slowest one.

Delays of single devices (clocks under the power limit, operating system, network interrupts) are exponential
at their upper end. The largest of n such delays exceeds their mean by H_n - 1 of them, which is at most ln n
(Arnold et al., A First Course in Order Statistics, Section 4.6).
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats


def slowest(devices: int | Floats, spread: float) -> Floats:
    """Kernel time on the slowest of n devices, relative to one; `spread` is the mean delay, a share."""
    lag: Floats = 1.0 + spread * np.log(np.maximum(devices, 1))
    return lag
