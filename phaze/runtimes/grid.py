"""Many layouts as arrays, one per field, for vectorised rules, bounds and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.layout import BALANCED, Compute, CpKind, Layout, Load, Offload, Recompute, Zero


@dataclass(frozen=True, eq=False)
class LayoutGrid:
    """Layouts in mixed precision as arrays of shape (N,); fields have the meaning of `Layout`."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    pp: Ints
    vp: Ints
    dp: Ints
    microbatch: Ints
    zero: Ints
    sequence_parallel: Bools
    schedule: Ints
    """Index into `schedules`."""
    recompute: Ints
    """Index into `recomputes`."""
    cp_kind: Ints
    """Index into `cp_kinds`."""
    schedules: tuple[str, ...]
    recomputes: tuple[Recompute, ...]
    cp_kinds: tuple[CpKind, ...]
    offload: Offload = "none"
    """Offload option of all layouts."""
    compute: Compute = "bf16"
    """Compute format of all layouts."""
    load: Load = BALANCED
    """Expert load of all layouts."""

    def __len__(self) -> int:
        """Number of layouts, N."""
        return len(self.tp)

    @property
    def stages(self) -> Ints:
        """Virtual stages of the pipeline, pp · vp, (N,)."""
        return self.pp * self.vp

    @property
    def sharers(self) -> Ints:
        """Ranks with the same dense weights, dp · cp, (N,)."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> Ints:
        """Ranks of a stage, into which its experts fold, tp · cp · dp, (N,)."""
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> Ints:
        """Ranks with the same experts, (N,)."""
        return self.expert_ranks // self.expert_stride

    @property
    def expert_stride(self) -> Ints:
        """Distance between ranks with the same experts, (N,); see `Layout.edp`."""
        slices = np.where(self.sequence_parallel | (self.tp == 1) | (self.ep > 1), self.etp, self.tp)
        return slices * self.ep

    def microbatches(self, global_batch: int) -> Ints:
        """Microbatches per replica in a global batch, (N,)."""
        return global_batch // (self.microbatch * self.dp)

    def under(self, *schedules: str) -> Bools:
        """True where the schedule is one of these, (N,)."""
        return np.isin(self.schedule, [i for i, name in enumerate(self.schedules) if name in schedules])

    def take(self, which: Bools | Ints) -> Self:
        """Layouts at these indices, or where a mask is true."""
        return replace(self, **{name: getattr(self, name)[which] for name in COLUMNS})

    def joined(self, other: Self) -> Self:
        """These layouts followed by another grid's; both have the same named options."""
        found: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS
        }
        return replace(self, **found)

    def recomputing(self, chosen: Bools) -> Self:
        """Every layout with each of its chosen recompute options, in order; `chosen` is (N, options)."""
        places, recompute = np.nonzero(chosen)
        return replace(self.take(places), recompute=recompute)

    def schedule_of(self, place: int) -> str:
        """Schedule of one layout."""
        return self.schedules[int(self.schedule[place])]

    def layout(self, place: int) -> Layout:
        """Layout at an index, without its schedule (`schedule_of`)."""
        return Layout(
            tp=int(self.tp[place]),
            cp=int(self.cp[place]),
            ep=int(self.ep[place]),
            etp=int(self.etp[place]),
            pp=int(self.pp[place]),
            vp=int(self.vp[place]),
            dp=int(self.dp[place]),
            microbatch=int(self.microbatch[place]),
            sequence_parallel=bool(self.sequence_parallel[place]),
            zero=cast(Zero, int(self.zero[place])),
            recompute=self.recomputes[self.recompute[place]],
            cp_kind=self.cp_kinds[self.cp_kind[place]],
            offload=self.offload,
            compute=self.compute,
            load=self.load,
        )

    @classmethod
    def of(
        cls,
        layouts: Sequence[tuple[Layout, str]],
        schedules: tuple[str, ...],
        recomputes: tuple[Recompute, ...],
        cp_kinds: tuple[CpKind, ...],
    ) -> Self:
        """Grid of layouts with their schedules; offload, compute format and load are those of the first."""
        each = [layout for layout, _ in layouts]
        whole = ("tp", "cp", "ep", "etp", "pp", "vp", "dp", "microbatch", "zero")
        return cls(
            **{name: np.array([getattr(layout, name) for layout in each], np.int64) for name in whole},
            sequence_parallel=np.array([layout.sequence_parallel for layout in each], np.bool_),
            schedule=np.array([schedules.index(name) for _, name in layouts], np.int64),
            recompute=np.array([recomputes.index(layout.recompute) for layout in each], np.int64),
            cp_kind=np.array([cp_kinds.index(layout.cp_kind) for layout in each], np.int64),
            schedules=schedules,
            recomputes=recomputes,
            cp_kinds=cp_kinds,
            offload=each[0].offload,
            compute=each[0].compute,
            load=each[0].load,
        )


WORDS = {"schedule": "schedules", "recompute": "recomputes", "cp_kind": "cp_kinds"}
"""Grid fields that are indices, with the field that they index."""
ALIKE = ("offload", "compute", "load")
"""Grid fields that all layouts share."""
COLUMNS = tuple(field.name for field in fields(LayoutGrid) if field.name not in (*WORDS.values(), *ALIKE))
"""Fields of a grid that are arrays."""
