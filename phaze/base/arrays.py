"""NumPy array types, one per element type."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Names = NDArray[np.str_]
Number = TypeVar("Number", float, Floats)
"""A number, or an array of numbers: functions of it serve one case and many at once."""
Count = TypeVar("Count", int, Ints)
"""A whole number, or an array of whole numbers."""
