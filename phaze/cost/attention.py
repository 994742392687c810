"""Time of fused attention kernels, which keep the scores on chip (Dao et al., NeurIPS 2022).

Processors share the query blocks of all heads and samples. A block iterates over its unmasked keys and has a
fixed prologue and epilogue. Under a causal mask blocks differ in length, so the last processor finishes later
than the mean. A kernel takes at least the time to move queries, keys, values and results over HBM once.
Kernels before and after it move them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Bools, Floats
from phaze.base.errors import PhazeError
from phaze.spec.speeds.attention import HEAD, AttentionKernel, AttentionPass
from phaze.spec.system import Device
from phaze.workload.primitives import Scores, ScoreSizes

ARITHMETIC, TRAFFIC, START = range(3)
"""Column indices in the result of `attention_s`."""
UNKNOWN = AttentionKernel(
    forward=AttentionPass(share=0.61, fill=60.0), backward=AttentionPass(share=0.55, fill=60.0)
)
"""Kernel assumed for devices that specify none: FlashAttention-2 on an A100."""
BYTES = 2
"""Bytes per element of queries, keys, values and results."""


@dataclass(frozen=True, eq=False)
class Shapes(ScoreSizes[Floats, Floats]):
    """Shapes of attention kernels, as arrays (R,)."""

    @classmethod
    def of(cls, kernels: Sequence[Scores]) -> Shapes:
        """Pack the given kernels into arrays."""
        names = cls.__dataclass_fields__
        return cls(*(np.array([getattr(kernel, name) for kernel in kernels], float) for name in names))

    @property
    def masked(self) -> Bools:
        """True where a mask lets some queries attend to fewer keys than others, (R,)."""
        return self.mean < self.longest

    def padded(self, multiple: int) -> Shapes:
        """Shapes whose head dimensions are padded to multiples of a number."""
        sizes = (np.ceil(size / multiple) * multiple for size in (self.size, self.value_size))
        return replace(self, **dict(zip(("size", "value_size"), sizes, strict=True)))

    def widths(self, *, backward: bool) -> Floats:
        """Multiply-accumulates per (query, key) pair, (R,): two GEMMs forward, five backward."""
        return 3 * self.size + 2 * self.value_size if backward else self.size + self.value_size

    def nbytes(self, *, backward: bool) -> Floats:
        """Minimum HBM traffic in bytes, (R,): queries, keys, values and results; backward also gradients."""
        rows = self.queries * self.heads + self.keys * self.kv_heads
        return (2 if backward else 1) * BYTES * self.samples * rows * (self.size + self.value_size)


def attention_passes_s(kernels: Sequence[Scores], speed: AttentionKernel, device: Device) -> Floats:
    """Total forward and backward time of attention kernels, (2, 3); columns as in `attention_s`.

    PhazeError for a kernel without a backward pass.
    """
    if speed.backward is None:
        raise PhazeError(f"attention: device {device.name} has a kernel without a backward pass")
    shapes = Shapes.of(kernels)
    forward, backward = (
        attention_s(shapes, pass_speed, device, backward=backward_pass).sum(axis=0)
        for pass_speed, backward_pass in ((speed.forward, False), (speed.backward, True))
    )
    return np.stack([forward, backward])


def attention_s(shapes: Shapes, speed: AttentionPass, device: Device, *, backward: bool = False) -> Floats:
    """Time of attention kernels, (R, 3), in seconds: arithmetic or HBM, extra HBM traffic, and launch.

    Full clock and full HBM bandwidth of the device are assumed.
    """
    per_byte_s = 1.0 / device.hbm_bandwidth_bytes_per_s
    once_s = shapes.nbytes(backward=backward) * per_byte_s
    times_s = np.zeros((len(once_s), 3))
    times_s[:, ARITHMETIC] = np.maximum(_blocks_s(shapes, speed, device, backward=backward), once_s)
    times_s[:, TRAFFIC] = speed.traffic * once_s
    times_s[:, START] = speed.start_s
    return times_s


def _blocks_s(shapes: Shapes, speed: AttentionPass, device: Device, *, backward: bool) -> Floats:
    """Time until the last SM finishes its blocks, in seconds, (R,).

    A block also processes keys that the mask allows for only some of its queries: half a block for causal
    masks, one block at each end of a window.
    """
    shapes = shapes.padded(speed.head_multiple)
    wide = shapes.size + shapes.value_size
    rate = _peak_share(shapes, speed) * device.peak_flops_per_s / device.num_tc
    key_s = 2.0 * speed.block * shapes.widths(backward=backward) / rate
    # `fill` is in keys of heads with 128 elements. A key of a smaller head takes less time, so that the same
    # fixed time is worth more of them.
    fill = speed.fill * 2 * HEAD / wide
    blocks = shapes.samples * shapes.heads * np.ceil(shapes.queries / speed.block)
    edge = shapes.masked * np.minimum(speed.block, shapes.queries) * shapes.mean / shapes.longest
    # All processors work at the mean rate until blocks run out; the tail is the wait for the last one.
    mean_s = blocks * key_s * (shapes.mean + edge + fill) / device.num_tc
    longest_s = key_s * (shapes.longest + fill)
    return np.maximum(mean_s + speed.tail * longest_s, longest_s)


def _peak_share(shapes: Shapes, speed: AttentionPass) -> Floats:
    """Fraction of peak FLOP/s reached inside a block, (R,), given the head dimension and the mask."""
    head_shares = sorted((speed.heads | {HEAD: speed.heads.get(HEAD, 1.0)}).items())
    sizes, shares = np.array(head_shares, float).T
    # Speeds are relative to 128 elements, hence 1 there unless the fit says otherwise; interp clips beyond.
    by_size = speed.share * np.interp(shapes.size, sizes, shares)
    shares_by_mask: Floats = np.where(shapes.masked, by_size, by_size * speed.unmasked)
    return shares_by_mask
