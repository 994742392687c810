"""What layers move for one microbatch: bytes between HBM and chip, and tensors that slices all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats


@dataclass(frozen=True)
class Traffic:
    """Bytes of every layer of a chain, or of a layer of every run, on one device of its slices, (n,) each."""

    forward_hbm_bytes: Floats
    backward_hbm_bytes: Floats
    forward_reduced_bytes: Floats
    """Tensors that the slices all-reduce, as large as each slice has them."""
    backward_reduced_bytes: Floats

    def repeated(self, counts: Sequence[int]) -> Traffic:
        """Return the bytes of every layer of the chain, of which each run has so many."""
        return Traffic(
            np.repeat(self.forward_hbm_bytes, counts),
            np.repeat(self.backward_hbm_bytes, counts),
            np.repeat(self.forward_reduced_bytes, counts),
            np.repeat(self.backward_reduced_bytes, counts),
        )
